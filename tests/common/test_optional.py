"""What is said where an optional package is missing, in one form for all of them."""

import sys
import tomllib
from pathlib import Path

import pytest

from cnngp.common.optional import _PACKAGES, install_command, need


@pytest.mark.parametrize("package", _PACKAGES)
def test_a_missing_package_is_one_line_that_says_how_to_install_it(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # importing it fails
    name, extra = _PACKAGES[package]
    with pytest.raises(ImportError) as caught:
        need(package, "a bicycle")
    assert str(caught.value) == f'a bicycle needs {name}: pip install "cnngp[{extra}]"'
    assert caught.value.__suppress_context__


def test_the_error_may_be_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(LookupError, match="a figure needs matplotlib"):
        need("matplotlib.figure", "a figure", LookupError)


def test_every_extra_installs_what_it_is_named_for() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for package, (_, extra) in _PACKAGES.items():
        assert any(line.startswith(package) for line in extras[extra]), (package, extra)
        assert install_command(package) == f'pip install "cnngp[{extra}]"'
