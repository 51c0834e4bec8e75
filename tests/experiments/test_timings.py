"""`python -m experiments.timings`: a run from the files to the errors, in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cnngp import zoo
from cnngp.paper import table1
from cnngp.paper.setting import Setting
from experiments import timings, whole_run
from helpers.experiments import cell
from helpers.idx_files import write_as_fashion_mnist


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_as_fashion_mnist(folder / "fashion_mnist")
    return folder


def test_timings_from_the_files_to_the_errors(data_folder: Path, tmp_path: Path) -> None:
    """A process of its own reads the files and ends with the errors that Table 1's piece has."""
    setting = Setting(tmp_path, device="cpu", data=data_folder)
    case = table1.Case("resnet", "ResNet GP", zoo.resnet(8))
    sizes = table1.Table1Plan(100, 40, 60, (case,))
    data = setting.dataset("fashion_mnist", "paper")
    found = timings.run(setting, timings.TimingsPlan(sizes, "fashion_mnist", depth=8), data)
    whole, piece = found["details"]["whole_run"], found["details"]["networks"]["ResNet GP"]
    for key in ("validation_error", "test_error", "loo_error"):
        assert whole[key] == piece[key]
    assert whole["test_error"] < 40
    assert whole["pairs"] == 100 * 99 // 2 + 100 * 100
    timing = whole["timing"]
    parts = [seconds for part, seconds in timing.items() if part not in ("whole", "leave_one_out")]
    assert sum(parts) <= timing["whole"] < whole["seconds"]
    assert cell(found, "ResNet GP", "kernels")["ours"] == piece["kernel_seconds"]
    assert cell(found, "kernels", "seconds")["published"] == 13_200
    assert [p.name for p in timings.draw(found, tmp_path)] == ["timings.png", "timings.svg"]
    json.dumps(found["details"])


def test_a_whole_run_that_fails_says_why(tmp_path: Path) -> None:
    setting = Setting(tmp_path, device="cpu", data=tmp_path)
    told = r"the whole run failed: .*expected 'standard' or|which digits does not have"
    with pytest.raises(RuntimeError, match=told):
        timings._whole_run(setting, timings.TimingsPlan(table1.Table1Plan(10, 10, 10), "digits"))


@pytest.mark.gpu
def test_a_whole_run_on_a_card(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CNNGP_DATA", str(data_folder))
    request = {"data": "fashion_mnist", "depth": 8, "threads": None, "sizes": [100, 40, 60]}
    card, cpu = (whole_run.whole_run({**request, "device": device}) for device in ("cuda", "cpu"))
    assert card["test_error"] == pytest.approx(cpu["test_error"], abs=1.7)
