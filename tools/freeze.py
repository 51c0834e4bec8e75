"""Check that a change leaves results identical: digests of the CPU engine's bits and of the CUDA text of hot paths.

    python tools/freeze.py write before.json           # draw networks, and record their results
    python tools/freeze.py compare before.json         # compute the same again, and report differences

`write` draws networks from the tests' generator (every layer, pools, one to three dimensions) and records them with
their digests, so that `compare` recomputes the same networks even if the generator has changed. For each it computes
kernels of both kinds in float32 or float64 and, if it has gradients, those by parameters and by images. `--quick` takes
a tenth of them. Both commands use the package that Python imports; `PYTHONPATH=…/src` chooses another tree. The bits
depend on the processor's vector instructions and on the compiler, so both runs belong on one machine.

Each function of the CUDA text has its own digest, without comments and whitespace, so that one formula may change while
the loops around it stay. `--texts FOLDER` writes the texts themselves, for `diff -r`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cnngp import (
    AvgPool,
    Conv,
    Dense,
    Elementwise,
    GlobalAvgPool,
    Kernel,
    NetworkError,
    ReLU,
    Sequential,
    Step,
    Sum,
    from_json,
    zoo,
)
from cnngp.kernel.engines.base import RangeError
from cnngp.kernel.engines.cuda.cuda_source import generate
from cnngp.kernel.program import check_slopes, lower
from cnngp.network import Network
from cnngp.network.layers import Nonlinearity

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers import generator, pooled
from helpers.nonlinearities import ONE_OF_EACH

DRAWN, QUICK = 440, 44
HOT = ("warp", "sheets")
IMAGES, OTHERS = 5, 3


def main() -> None:
    args = _arguments()
    begun = time.process_time()
    if args.command == "write":
        count = QUICK if args.quick else DRAWN
        found = [record(case, args.texts) for case in cases(count)]
        args.file.write_text(json.dumps(found, indent=0) + "\n")
        print(f"{len(found)} networks, {sum(len(r['digests']) for r in found)} digests in {args.file}", end="")
    else:
        before = json.loads(args.file.read_text())[:: 10 if args.quick else 1]
        differences = [d for old in before for d in compared(old, record(old, args.texts))]
        print(*differences, sep="\n", end="\n" if differences else "")
        print(f"{len(before)} networks compared, {len(differences)} digests differ", end="")
    print(f"; {time.process_time() - begun:.0f} s of processor time")
    if args.command == "compare" and differences:
        raise SystemExit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["write", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--quick", action="store_true", help="a tenth of the networks")
    parser.add_argument("--texts", type=Path, metavar="FOLDER", help="leave the CUDA texts there")
    return parser.parse_args()


def cases(count: int) -> Iterator[dict[str, Any]]:
    """Networks as JSON, with the shape of their images and the precision: known networks first, then drawn ones."""
    for name, net, shape in _known():
        for dtype in ("float32", "float64"):
            yield {"name": f"{name}, {dtype}", "network": net.to_json(), "shape": shape, "dtype": dtype}
    # Nonlinearities like ReLU come most often: only they have separate code for whole maps.
    few = (*generator.SMOOTH, Step(), Elementwise("tanh"))
    for i in range(count):
        rng = np.random.default_rng([32, i])
        pick = generator.Random(rng)
        acts = (generator.RELU_LIKE, generator.RELU_LIKE, (ReLU(),), few)[i % 4]
        act = lambda acts=acts, pick=pick: pick.among(acts)  # noqa: E731
        draw = pooled.network(pick, act, 1500) if i % 3 == 2 else generator.network(pick, act, 120)
        dtype = ("float32", "float64")[i // 2 % 2]
        yield {"name": f"drawn {i}", "network": draw[0].to_json(), "shape": draw[1], "dtype": dtype}


def _known() -> Iterator[tuple[str, Network, tuple[int, ...]]]:
    two = [Conv(3), ReLU(), Conv(3), ReLU()]
    yield "resnet(32)", zoo.resnet(32), (1, 8, 8)
    yield "convnet()", zoo.convnet(), (1, 9, 9)
    yield "pooled_cnn()", zoo.pooled_cnn(), (1, 10, 10)
    yield "two pools", Sequential(*two, AvgPool(2), *two, AvgPool(2), *two, GlobalAvgPool(), Dense()), (3, 8, 8)
    for layer in (*generator.RELU_LIKE, *ONE_OF_EACH, Elementwise("softplus")):
        yield f"{layer!r}", Sequential(Conv(3, bias_var=0.1), layer, Conv(2), layer, Dense()), (1, 4, 5)
        yield f"{layer!r}, pooled", Sequential(Conv(3), layer, AvgPool(2), Conv(2), layer, Dense()), (1, 4, 4)


def record(case: dict[str, Any], texts: Path | None) -> dict[str, Any]:
    """Return the case with its digests."""
    net, shape, dtype = from_json(case["network"]), tuple(case["shape"]), case["dtype"]
    rng = np.random.default_rng(7)
    X, Z = (_images(rng, n, shape) for n in (IMAGES, OTHERS))
    found: dict[str, str] = {}
    kernel = Kernel(net, device="cpu", dtype=dtype, threads=1, check=False)
    kinds = ["nngp", "ntk"] if _has_slopes(net) else ["nngp"]
    try:
        found["K(X)"] = _digest(kernel(X))
    except (NetworkError, RangeError) as error:
        return {**case, "digests": {"refused": str(error)}}
    found["K(X, Z)"] = _digest(kernel(X, Z))
    found["diagonal"] = _digest(kernel.diag(X))
    if "ntk" in kinds:
        found["both(X)"], found["both(X, Z)"] = _digest(*kernel.both(X)), _digest(*kernel.both(X, Z))
    G = rng.normal(size=(IMAGES, IMAGES)), rng.normal(size=(IMAGES, OTHERS))
    try:
        by_parameters = kernel.gradient(X, None, G[0]), kernel.gradient(X, Z, G[1])
    except NetworkError as error:
        found["gradient"] = str(error)
    else:
        found["gradient by parameters"] = _digest(*(np.array(list(g.values())) for g in by_parameters))
        found["gradient by images"] = _digest(*kernel.gradient(X, Z, G[1], wrt="images"))
    if not any(isinstance(layer, Elementwise) for layer in _nonlinearities(net)):
        for kind in kinds:
            source = generate(lower(net, shape, kind), dtype)
            if source.path in HOT:
                for name, part in functions(source.body):  # one name may occur in two namespaces
                    key = f"CUDA {kind}: {name}"
                    found[key] = " ".join([*found.get(key, "").split(), _of_text(part)])
                if texts is not None:
                    texts.mkdir(parents=True, exist_ok=True)
                    (texts / f"{re.sub('[^a-z0-9]+', '-', case['name'].lower())}-{kind}.cu").write_text(source.text)
    return {**case, "digests": found}


def compared(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each digest that differs."""
    before, after = old["digests"], new["digests"]
    for name in sorted(before.keys() | after.keys()):
        if not set(before.get(name, "new").split()) <= set(after.get(name, "").split()):
            how = "is gone" if name not in after else "is new" if name not in before else "differs"
            yield f"{old['name']}: {name} {how}"


def functions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each function and kernel in a CUDA text, without the text between them."""
    for part in re.split(r"^(?=(?:extern \"C\" )?__(?:device|global)__)", text, flags=re.M)[1:]:
        code = re.sub(r"//[^\n]*", "", part[: part.find("\n}\n") % (len(part) + 1)])
        name = re.search(r"(\w+)\s*[(\[=]", re.sub(r"__launch_bounds__\([^)]*\)", "", code))
        yield (name.group(1) if name else code[:40]), re.sub(r"\s+", " ", code)


def _images(rng: np.random.Generator, n: int, shape: tuple[int, ...]) -> np.ndarray:
    """Images with blank regions, and a last one that is all blank: zero variances take special code paths."""
    X = rng.normal(size=(n, *shape)).astype(np.float32)
    X[rng.random((n, 1, *shape[1:])).repeat(shape[0], axis=1) < 0.3] = 0.0
    X[-1] = 0.0
    return X


def _has_slopes(net: Network) -> bool:
    try:
        check_slopes(net)  # type: ignore[arg-type]
    except NetworkError:
        return False
    return True


def _nonlinearities(net: Network) -> Iterator[Nonlinearity]:
    match net:
        case Nonlinearity():
            yield net
        case Sequential(layers=inner) | Sum(branches=inner):
            for layer in inner:
                yield from _nonlinearities(layer)


def _digest(*arrays: np.ndarray) -> str:
    return hashlib.blake2b(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays), digest_size=8).hexdigest()


def _of_text(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


if __name__ == "__main__":
    main()
