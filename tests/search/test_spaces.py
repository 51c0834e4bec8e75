"""Spaces of networks: the paper's own, the pooled one, and mistakes in a space of one's own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution as OneOf
from optuna.distributions import FloatDistribution as Uniform
from optuna.distributions import IntDistribution as Whole
from optuna.trial import FixedTrial

from cnngp import AvgPool, Conv, Dense, ReLU, Sequential, from_json, zoo
from cnngp.search import random_search
from cnngp.search.space import SPACES
from helpers.searches import DIGITS, SMALL, asked, records_of


def test_the_papers_networks_are_in_its_spaces() -> None:
    given = {"weight_var": 2.79, "bias_var": 7.86, "filter_size": 7, "nonlinearity": "relu", "layers": 7}
    assert SPACES["paper-cnn"].build(FixedTrial(given | {"stride": 1, "padding": "same"})) == zoo.convnet()
    given = {"weight_var": 7.27, "bias_var": 4.69, "filter_size": 4, "nonlinearity": "relu", "layers": 9, "skip": 1}
    assert SPACES["paper-residual"].build(FixedTrial(given)) == zoo.residual_cnn()


@pytest.mark.parametrize("layers", range(4, 16))
@pytest.mark.parametrize("skip", [1, 2])
def test_a_residual_network_has_the_layers_it_was_asked_for(layers: int, skip: int) -> None:
    given = {"weight_var": 1.0, "bias_var": 1.0, "filter_size": 3, "nonlinearity": "erf", "layers": layers}
    text = SPACES["paper-residual"].build(FixedTrial(given | {"skip": skip})).to_json()
    assert text.count('"Conv"') == layers
    assert text.count('"Sum"') == (layers - 1) // skip


@pytest.mark.parametrize(("name", "size"), [("paper-cnn", (3, 7)), ("paper-residual", (3, 6))])
def test_the_papers_hyperparameters_are_uniform(name: str, size: tuple[int, int]) -> None:
    draw = asked(0)
    SPACES[name].build(draw)
    shared = {"weight_var": Uniform(0.5, 8.5), "bias_var": Uniform(0.2, 8.2), "filter_size": Whole(*size)}
    own: dict[str, Any] = {"layers": Whole(4, 15), "skip": Whole(1, 2)}
    if name == "paper-cnn":
        own = {"layers": Whole(2, 8), "stride": Whole(1, 3), "padding": OneOf(("same", "valid"))}
    assert draw.distributions == shared | own | {"nonlinearity": OneOf(("relu", "erf"))}


def test_pooled_networks() -> None:
    given = {"nonlinearity": "relu", "biased": True, "bias_ratio": 0.1, "residual": False, "filter_size": 3}
    given |= {"stages": 2, "layers_0": 1, "shrink_0": "pool", "layers_1": 2, "end_pool": "5"}
    c = Conv(3, weight_var=2.0, bias_var=0.1)
    stem, r = Conv(3, weight_var=10.0, bias_var=0.1), ReLU()
    head = (r, AvgPool(5, stride=1), Dense(weight_var=2.0, bias_var=0.1))
    assert SPACES["pooled"].build(FixedTrial(given)) == Sequential(*(stem, r, c, r, AvgPool(2), c, r, c, r, c), *head)
    networks = [SPACES["pooled"].build(asked(k)) for k in range(200)]
    ends = {type(network.layers[-2]).__name__ for network in networks}  # type: ignore[attr-defined]
    assert {"AvgPool", "GlobalAvgPool", "ReLU"} <= ends
    for network in networks[:30]:
        assert '"allow_non_gaussian": true' not in network.to_json()
        assert from_json(network.to_json()) == network


def test_networks_that_cost_too_much_are_drawn_again(tmp_path: Path) -> None:
    cheap = replace(SPACES["pooled"], most_operations=30_000)
    result = random_search(DIGITS, cheap, 3, **SMALL, study=tmp_path / "s.journal")
    assert result.invalid > 0
    for t in result.trials:
        assert t.score.operations == t.network.shapes((1, 8, 8)).cost <= 30_000
        assert f"{t.score.operations:,}" in result.table()
    reasons = str([record.user_attrs["invalid"] for record in records_of(tmp_path / "s.journal", "PRUNED").values()])
    assert "operations a pair of images, and pooled draws networks of at most 30,000" in reasons
