"""A run of `cnngp classify` that tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnngp.cli import run


@pytest.fixture(scope="session")
def classified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    arguments = ["classify", "--train", "200", "--test", "100", "--network", "small_cnn", "--output", str(folder)]
    assert run(arguments) == 0
    return folder
