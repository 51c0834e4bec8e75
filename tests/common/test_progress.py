"""The progress bar: drawn while a step takes long, and taken away for a line of text."""

import io
import sys
import time

import pytest

from cnngp.common.progress import beside_bars, duration, progress_bar


def test_a_bar_is_drawn_while_a_step_takes_long_and_gives_way_to_text(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar(2, "reading", "image", delay=0.1):
        time.sleep(0.5)
        assert "reading:   0%" in terminal.getvalue()
        with beside_bars(sys.stderr):
            assert terminal.getvalue().endswith("\r")  # the line is empty
            print("a line", file=sys.stderr)
    assert "reading:   0%" in terminal.getvalue().partition("a line\n")[2]


@pytest.mark.parametrize(
    ("seconds", "said"), [(3.214, "3.21 s"), (43.04, "43.0 s"), (250, "4 min"), (13_210, "3 h 40 min")]
)
def test_times_are_told_in_as_many_digits_as_matter(seconds: float, said: str) -> None:
    assert duration(seconds) == said
