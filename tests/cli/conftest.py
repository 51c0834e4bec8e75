"""Commands as a user types them, and models and pictures to use them on."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from cnngp.cli import run

FEW = "classify --network small_cnn --train 40 --test 20"


class Said(NamedTuple):
    out: str
    err: str

    @property
    def json(self) -> Any:
        """With --json, all of standard output."""
        return json.loads(self.out)

    def line(self, name: str) -> str:
        """What is said under a name."""
        found = [line for line in f"{self.out}\n{self.err}".splitlines() if line.startswith(f"{name} ")]
        assert len(found) == 1, found
        return found[0].removeprefix(name).strip()


Command = Callable[..., Said]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a line of words, without `cnngp`, which exits with 0."""

    def go(words: str, code: int = 0) -> Said:
        capsys.readouterr()
        found = run(shlex.split(words))
        said = Said(*capsys.readouterr())
        assert found == code, said.err
        return said

    return go


@pytest.fixture
def refused(command: Command) -> Callable[..., str]:
    """The one line of a command that is not possible (exit code 1), or that is typed wrongly (2)."""

    def go(words: str, code: int = 1) -> str:
        said = command(words, code)
        assert said.err.startswith("error: ")
        assert said.err.count("\n") == 1
        return said.err

    return go


@pytest.fixture(scope="session")
def classified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    words = f"classify --train 200 --test 100 --network small_cnn --output {folder} --quiet"
    assert run(shlex.split(words)) == 0
    return folder


def slanted(
    folder: Path,
    n: int = 12,
    suffix: str = "png",
    broken: bool = False,
    names: tuple[str, str] = ("flat", "steep"),
    stem: str = "",
) -> Path:
    """Two classes of grey pictures of various widths, with slanted and upright stripes; one that cannot be read."""
    rng = np.random.default_rng(0)
    for k, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for i in range(n):
            stripes = np.indices((12, 12 + i % 3))[k] // 2 % 2
            pixels = rng.uniform(0, 60, stripes.shape) + 150 * stripes
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{stem}{i:02}.{suffix}")
    if broken:
        (folder / names[0] / "broken.png").write_bytes(b"hello")
    return folder


def discs(folder: Path, n: int = 40) -> Path:
    """A table of grey pictures of discs, with their radius in thousandths and a column of words."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    rows = ["file,radius,colour"]
    for i, radius in enumerate(rng.uniform(0.1, 0.45, n)):
        y, x = (np.indices((12, 12)) - 5.5) / 12
        pixels = 200.0 * (x**2 + y**2 < radius**2) + rng.uniform(0, 20, (12, 12))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i:02}.png")
        rows.append(f"{i:02}.png,{1000 * radius:.1f},grey")
    (folder / "discs.csv").write_text("\n".join(rows) + "\n")
    return folder / "discs.csv"


def signals(path: Path, flat: bool = False) -> Path:
    """Sines of two frequencies."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    X = np.sin(np.linspace(0, 1, 32) * 2 * np.pi * (2 + 3 * y[:, None])) + rng.normal(0, 0.2, (60, 32))
    np.savez(path, X=X if flat else X[:, None], y=y)
    return path
