"""Files and classes with names of any kind, from a folder to the report, the tables and new predictions."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cnngp import GPClassifier, datasets
from cnngp.cli import run
from cnngp.common.tables import csv_cell, printable, read_csv
from cnngp.report import apply_decisions
from cnngp.report.viewer.answers import Answers
from cnngp.report.viewer.decisions import Decisions

CLASSES = (os.fsdecode(b"caf\xe9"), "=1+1\r", "naïve $x_$ <b>\x1b[2J")


def test_names_of_any_kind_come_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng, folder = np.random.default_rng(0), tmp_path / os.fsdecode(b"p\xe9ts")
    for k, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for i in range(8):
            pixels = rng.integers(0, 60, (8, 8), dtype=np.uint8)
            pixels[2 * k : 2 * k + 3] += 150
            Image.fromarray(pixels).save(folder / name / os.fsdecode(f"@{i}\n".encode() + b"\xff.png"))
    out, table = tmp_path / "out", tmp_path / "suspects.csv"
    words = [
        "classify",
        "--data",
        str(folder),
        "--network",
        "small_cnn",
        "--output",
        str(out),
        "--suspects",
        str(table),
    ]
    assert run(words) == 0
    new = str(next((folder / CLASSES[0]).iterdir()))
    assert run(["predict", str(out / "model.gp"), new]) == 0
    printed = "".join(capsys.readouterr())
    page = (out / "report.html").read_text(encoding="utf-8")
    for text in (printed, page, table.read_text(encoding="utf-8")):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text)
    assert r"caf\xe9" in page
    assert printable(new) in printed

    held = datasets.load(folder)
    heads, rows = read_csv(table)
    assert {csv_cell(row[heads.index("name")]) for row in rows} == set(held.names)
    assert {csv_cell(row[heads.index("given")]) for row in rows} == set(held.y) == set(CLASSES)
    answers = Answers(GPClassifier.load(out / "model.gp"), "m", Decisions(out / "model.labels.csv"), suspects=5)
    first = answers.model()["suspects"][0]
    answers.decide({"row": first["row"], "decision": "relabel", "label": answers.model()["classes"][0]})
    _, labels = apply_decisions(out / "model.labels.csv", held.X, held.y, held.names)
    assert labels[first["row"]] == min(CLASSES)
