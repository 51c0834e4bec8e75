"""Prediction sets with guaranteed coverage: sets of classes for images, and intervals for numbers."""

# region imports
import numpy as np
from sklearn.datasets import load_diabetes

from cnngp import GPClassifier, GPRegressor, Kernel, datasets, zoo

# endregion


def main(draws: int = 50) -> dict[str, float]:
    # region fit
    data = datasets.digits()
    few = data.take(train=100, test=500)
    clf = GPClassifier("small_cnn", noise="loo").fit(few.X, few.y)
    print(f"error {1 - clf.score(few.X_test, few.y_test):.1%}")
    # endregion

    # region sets
    for coverage in (0.8, 0.9, 0.95):
        sets = clf.predict_set(few.X_test, coverage=coverage)  # a mask (500, 10), in the order of clf.classes_
        right = sets[np.arange(500), few.y_test].mean()
        none, one = ((sets.sum(1) == n).mean() for n in (0, 1))
        several = 1 - none - one
        print(f"asked {coverage:.0%}, right {right:.1%}: one class {one:.0%}, several {several:.0%}, none {none:.0%}")

    sizes = clf.predict_set(few.X_test, coverage=0.95).sum(1)
    for row in np.flatnonzero(sizes == 2)[:3]:  # these go to a person, with the two answers to choose from
        names = clf.classes_[clf.predict_set(few.X_test[row : row + 1], coverage=0.95)[0]]
        print(f"image {row}: {' or '.join(map(str, names))} (it is {few.y_test[row]})")
    # endregion
    found = {"one draw": float(right)}

    # region promise
    K = Kernel(zoo.small_cnn())(data.X[:600])  # once, for all draws
    rng = np.random.default_rng(0)
    held = {"right labels": [], "a third of the labels random": []}
    for _ in range(draws):
        rows = rng.permutation(600)
        train, new = rows[:100], rows[100:]
        spoilt = np.where(rng.random(600) < 1 / 3, rng.integers(0, 10, 600), data.y[:600])
        for name, y in zip(held, (data.y[:600], spoilt), strict=True):
            model = GPClassifier(noise=0.1).fit(K=K[np.ix_(train, train)], y=y[train])
            sets = model.predict_set(K=K[np.ix_(new, train)], diagonal=K.diagonal()[new], coverage=0.9)
            held[name].append(sets[np.arange(500), y[new]].mean())
    for name, shares in held.items():
        print(f"{name}: right in {np.mean(shares):.1%} of the cases, from draw to draw {np.std(shares):.1%}")
    # endregion
    found |= {"right": float(np.mean(held["right labels"])), "spoilt": float(np.mean(shares))}

    # region unlike
    more = data.take(train=300, test=500)
    clf = GPClassifier("small_cnn", noise="loo").fit(more.X, more.y)
    shuffled = rng.permuted(few.X_test.reshape(500, 64), axis=1).reshape(few.X_test.shape)
    for name, images in (("digits", few.X_test), ("shuffled pixels", shuffled)):
        none = (clf.predict_set(images, coverage=0.9).sum(1) == 0).mean()
        print(f"{name}: none of the classes for {none:.0%}")
    # endregion
    found["none"] = float(none)

    # region interval
    X, y = load_diabetes(return_X_y=True)  # ten measurements of a patient, and the disease a year later
    rows = rng.permutation(len(X))
    reg = GPRegressor(noise="loo", normalize_y=True).fit(X[rows[:300]], y[rows[:300]])
    interval = reg.predict_interval(X[rows[300:]], coverage=0.9)  # (142, 2)
    right = (interval[:, 0] <= y[rows[300:]]) & (y[rows[300:]] <= interval[:, 1])
    print(f"right in {right.mean():.0%}; intervals are {np.median(interval[:, 1] - interval[:, 0]):.0f} wide")
    print(f"targets alone would need {np.diff(np.quantile(y, (0.05, 0.95)))[0]:.0f}")
    # endregion
    return found | {"interval": float(right.mean())}


if __name__ == "__main__":
    main()
