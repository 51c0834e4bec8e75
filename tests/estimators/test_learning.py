"""Learned variances: the gradient is that of the loss, what is found is better, and the rest of a fit is as it was."""

import math
from typing import Any

import numpy as np
import pytest

from cnngp import (
    GELU,
    Conv,
    Dense,
    Elementwise,
    GPClassifier,
    GPRegressor,
    Identity,
    Kernel,
    LeakyReLU,
    NetworkError,
    RangeError,
    Rbf,
    ReLU,
    Sequential,
    Step,
    Sum,
    datasets,
)
from cnngp.estimators import Learning
from cnngp.estimators import learning as module
from cnngp.estimators.labels import ClassTargets, Coding
from cnngp.estimators.learning import Problem, groups_of, moved
from cnngp.estimators.training_images import balanced
from cnngp.gp.checks import MatrixError
from cnngp.gp.exact import ExactGP
from cnngp.kernel import kernel as kernel_module
from cnngp.network import Network  # fmt: skip
from helpers import fake_cards
from helpers.cuda_on_cpu import needs_compiler
from helpers.fake_cards import Cards

DATA = datasets.digits().take(60, 80)
X, Y = DATA.X[:, :, ::2, ::2], 2.0 * np.eye(10)[DATA.y] - 1.0
BIASED = Sequential(Conv(3, bias_var=0.1), ReLU(), Conv(2, bias_var=0.1), ReLU(), Dense(bias_var=0.2))
PLAIN = Sequential(Conv(3), ReLU(), Dense())
RESIDUAL = Sequential(Conv(3), Sum(Identity(), Sequential(ReLU(), Conv(3))), ReLU(), Dense())
QUICK = Learning("loo", images=40, starts=1, steps=5)


def kernel(network: Network) -> Kernel:
    return Kernel(network, "cpu", "float64", check=False)


def fitted(network: Network = BIASED, **options: Any) -> GPClassifier:
    return GPClassifier(network, device="cpu", **({"learn": QUICK} | options)).fit(X, DATA.y)


def positive(network: Network, values: Any, tied: bool = True) -> Any:
    """The groups that have a logarithm."""
    return [group for group in groups_of(network, values, tied) if values[group.members[0]] > 0.0]


def directions(kernel: Kernel, images: Any, values: Any, groups: Any, scale_counts: bool = False) -> Any:
    """The directions that a search goes in; those of a factor count where the amplitude is a number."""
    problem = Problem(kernel, images, np.ones((len(images), 1)), "loo", 0.0, 1.0 if scale_counts else "ml", None)
    return problem.free_directions(values, groups, kernel.dtype)


# ---- groups and directions -------------------------------------------------------------------------------------------


def test_layers_of_a_kind_are_tied_branches_on_their_own() -> None:
    net = Sequential(Conv(3), Sum(Identity(), Sequential(ReLU(), Conv(3), ReLU(), Conv(3))), ReLU(), Dense(2.0, 0.1))
    groups = groups_of(net, net.parameters(), tied=True)
    assert [(group.name, len(group.members)) for group in groups] == [
        ("Conv weight_var", 1),
        ("Conv bias_var", 1),
        ("Conv weight_var in branches", 2),
        ("Conv bias_var in branches", 2),
        ("Dense weight_var", 1),
        ("Dense bias_var", 1),
    ]
    alone = groups_of(net, net.parameters(), tied=False)
    assert all(group.members == (group.name,) for group in alone)
    assert len(alone) == sum(name.endswith("_var") for name in net.parameters())
    net = Sequential(Conv(3, bias_var=0.1), ReLU(), Conv(3), ReLU(), Dense())
    conv = groups_of(net, net.parameters(), tied=True)[1]
    assert conv.members == ("layers[0].bias_var",)  # a zero among others is no member


@pytest.mark.parametrize(
    ("network", "tied", "free"),
    [
        (PLAIN, True, 0),  # a ReLU network without biases: every weight is a scale
        (RESIDUAL, True, 1),  # branch to skip
        (BIASED, True, 3),  # of two weights and two biases, the last layer's are a scale together
        (BIASED, False, 3),  # six variances; each layer's scale can be undone by the next, and the last is a scale
        (Sequential(Conv(3), GELU(), Dense()), True, 1),  # the scale of its input counts for a GELU
        (Sequential(Dense(), Rbf(50.0), Dense()), True, 1),  # what its weights do beside a scale, gamma does
    ],
    ids=["plain", "residual", "biased", "biased, untied", "GELU", "RBF"],
)
def test_directions_that_only_scale_the_kernel_are_left_out(network: Network, tied: bool, free: int) -> None:
    values = network.parameters()
    groups = positive(network, values, tied)
    basis = directions(kernel(network), X, values, groups)
    assert basis.shape == (len(groups), free)
    rough = directions(Kernel(network, "cpu", "float32"), X, values, groups)
    assert min(free, 1) <= rough.shape[1] <= free  # float32 misses what changes the kernel least
    np.testing.assert_allclose(basis @ (basis.T @ rough), rough, atol=0.05)
    K = kernel(network)(X[:10])
    rng = np.random.default_rng(0)
    for _ in range(3):  # whatever is left out is a scale far away too, and what is kept is none
        direction = rng.standard_normal(len(groups))
        still = direction - basis @ (basis.T @ direction)
        K_still = kernel(network.with_parameters(moved(values, groups, 2.0 * still)))(X[:10])
        np.testing.assert_allclose(K_still * (K[0, 0] / K_still[0, 0]), K, rtol=1e-9)
        if free:
            K_moved = kernel(network.with_parameters(moved(values, groups, basis @ rng.standard_normal(free))))(X[:10])
            assert np.abs(K_moved * (K[0, 0] / K_moved[0, 0]) / K - 1.0).max() > 1e-3


def test_biases_that_drown_the_images_are_no_scale() -> None:
    """With pixels a thousand times as small, the images change the kernel by 1e-7 of it: enough to learn from."""
    small = 1e-3 * X
    values = BIASED.parameters()
    groups = groups_of(BIASED, values, True)
    assert directions(kernel(BIASED), small, values, groups).shape[1] >= 1
    clf = GPClassifier(BIASED, device="cpu", learn=Learning("loo", starts=1)).fit(small, DATA.y)
    assert clf.learned_.left_out == ()
    assert clf.learned_.after < 0.7 * clf.learned_.before


def test_where_the_scale_counts_it_is_learned() -> None:
    values = PLAIN.parameters()
    groups = positive(PLAIN, values, True)
    assert directions(kernel(PLAIN), X, values, groups, scale_counts=True).shape == (2, 1)
    y = X.mean((1, 2, 3))  # something that the network can say, and no noise
    reg = GPRegressor(PLAIN, amplitude=1.0, learn="likelihood", device="cpu").fit(X, 100.0 * y)
    assert kernel(reg.network_).diag(X).mean() > 50.0 * kernel(PLAIN).diag(X).mean()


# ---- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [False, True], ids=["one label", "several"])
def test_the_loss_of_classes_has_the_gradient_of_finite_differences(several: bool) -> None:
    rng = np.random.default_rng(1)
    coding = Coding(np.arange(3), several=True) if several else Coding(np.arange(3))
    targets = 2.0 * (rng.random((30, 3)) < 0.4) - 1.0 if several else 2.0 * np.eye(3)[rng.integers(0, 3, 30)] - 1.0
    mean = targets + rng.normal(0.0, 1.5, targets.shape)
    judge = ClassTargets(coding, np.zeros((1, 3)) if several else np.zeros(1, int)).slopes
    _, by_mean = judge(mean, targets)
    for _ in range(4):
        D = rng.standard_normal(mean.shape)
        h = 1e-3
        up, down = (judge(mean + s * h * D, targets)[0] for s in (1, -1))
        # The temperature is found to a thousandth, which leaves some 1e-4 of its own slope in a difference.
        assert (up - down) / (2 * h) == pytest.approx(float((by_mean * D).sum()), rel=1e-3, abs=2e-5)


@pytest.mark.parametrize("noise", [0.0, 0.05], ids=["learned noise", "given noise"])
@pytest.mark.parametrize("rule", ["likelihood", "loo"])
def test_slopes_are_those_of_the_loss(rule: Any, noise: float) -> None:
    problem = Problem(kernel(BIASED), X[:20], Y[:20], rule, noise, "ml", None)
    values, log_noise = BIASED.parameters(), math.log(0.02)
    groups = groups_of(BIASED, values, tied=True)

    def loss(factors: Any, more_noise: float = 0.0) -> float:
        K = problem.matrix(kernel(BIASED.with_parameters(moved(values, groups, factors))))
        return problem.judge(K, log_noise + more_noise).loss

    found = problem.judge(problem.matrix(kernel(BIASED)), log_noise)
    h = 1e-4
    differences = [(loss(h * along) - loss(-h * along)) / (2 * h) for along in np.eye(len(groups))]
    slopes = problem.slopes(kernel(BIASED), groups, found.by_matrix)
    np.testing.assert_allclose(slopes, differences, rtol=1e-5, atol=1e-8)
    still = np.zeros(len(groups))
    assert (loss(still, h) - loss(still, -h)) / (2 * h) == pytest.approx(found.by_noise, rel=1e-5, abs=1e-8)


def test_likelihood_finds_what_the_data_were_drawn_from() -> None:
    """Functions drawn from one network's process, learned from another: at least as likely as under the truth.

    The losses that are reported are those of the two networks.
    """
    truth = Sequential(Dense(1.0, 0.02), ReLU(), Dense(1.0, 2.0))
    wrong = Sequential(Dense(1.0, 1.0), ReLU(), Dense(1.0, 0.1))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((80, 3))
    K = kernel(truth)(x)
    noise = 0.01 * float(K.diagonal().mean())
    draws = np.linalg.cholesky(K + noise * np.eye(80)) @ rng.standard_normal((80, 6))
    every = Learning("likelihood", tied=False)
    reg = GPRegressor(wrong, learn=every, dtype="float64", device="cpu").fit(x, draws)
    true_loss = -ExactGP(K, draws, noise=noise).log_marginal_likelihood / draws.size
    learned = reg.learned_
    assert learned.before > true_loss + 0.02
    assert learned.after < true_loss + 0.002
    assert learned.noise == pytest.approx(0.01, rel=0.5)
    for network, share, loss in (
        (learned.network_before, learned.noise_before, learned.before),
        (learned.network, learned.noise, learned.after),
    ):
        K = kernel(network)(x)
        gp = ExactGP(K, draws, noise=share * float(K.diagonal().mean()))
        assert loss == pytest.approx(-gp.log_marginal_likelihood / draws.size, abs=1e-6)
    assert reg.log_marginal_likelihood_ == pytest.approx(-learned.after * draws.size, abs=1e-6 * draws.size)


# ---- the estimators --------------------------------------------------------------------------------------------------


def test_a_classifier_learns_and_is_better_left_out() -> None:
    clf = fitted(learn="loo")
    learned = clf.learned_
    assert learned.after < learned.before - 1e-3
    assert learned.network == clf.network_ == clf.kernel_.network
    assert clf.network == learned.network_before == BIASED
    assert min(loss for _, loss in learned.path) == pytest.approx(learned.after, abs=1e-4)
    assert {start for start, _ in learned.path} == {0, 1, 2}
    assert clf.gp_.noise == pytest.approx(learned.noise * float(clf.kernel_.diag(X).mean()))
    assert "leave-one-out loss" in str(learned)
    assert fitted(learn=None).learned_ is None
    values = [v for v in clf.network_.parameters().values() if v not in BIASED.parameters().values()]
    assert values
    assert all(float(f"{v:.{module._DIGITS}g}") == v for v in values)
    a, b, c = (fitted(random_state=seed).learned_ for seed in (3, 3, 4))
    assert (a.network, a.path) == (b.network, b.path)
    assert a.path != c.path  # other images


def test_nothing_to_learn_leaves_the_network_as_it_is_until_a_later_start_opens_its_biases() -> None:
    clf = fitted(PLAIN, learn=Learning("likelihood", starts=1, steps=4))
    assert clf.network_ == PLAIN
    assert clf.learned_.left_out == ("Conv weight_var", "Dense weight_var")
    assert clf.learned_.changes == ()
    clf = fitted(PLAIN, learn=Learning("likelihood", starts=2, steps=8))
    assert clf.network_.parameters()["layers[2].bias_var"] > 0.0
    assert clf.learned_.after < clf.learned_.before


def test_a_noise_that_is_given_stays_and_a_word_is_searched_for_among_all_images() -> None:
    given, word = fitted(noise=0.3), fitted(noise="loo")
    assert given.gp_.noise == 0.3
    assert given.learned_.noise is None
    loss = ClassTargets(word._coding, DATA.y).loss
    expected = ExactGP(word.kernel_(X), Y[:, word.classes_], noise="loo", loss=loss).noise
    assert word.gp_.noise == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("rule", ["likelihood", "loo"])
def test_targets_that_are_mostly_noise_get_as_much_noise_as_without_learning(rule: Any) -> None:
    """More than the mean k(x, x): with less, the model would go on to explain noise."""
    x = np.random.default_rng(1).standard_normal((150, 2))
    truth = np.repeat(x[:, :1], 8, 1)
    y = truth + 3.0 * np.random.default_rng(2).standard_normal(truth.shape)
    net = Sequential(Dense(1.0, 0.1), ReLU(), Dense())
    learning = Learning(rule, starts=1)
    plain = GPRegressor(net, noise={"likelihood": "ml"}.get(rule, rule), device="cpu").fit(x, y)
    reg = GPRegressor(net, learn=learning, device="cpu").fit(x, y)
    assert plain.gp_.noise > 5.0 * plain.kernel_.diag(x).mean()
    assert reg.learned_.noise_before == pytest.approx(plain.gp_.noise / plain.kernel_.diag(x).mean(), rel=0.1)
    assert np.mean((reg.predict(x) - truth) ** 2) < 1.1 * np.mean((plain.predict(x) - truth) ** 2)


def test_interrupted_it_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    original, losses = Problem.judge, []

    def judge(self: Problem, K: Any, log_noise: float) -> Any:
        found = original(self, K, log_noise)
        losses.append(found.loss)
        if len(losses) == 31:  # once: what follows runs to its end
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Problem, "judge", judge)
    with pytest.warns(UserWarning, match="interrupted after .* matrices; the fit goes on with the best") as told:
        clf = fitted(learn=Learning("likelihood", images=40))
    assert [warning.filename for warning in told] == [__file__]  # where `fit` was called
    learned = clf.learned_
    assert learned.interrupted
    assert f"on 40 images, {len(learned.path)} matrices, " in str(learned)
    assert learned.after < learned.before
    assert learned.after == pytest.approx(min(losses[:30]), abs=1e-4)
    assert clf.score(X, DATA.y) > 0.9


def test_a_step_out_of_range_is_turned_back_from(monkeypatch: pytest.MonkeyPatch) -> None:
    original, refused = Problem.matrix, []

    def matrix(self: Problem, kernel: Kernel) -> Any:
        if kernel.network.parameters()["layers[0].weight_var"] > 1.3:
            refused.append(kernel)
            raise RangeError("too large")
        return original(self, kernel)

    monkeypatch.setattr(Problem, "matrix", matrix)
    clf = fitted(learn=Learning("likelihood", images=40, starts=1))
    assert refused
    assert clf.learned_.after < clf.learned_.before
    assert clf.network_.parameters()["layers[0].weight_var"] <= 1.3


@pytest.mark.parametrize(
    ("nonlinearity", "name"), [(Rbf(50.0), "Rbf gamma"), (LeakyReLU(0.2), "LeakyReLU slope"), (Elementwise("tanh"), "")]
)
def test_other_numbers_are_learned_and_limits_respected(nonlinearity: Any, name: str) -> None:
    net = Sequential(Conv(3), nonlinearity, Dense())
    clf = fitted(net, learn=Learning("likelihood", images=20, starts=1, steps=5))
    assert clf.learned_.after < clf.learned_.before
    assert not name or name in {change.name for change in clf.learned_.changes}


def test_images_for_learning_are_balanced() -> None:
    codes = np.repeat([0, 1, 2], [50, 5, 20])
    rows = balanced(np.eye(3)[codes], 21, seed=0)
    assert np.bincount(codes[rows]).tolist() == [8, 5, 8]
    assert (np.diff(rows) > 0).all()
    assert len(balanced(np.random.default_rng(0).random((40, 1)), 30, seed=0)) == 30
    assert len(balanced(np.eye(3)[codes], 1000, seed=None)) == 75


def test_what_cannot_be_is_one_line() -> None:
    for name, wrong in (("rule", "map"), ("images", 2), ("steps", 0.5), ("tied", 1)):
        with pytest.raises(ValueError, match=name):
            Learning(**{name: wrong})  # type: ignore[arg-type]
    # A search would turn back from every step, and give the network back as if nothing were better.
    with pytest.raises(NetworkError, match=r"layers\[1\]: Step\(\) has no gradient"):
        fitted(Sequential(Conv(3), Step(), Dense()))
    for size in (1e200, 1e-200):
        with pytest.raises(MatrixError, match=r"targets of .* are too (large|small) to square in float64; rescale"):
            GPRegressor(BIASED, device="cpu", learn=QUICK).fit(X, size * DATA.y)


@needs_compiler
def test_a_card_compiles_once_whatever_the_variances(monkeypatch: pytest.MonkeyPatch) -> None:
    """And finds what the CPU finds: every loss on the way to within 1e-6."""
    network = Sequential(
        *(Conv(3, bias_var=0.1), Sum(Identity(), Sequential(LeakyReLU(0.2), Conv(2, bias_var=0.1))), ReLU()),
        *(Conv(2), Elementwise("tanh"), Dense(bias_var=0.2)),
    )
    Cards().install(monkeypatch)
    texts: list[str] = []

    def compiled(text: str, *rest: Any, honest: Any = fake_cards.compiled) -> Any:
        texts.append(text)
        return honest(text, *rest)

    def on_host(*given: Any, honest: Any = kernel_module.as_images, **_: Any) -> Any:
        return honest(*given)  # what is on a fake card is written late, and checks of images read it at once

    monkeypatch.setattr(fake_cards, "compiled", compiled)
    monkeypatch.setattr(kernel_module, "as_images", on_host)
    kernels = (Kernel(network, device, "float64") for device in ("cpu", "cuda"))
    problems = (Problem(kernel, X[:8], Y[:8], "likelihood", 0, "ml", None) for kernel in kernels)
    cpu, card = (module.learned(problem, Learning("likelihood", starts=2, steps=3), seed=0) for problem in problems)
    assert card.network != network
    assert len(texts) > len(card.path) > 5
    assert len(set(texts)) == 1
    assert [start for start, _ in card.path] == [start for start, _ in cpu.path]
    np.testing.assert_allclose([loss for _, loss in card.path], [loss for _, loss in cpu.path], rtol=0, atol=1e-6)
    assert card.network.parameters() == pytest.approx(cpu.network.parameters(), rel=1e-3)
