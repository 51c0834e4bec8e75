"""The benchmark of few labels runs from end to end, on images so small that it is quick."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import small_data


@pytest.mark.slow
def test_every_method_gives_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "rows.json"
    small = ["--data", "digits", "--sizes", "60", "--test", "100", "--device", "cpu"]
    arguments = [*small, "--steps", "100", "--seeds", "1"]
    small_data.main([*arguments, "--json", str(written)])
    rows = {row["method"]: row for row in json.loads(written.read_text())}
    assert list(rows) == list(small_data.METHODS)
    assert all(row["error"] < 0.2 for name, row in rows.items() if name.startswith("GP"))
    assert all(row["error"] < 0.8 for row in rows.values())
    assert rows["GP, default"]["chosen"].startswith("pooled_cnn-large-halved0")
    assert rows["GP, default"]["error"] < rows["RBF SVM"]["error"]
    assert "ResNet, tuned" in capsys.readouterr().out
