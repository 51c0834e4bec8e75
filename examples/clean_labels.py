"""Find and correct wrong labels by leave-one-out, without fitting again for each image."""

# region imports
import sys
from pathlib import Path

import numpy as np

from cnngp import GPClassifier, datasets, zoo

# endregion


def main(pictures: Path | None = None) -> dict[str, float]:
    # region spoil
    data = datasets.digits().take(train=1000)
    rng = np.random.default_rng(0)
    wrong = rng.permutation(len(data.y))[:20]  # 20 labels in 1,000 are made wrong
    y = data.y.copy()
    y[wrong] = (y[wrong] + rng.integers(1, 10, len(wrong))) % 10
    # endregion

    # region suspects
    clf = GPClassifier(zoo.small_cnn()).fit(data.X, y)
    suspects = clf.suspect_labels(20)  # the most suspect first
    for row, given, proposed, score in zip(*(suspects[k] for k in ("row", "given", "proposed", "score")), strict=True):
        print(f"image {row:4}: labelled {given}, looks like {proposed} (doubt {score:.4f})")
    # endregion
    found = np.isin(suspects["row"], wrong).mean()
    print(f"{found:.0%} of them are labels that were made wrong")

    # region clean
    clean = y.copy()
    clean[suspects["row"]] = suspects["proposed"]  # or look at them first: cnngp view
    again = GPClassifier(zoo.small_cnn()).fit(data.X, clean)
    before, after = (1 - c.score(data.X_test, data.y_test) for c in (clf, again))
    print(f"test error {before:.1%} before, {after:.1%} after")
    # endregion
    if pictures:
        from photographs import sheet

        pictures.mkdir(parents=True, exist_ok=True)
        sheet(data.X[suspects["row"][:10]], 10, scale=8).save(pictures / "suspects.png")
    # region why
    why = again.explain(data.X_test[:1])[0]
    print(why)
    # endregion
    return {"precision": float(found), "before": before, "after": after}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
