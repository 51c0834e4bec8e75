"""Suspect labels: those that the model's own errors do not explain, and decisions about them in a CSV file."""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from cnngp.common import files
from cnngp.common.arrays import to_numpy
from cnngp.common.errors import DatasetError
from cnngp.common.files import write_atomically
from cnngp.common.tables import csv_cell, csv_text, read_csv
from cnngp.estimators.classifier import GPClassifier

Floats = NDArray[np.float64]
# Largest share of a list of suspect labels that the model's own errors may explain: at least half are worth a look.
_BY_ERRORS = 0.5
# The list must also exceed the expected count by this many standard deviations of a Poisson count.
_DEVIATIONS = 2.0
# Shortest list, if that many labels are contradicted: one wrong label among a few hundred proves nothing.
_AT_LEAST = 5
# Standard deviations beyond which the other images contradict a number. Errors have heavier tails than the normal
# distribution, so the expected count is that of Student's distribution with this many degrees of freedom.
_FAR, _FREEDOM = 2.0, 5.0


@dataclass(frozen=True)
class SuspectLabels:
    """Labels worth a look, the most suspect first, as columns `row`, `score`, `given`, `proposed` and `name`."""

    columns: dict[str, NDArray[Any]]
    expected: float
    """Expected number of labels as suspect as the first `beyond_errors` if every label were right."""
    beyond_errors: int
    """Number of labels at the start of the list of which at least half are expected to be wrong."""
    contradicted: int
    """Number of labels less probable than another by leave-one-out, or of numbers far off, for whatever reason."""
    what: str = "label"

    def __len__(self) -> int:
        return len(self.columns["row"])

    @property
    def sentence(self) -> str:
        """Meaning of the list, in a sentence for people."""
        what = self.what
        if not self.contradicted:
            return f"The other images contradict no {what}."
        if not self.beyond_errors:
            many = f"{self.contradicted:,} {what}s are" if self.contradicted > 1 else f"One {what} is"
            how = "less probable than another" if what == "label" else f"more than {_FAR:g} standard deviations off"
            return (
                f"{many} {how} by leave-one-out, about as many as the model's own errors explain; the most doubtful "
                "are shown, and may well be right."
            )
        n, about = self.beyond_errors, f"about {self.expected:.0f}" if self.expected >= 1.0 else "hardly one"
        return (
            f"The others contradict {'the first' if len(self) > n else 'these'} {n:,} {what}{'s' if n > 1 else ''} "
            f"more than the model's own errors explain: with every {what} right, {about} would be on a list like this."
        )


def suspect_labels(model: Any, most: int | None = None) -> SuspectLabels:
    """Labels that the other images contradict: those that the model's own errors do not explain, or the first `most`.

    If every label and the model's probabilities were right, the expected number of labels at least as suspect as one is
    known: with class probability t, Σ_i Σ_c p_ic over all p_ic ≤ t (without the share of labels taken to be random);
    for numbers, N times the tails of Student's distribution. The list ends with the last label at which the observed
    count is twice the expected one and more than chance allows, but contains up to five labels in any case.
    """
    if isinstance(model, GPClassifier):
        what, P, given = "label", model.loo_probabilities_, to_numpy(model.gp_.leave_one_out().targets).argmax(1)
        noise = float(model.label_noise_)
        clean = np.clip((P - noise / P.shape[1]) / max(1.0 - noise, 1e-12), 0.0, 1.0)
        every = np.sort(clean.ravel())
        total = np.concatenate([[0.0], np.cumsum(every)])
        expected = total[np.searchsorted(every, np.sort(clean[np.arange(len(P)), given]), "right")]
        contradicted = int(np.count_nonzero(P.argmax(1) != given))
    else:
        what, scores = "number", model.suspect_labels(len(model.loo_rows_))["score"]
        expected = len(scores) * 2.0 * stdtr(_FREEDOM, -scores * np.sqrt(_FREEDOM / (_FREEDOM - 2.0)))
        contradicted = int(np.count_nonzero(scores > _FAR))
    seen = np.arange(1, len(expected) + 1)
    by_chance = expected + _DEVIATIONS * np.sqrt(expected)
    fits = np.flatnonzero((expected <= _BY_ERRORS * seen) & (by_chance <= seen))
    beyond = min(int(fits[-1]) + 1 if len(fits) else 0, contradicted)
    n = max(beyond, min(contradicted, _AT_LEAST)) if most is None else min(most, len(expected))
    columns = {name: column[:n] for name, column in model.suspect_labels(max(n, 1)).items()}
    return SuspectLabels(columns, float(expected[beyond - 1]) if beyond else 0.0, beyond, contradicted, what)


# ---- decisions ----

ACTIONS = ("keep", "relabel", "drop")
COLUMNS = ("row", "name", "given", "proposed", "decision", "label", "image")
Line = dict[str, str]


def fingerprint(image: NDArray[Any]) -> str:
    """Hash of an image's pixels, whatever their dtype; begins with a letter, so that spreadsheets keep it as text."""
    pixels = np.ascontiguousarray(image, dtype=np.float32) + np.float32(0.0)  # adding 0 turns −0 into 0
    return f"x{hashlib.blake2b(pixels.tobytes(), digest_size=8).hexdigest()}"


class Decisions:
    """Decisions about images X with labels y, by row, kept in the file `path`, which may exist already.

    Several people may work on a long list, at several times and in a spreadsheet: the file is read again, under a lock,
    before each change, and only the line of that decision changes. A decision is about one image with one label, not
    about a row: after a fit of other images, or of one more, the row may hold another image. So each line has a
    fingerprint of its image, and applies only to that image.
    """

    def __init__(self, path: Path, X: Any, y: Sequence[Any] | NDArray[Any], names: Any = None) -> None:
        self.path, self._lock = path, path.with_name(f".{path.name}.lock")
        self._images = [fingerprint(image) for image in X]
        self._given = [str(label) for label in y]
        self._names = [""] * len(self._given) if names is None else [str(name) for name in names]
        self._rows: dict[tuple[str, str], list[int]] = defaultdict(list)
        for row, (image, given) in enumerate(zip(self._images, self._given, strict=True)):
            self._rows[image, given.removesuffix(".0")].append(row)
        self.lines: dict[int, Line] = {}
        self.others: list[Line] = []
        """Lines about other images, which are kept in the file."""
        self.refresh()

    def __len__(self) -> int:
        return len(self.lines)

    def refresh(self) -> None:
        """Read the file again, because other viewers and people may have changed it."""
        lines, others = {}, []
        for line in _read(self.path) if self.path.exists() else []:
            row, rows = int(line["row"]), self._rows.get((line["image"], line["given"].removesuffix(".0")), [])
            if row not in rows:  # the image moved to another row; among equal images, take the one with this name
                if len(rows) > 1:
                    rows = [other for other in rows if self._names[other] == line["name"] != ""]
                row = rows[0] if len(rows) == 1 else -1
            if row < 0 or row in lines:
                others.append(line)
            else:
                lines[row] = line | {"row": str(row)}
        self.lines, self.others = lines, others

    def set_others_aside(self) -> None:
        """If the file has decisions about other images, rename it with a warning, and start a new file without them."""
        with files.exclusive(self._lock, str(self.path)):
            self.refresh()
            if not self.others:
                return
            free = (self.path.with_name(f"{self.path.name}.old-{number}") for number in itertools.count(1))
            aside = self.path.rename(next(name for name in free if not name.exists()))
            n = len(self.others)
            warnings.warn(
                f"{n} of {n + len(self.lines)} decisions in {self.path} {'is' if n == 1 else 'are'} about other images "
                f"or labels than this model was fitted on, and not used; the file with all of them is now {aside}",
                UserWarning,
                stacklevel=3,
            )
            if self.lines:
                write_atomically(self.path, _text(self.lines.values()))
            self.others = []

    def decide(self, row: int, action: str | None, *, proposed: str = "", label: str = "") -> None:
        """Keep, relabel or drop a training image, and write that to the file; None withdraws the decision."""
        given = self._given[row]
        kept = {"keep": given, "relabel": label, "drop": ""}
        if action is not None and action not in kept:
            raise ValueError(f"decision {action!r}: expected one of {', '.join(ACTIONS)}")
        with files.exclusive(self._lock, str(self.path)):
            self.refresh()
            lines = {other: line for other, line in self.lines.items() if other != row}
            if action is not None:
                values = (str(row), self._names[row], given, proposed, action, kept[action], self._images[row])
                lines[row] = dict(zip(COLUMNS, values, strict=True))
            write_atomically(self.path, _text([*lines.values(), *self.others]))
            self.lines = lines

    def text(self) -> str:
        """Current content of the file, sorted by row."""
        self.refresh()
        return _text([*self.lines.values(), *self.others])


def apply_decisions(path: str | Path, X: Any, y: Any, names: Any = None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Apply the decisions in a file that `cnngp view` wrote: return copies with labels changed and images dropped.

    X, y and `names`, if there are any, are those that the model was fitted on, in any order. A decision about an image
    or label that is not among them raises.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from cnngp.report import apply_decisions
    >>> from cnngp.report.suspects import Decisions
    >>> X, y = np.arange(3.0)[:, None, None, None] * np.ones((3, 1, 8, 8)), np.array([3, 5, 6])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     decisions = Decisions(Path(folder) / "digits.labels.csv", X, y)  # as `cnngp view` does
    ...     decisions.decide(0, "relabel", label="5")
    ...     decisions.decide(2, "drop")
    ...     X, y = apply_decisions(decisions.path, X, y)
    >>> X.shape, y
    ((2, 1, 8, 8), array([5, 5]))
    """
    path, X, y = Path(path), to_numpy(X), to_numpy(y, "y")
    if len(X) != len(y) or (names is not None and len(names) != len(y)):
        raise DatasetError(f"{len(X)} images, {len(y)} labels{'' if names is None else f' and {len(names)} names'}")
    if not path.is_file():
        raise DatasetError(f"{path}: no such file of decisions; `cnngp view` writes it beside the model")
    decisions = Decisions(path, X, y, names)
    if decisions.others:
        other = decisions.others[0]
        raise DatasetError(
            f"{path}: the decision about row {other['row']}, labelled {other['given']}, is about another image or "
            "label than those that were given; apply decisions to the images and labels that the model was fitted on"
        )
    labels, y = {str(label): label for label in y}, y.copy()
    for row, line in decisions.lines.items():
        if line["decision"] == "drop":
            continue
        try:
            y[row] = float(line["label"]) if y.dtype.kind == "f" else labels[line["label"]]
        except (KeyError, ValueError):
            said = f"row {line['row']} is to have the label {line['label']!r}, which no image has"
            raise DatasetError(f"{path}: {said}") from None
    keep = np.ones(len(y), dtype=bool)
    keep[[row for row, line in decisions.lines.items() if line["decision"] == "drop"]] = False
    return X[keep], y[keep]


def _text(lines: Iterable[Line]) -> str:
    in_order = sorted(lines, key=lambda line: int(line["row"]))
    return csv_text(COLUMNS, [[line[column] for column in COLUMNS] for line in in_order])


def _read(path: Path) -> list[Line]:
    """Read the lines of a file; of two for the same row and image, the last counts."""
    try:
        heads, rows = read_csv(path)
        if tuple(heads) != COLUMNS:
            raise ValueError(f"its columns are {', '.join(heads)}")
        lines = [dict(zip(COLUMNS, map(csv_cell, row), strict=True)) for row in rows]
        lines = [line | {"decision": line["decision"].strip().lower()} for line in lines]
        if any(line["decision"] not in ACTIONS for line in lines):
            raise ValueError("it holds other decisions than keep, relabel and drop")
        return list({(int(line["row"]), line["image"]): line for line in lines}.values())
    except ValueError as error:
        raise DatasetError(
            f"{path} exists and is not a file of decisions ({error}); give another place with --labels"
        ) from None
