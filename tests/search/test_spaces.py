"""Spaces of networks: the paper's own, the wide one, and mistakes in a space of one's own."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from optuna.trial import FixedTrial

from cnngp import AvgPool, Conv, Dense, Kernel, ReLU, Sequential, from_json, zoo
from cnngp.search import Draw, Space, SpaceError, random_search
from cnngp.search.space import SPACES
from helpers.searches import DIGITS, SMALL, asked, records_of


def fixed(**given: Any) -> Draw:
    """Given values instead of random ones."""
    return Draw(FixedTrial(given))


def test_the_papers_networks_are_in_its_spaces() -> None:
    given = {"weight_var": 2.79, "bias_var": 7.86, "filter_size": 7, "nonlinearity": "relu", "layers": 7}
    assert SPACES["paper-cnn"].build(fixed(**given, stride=1, padding="same")) == zoo.convnet()
    given = {"weight_var": 7.27, "bias_var": 4.69, "filter_size": 4, "nonlinearity": "relu", "layers": 9}
    assert SPACES["paper-residual"].build(fixed(**given, skip=1)) == zoo.residual_cnn()


@pytest.mark.parametrize("layers", range(4, 16))
@pytest.mark.parametrize("skip", [1, 2])
def test_a_residual_network_has_the_layers_it_was_asked_for(layers: int, skip: int) -> None:
    given = {"weight_var": 1.0, "bias_var": 1.0, "filter_size": 3, "nonlinearity": "erf", "layers": layers}
    text = SPACES["paper-residual"].build(fixed(**given, skip=skip)).to_json()
    assert text.count('"Conv"') == layers
    assert text.count('"Sum"') == (layers - 1) // skip


PAPER = {
    "paper-cnn": {
        "weight_var": (0.5, 8.5),
        "bias_var": (0.2, 8.2),
        "layers": range(2, 9),
        "filter_size": range(3, 8),
        "stride": (1, 2, 3),
        "padding": ("same", "valid"),
        "nonlinearity": ("relu", "erf"),
    },
    "paper-residual": {
        "weight_var": (0.5, 8.5),
        "bias_var": (0.2, 8.2),
        "layers": range(4, 16),
        "filter_size": range(3, 7),
        "skip": (1, 2),
        "nonlinearity": ("relu", "erf"),
    },
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_hyperparameters_are_uniform(name: str) -> None:
    draws = [asked(k) for k in range(400)]
    for draw in draws:
        SPACES[name].build(Draw(draw))
    assert all(list(draw.params) == list(draws[0].params) for draw in draws)
    assert set(draws[0].params) == set(PAPER[name])
    for parameter, expected in PAPER[name].items():
        values = [draw.params[parameter] for draw in draws]
        if parameter.endswith("_var"):
            low, high = expected[0], expected[-1]
            p = scipy.stats.kstest(values, scipy.stats.uniform(low, high - low).cdf).pvalue
        else:
            counts = Counter(values)
            assert set(counts) == set(expected)
            p = scipy.stats.chisquare([counts[v] for v in expected]).pvalue
        assert p > 1e-3, (parameter, p)


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 8, 8), (3, 27, 31), (1, 7, 7)])
def test_every_wide_draw_is_an_exact_network_that_fits(shape: tuple[int, ...]) -> None:
    for number in range(30):
        draw = asked(number)
        network = SPACES["wide"].build(Draw(draw))
        assert '"allow_non_gaussian": true' not in network.to_json()
        assert network.shapes(shape).cost > 0
        assert from_json(network.to_json()) == network


def test_wide_networks_keep_the_variance() -> None:
    """He's scaling: a deep plain network neither dies nor explodes, whatever the slope."""
    X = np.random.default_rng(0).uniform(0, 1, (2, 1, 64, 64))
    given = {"nonlinearity": "leaky", "biased": False, "residual": False, "block_layers": 2, "stem_size": 3}
    given |= {"stages": 2, "last_nonlinearity": False, "dense_hidden": 0, "filter_size_0": 3, "blocks_0": 2}
    given |= {"filter_size_1": 3, "blocks_1": 2, "stride_1": 1}
    for slope in (-1.0, -0.3, 0.2):
        network = SPACES["wide"].build(fixed(**given, slope=slope))
        assert str(network).count("Conv") == 9
        start = Kernel(Sequential(Conv(3, weight_var=10.0), Dense()), device="cpu").diag(X)
        weight = 2.0 / (1.0 + slope**2)
        # The border of zeros takes a few percent; the last Dense has the weights of a layer without its nonlinearity.
        assert Kernel(network, device="cpu").diag(X) / (start * weight) == pytest.approx(1.0, abs=0.2)


def _twice(draw: Draw) -> Sequential:
    return Sequential(Dense(weight_var=draw.real("a", 1.0, 2.0), bias_var=draw.real("a", 1.0, 2.0)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda draw: 5, r"build of the space mine returned 5 \(int\); expected a network such as Sequential"),
        (lambda draw: None, r"returned None \(NoneType\); expected a network"),
        (_twice, r"draws 'a' twice; give each hyperparameter a name of its own"),
        (lambda draw: draw.real("w", 2, 1), r"draws 'w' from 2 to 1; expected the lower end first, both finite"),
        (lambda draw: draw.real("w", 0.0, 1.0, log=True), r"draws 'w' from 0\.0 to 1\.0; expected 0 < the lower end"),
        (lambda draw: draw.real("w", 0.0, math.nan), r"draws 'w' from 0\.0 to nan"),
        (lambda draw: draw.integer("n", 4, 3), r"draws 'n' from 4 to 3"),
        (lambda draw: draw.choice("c", ()), r"draws 'c' from no options"),
    ],
)
def test_a_mistake_in_a_space_is_reported_at_its_first_draw(build: Any, message: str) -> None:
    draws: list[Draw] = []

    def counted(draw: Draw) -> Any:
        draws.append(draw)
        return build(draw)

    with pytest.raises(SpaceError, match=message) as caught:
        random_search(DIGITS, Space("mine", 1, counted, ""), 5, **SMALL)
    assert "\n" not in str(caught.value)
    assert len(draws) == 1


def test_pooled_networks() -> None:
    given = {"nonlinearity": "relu", "biased": True, "bias_ratio": 0.1, "residual": False, "filter_size": 3}
    given |= {"stages": 2, "layers_0": 1, "shrink_0": "pool", "layers_1": 2, "end_pool": "5"}
    c = Conv(3, weight_var=2.0, bias_var=0.1)
    stem, r = Conv(3, weight_var=10.0, bias_var=0.1), ReLU()
    head = (r, AvgPool(5, stride=1), Dense(weight_var=2.0, bias_var=0.1))
    assert SPACES["pooled"].build(fixed(**given)) == Sequential(*(stem, r, c, r, AvgPool(2), c, r, c, r, c), *head)
    ends = Counter(_end(SPACES["pooled"].build(Draw(asked(k)))) for k in range(200))
    assert set(ends) == {"none", "AvgPool", "GlobalAvgPool"}


def _end(network: Any) -> str:
    before = type(network.layers[-2]).__name__
    return before if before.endswith("Pool") else "none"


def test_a_search_shows_what_its_networks_cost() -> None:
    result = random_search(DIGITS, "pooled", 6, **SMALL)
    for t in result.trials:
        assert t.score.operations == t.network.shapes((1, 8, 8)).cost <= 3_000_000
        assert t.score.elements == t.network.shapes((1, 8, 8)).elements
        beaten = any(o.score.operations < t.score.operations and o.error <= t.error for o in result.trials)
        assert (t in result.front) == (not beaten)
        assert f"{t.score.operations:,}" in result.table()
    assert result.as_dict()["front"] == [t.draw for t in result.front]


def test_networks_that_cost_too_much_are_drawn_again(tmp_path: Path) -> None:
    cheap = replace(SPACES["pooled"], most_operations=30_000)
    result = random_search(DIGITS, cheap, 3, **SMALL, study=tmp_path / "s.journal")
    assert result.invalid > 0
    assert max(t.score.operations for t in result.trials) <= 30_000
    reasons = str([record.user_attrs.get("invalid") for record in records_of(tmp_path / "s.journal")])
    assert "operations a pair of images, and pooled draws networks of at most 30,000" in reasons
