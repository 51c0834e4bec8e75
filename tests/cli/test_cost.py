"""What a kernel will take is told before the work, and one of hours is warned of."""

from __future__ import annotations

import numpy as np
import pytest

from cnngp import Kernel, zoo
from cnngp.cli import cost
from cnngp.cli.output import one_command


def test_only_long_work_is_measured_and_only_hours_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    X = np.random.default_rng(0).random((8, 1, 8, 8)).astype(np.float32)
    kernel = Kernel(zoo.small_cnn(), device="cpu", threads=1)
    monkeypatch.setattr("cnngp.matrix.plan.measured_rate", lambda rows, side: 1000.0)
    with one_command():  # with the options of no other
        cost.tell_cost(kernel, X, 28)
        assert capsys.readouterr().out == ""
        cost.tell_cost(kernel, X, 600_000_000)
        told = capsys.readouterr()
        assert "about 166.7 h for 600,000,000 pairs" in told.out
        assert "more than an hour" in told.out + told.err
        monkeypatch.setattr("cnngp.matrix.plan.measured_rate", lambda rows, side: 1e6)
        cost.tell_cost(kernel, X, 600_000_000)
        told = capsys.readouterr()
        assert "about 10 min for" in told.out
        assert "hour" not in told.out + told.err
