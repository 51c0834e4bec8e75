"""`Kernel`: a network's covariance function on arrays. Checks the input, picks the engine, returns matrices."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, Output, as_images, check_output
from cnngp.common.checks import is_whole
from cnngp.common.progress import progress_bar
from cnngp.network.composition import check_network
from cnngp.network.functions import has_bare_function
from cnngp.network.layers import Network, NetworkError, as_layer

from . import verdicts
from .check import LOOKED_AT
from .check import check as compared
from .engines.base import Engine, check_pixels
from .program import lower
from .verdicts import Verdict

if TYPE_CHECKING:
    from .sklearn_kernel import NetworkKernel

Device = Literal["auto", "cpu", "cuda"]
DTYPES = ("float32", "float64")


class Kernel:
    """The covariance function of an infinitely wide network.

    `kernel(X)` is the exactly symmetric matrix of one set of images with the exact diagonal, `kernel(X, Z)` the matrix
    of two sets, `kernel.diag(X)` the diagonal alone. An entry depends on its two images only: it has the same bits
    whatever the batch, the threads and the order of the arguments (with pools, the order may move the last bits).

    Parameters
    ----------
    network : the layers, such as `Sequential(Conv(3), ReLU(), Dense())` or `zoo.resnet(32)`.
    device : "cpu", "cuda", or "auto" for the card where there is one.
    dtype : "float32" (relative error about 1e-7) or "float64".
    threads : CPU threads; by default NUMBA_NUM_THREADS or OMP_NUM_THREADS where set, else every core.
    check : compare two of the images with the float64 reference before the first matrix of a network, a shape of images
        and an engine; `WrongKernelError` where they are far apart. It takes a fraction of a second once, and is
        remembered on disk.

    >>> import numpy as np
    >>> from cnngp import Conv, Dense, Kernel, ReLU, Sequential
    >>> kernel = Kernel(Sequential(Conv(3), ReLU(), Dense()), device="cpu", dtype="float64")
    >>> X = np.arange(32.0).reshape(2, 1, 4, 4) / 32
    >>> K = kernel(X)
    >>> K.round(4)
    array([[0.0251, 0.066 ],
           [0.066 , 0.1933]])
    >>> bool((kernel(X[:1], X)[0, 1] == K[0, 1]) and (kernel.diag(X) == K.diagonal()).all())
    True
    """

    def __init__(
        self,
        network: Network,
        device: Device = "auto",
        dtype: str = "float32",
        threads: int | None = None,
        check: bool = True,
    ) -> None:
        layer = as_layer(network, "Kernel: network")
        check_network(layer)
        self.dtype, self.threads = _checked(device, dtype, threads)
        self.network: Network = layer
        self._asked: Device = device
        self.device: Literal["cpu", "cuda"] = _pick_device(device)
        self._engines: dict[tuple[int, ...], Engine] = {}
        if not isinstance(check, bool):
            raise ValueError(f"Kernel: check={check!r} is not True or False")
        self.check = check
        self._verdicts: dict[tuple[int, ...], Verdict] = {}
        self._fingerprint = layer.fingerprint if has_bare_function(layer) else None

    def __call__(self, X: Any, Z: Any = None, *, output: Output = "numpy", progress: bool = True) -> Any:
        """K(X, Z), shape (N, M); K(X, X) with its exact diagonal where Z is not given.

        `output` asks for a "numpy", "cupy" or "torch" array. A progress bar appears on a terminal after two seconds.
        """
        check_output(output)
        x = self._images(X, "X")
        engine = self.engine_for(x.shape[1:])
        if self.check:
            self._verify(x)
        n = len(x)
        if Z is None:
            with _progress(n * (n - 1) // 2, progress) as advance:
                return engine.symmetric(_flat(x), output, advance)
        z = self._images(Z, "Z")
        if x.shape[1:] != z.shape[1:]:
            raise DataError(f"X holds images of shape {x.shape[1:]} and Z of shape {z.shape[1:]}; they must agree")
        engine.diagonal(_flat(x))
        engine.diagonal(_flat(z))
        with _progress(n * len(z), progress) as advance:
            return engine.cross(_flat(x), _flat(z), output, advance)

    def diag(self, X: Any) -> NDArray[Any]:
        """K(x, x) for each image: the diagonal of `kernel(X)`, at the cost of N images and not N² pairs."""
        x = self._images(X, "X")
        return self.engine_for(x.shape[1:]).diagonal(_flat(x)).astype(self.dtype)

    def prepare(self, X: Any) -> float:
        """Compile what `kernel(X)` needs, or load it where that was done before; returns the seconds it took.

        Any call does so by itself when it has to. It is for those who want to know what of the time is whose.
        """
        begun = time.perf_counter()
        x = self._images(X[:2], "X")
        self.engine_for(x.shape[1:]).symmetric(_flat(x))
        if self.check:
            self._verify(self._images(X[:LOOKED_AT], "X"))
        return time.perf_counter() - begun

    def verify(self, X: Any) -> Verdict | None:
        """Compare two of these images with the float64 reference, unless that was done for their shape before.

        Every matrix begins with it where `check` is True. None where the images tell nothing, such as blank ones.

        >>> import numpy as np
        >>> from cnngp import Dense, Kernel
        >>> verdict = Kernel(Dense(), device="cpu").verify(np.eye(3))
        >>> verdict.error < 1e-6
        True
        """
        return self._verify(self._images(X[:LOOKED_AT], "X"))

    def verdict(self, input_shape: Sequence[int]) -> Verdict | None:
        """What was found for images of this shape; None where nothing was compared yet."""
        return self._verdicts.get(tuple(input_shape))

    def _verify(self, x: Any) -> Verdict | None:
        shape = tuple(x.shape[1:])
        if shape not in self._verdicts:
            key = verdicts.key(self.network, shape, self.engine_for(shape).identity)
            found = verdicts.known(key)
            if found is None:
                found = compared(
                    self.network, np.dtype(self.dtype), self.engine_for, lambda pair: self._images(pair, "X"), x
                )
                if found is not None:
                    verdicts.keep(key, found)
            if found is None:
                return None
            self._verdicts[shape] = found
        return self._verdicts[shape]

    def engine_for(self, input_shape: Sequence[int]) -> Engine:
        """The engine that runs this network on images of one shape, made when first asked for."""
        shape = tuple(input_shape)
        if self._fingerprint is not None and self._fingerprint != self.network.fingerprint:
            raise NetworkError(
                f"a function of {self.network!r} gives other values than when this Kernel was made, and its tables are "
                "of the old ones; make a new Kernel, and let its functions depend on nothing that changes"
            )
        if shape not in self._engines:
            program = lower(self.network, shape)
            if self.device == "cuda":
                from .engines.cuda.engine import CudaEngine

                self._engines[shape] = CudaEngine(program, self.dtype)
            else:
                from .engines.cpu.engine import CpuEngine

                self._engines[shape] = CpuEngine(program, self.dtype, self.threads)
        return self._engines[shape]

    def as_sklearn(self, input_shape: Sequence[int]) -> NetworkKernel:
        """A `sklearn.gaussian_process.kernels.Kernel` on flat rows, for GaussianProcessRegressor, SVC, KernelRidge.

        >>> from cnngp import Dense, Kernel
        >>> Kernel(Dense(), device="cpu").as_sklearn((1, 2, 2))([[1.0, 0.0, 0.0, 2.0]])
        array([[1.25]])
        """
        from .sklearn_kernel import NetworkKernel

        return NetworkKernel(self.network, tuple(input_shape), self._asked, self.dtype, self.threads, self.check)

    def _images(self, X: Any, name: str) -> Any:
        images = as_images(X, np.dtype(self.dtype), name, on_gpu=self.device == "cuda")
        check_pixels(images, np.dtype(self.dtype), name)
        return images

    def __repr__(self) -> str:
        threads = "" if self.threads is None else f", threads={self.threads}"
        check = "" if self.check else ", check=False"
        return f"Kernel({self.network!r}, device={self.device!r}, dtype={self.dtype!r}{threads}{check})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Kernel, (self.network, self._asked, self.dtype, self.threads, self.check)


def as_kernel(
    network: Network | Kernel, device: Device = "auto", dtype: str = "float32", threads: int | None = None
) -> Kernel:
    """A `Kernel` as it is, or one made of a network.

    A `Kernel` has its own device, precision and threads: other ones beside it are refused. The default dtype asks for
    nothing, so it goes with a `Kernel` of either.
    """
    if not isinstance(network, Kernel):
        return Kernel(network, device, dtype, threads)
    dtype, threads = _checked(device, dtype, threads)
    settings: tuple[tuple[str, object, object, object], ...] = (
        ("device", device, "auto", network.device),
        ("dtype", dtype, "float32", network.dtype),
        ("threads", threads, None, network.threads),
    )
    for name, value, default, own in settings:
        if value not in (default, own):
            raise ValueError(
                f"{name}={value!r}, but the Kernel that was given has {name}={own!r}; make it with "
                f"Kernel(network, {name}={value!r}), or give the network"
            )
    return network


def _checked(device: object, dtype: Any, threads: Any) -> tuple[str, int | None]:
    """The type's name, and the threads as an int; refused where they, or the device, are none."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"Kernel: device={device!r} is not 'auto', 'cpu' or 'cuda'")
    try:
        name = str(np.dtype(dtype))
    except TypeError:
        name = ""
    if dtype is None or name not in DTYPES:
        raise ValueError(f"Kernel: dtype={dtype!r} is not 'float32' or 'float64'")
    if threads is None:
        return name, None
    if not is_whole(threads, least=1):
        raise ValueError(f"Kernel: threads={threads!r} is not a positive integer or None")
    return name, int(threads)


def _flat(x: Any) -> Any:
    """(N, C, …) → (N, C, locations)."""
    return x.reshape(x.shape[0], x.shape[1], -1)


def _pick_device(device: Device) -> Literal["cpu", "cuda"]:
    if device == "cpu" or (device == "auto" and importlib.util.find_spec("cupy") is None):
        return "cpu"
    from .engines.cuda import engine as cuda

    if device == "auto":
        return "cuda" if cuda.available() else "cpu"
    cuda.require()
    return "cuda"


@contextmanager
def _progress(pairs: int, wanted: bool) -> Iterator[Callable[[int], None] | None]:
    if not wanted:
        yield None
        return
    with progress_bar(pairs, "kernel", "pair") as bar:
        yield bar.update


__all__ = ["DataError", "Kernel", "NetworkError", "as_kernel"]
