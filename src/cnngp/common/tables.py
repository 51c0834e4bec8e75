"""Text output: printable names, percentages with their intervals, aligned columns, CSV files that can be read back."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .errors import DatasetError

if TYPE_CHECKING:  # describing a network imports no NumPy
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

# Control characters, line separators, marks of the writing direction, and the lone surrogates that Python uses for
# bytes of a file name that are not UTF-8.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
# A backslash that would read like one of their escapes.
_AMBIGUOUS = re.compile(r"\\(?=x[0-9a-f]{2}|u[0-9a-f]{4})")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})")
_BYTES = 0xDC00
"""Code point that Python adds to a byte of a file name that is not UTF-8."""
# Text that a spreadsheet would compute, after any apostrophes that mark it as text; numbers stay numbers.
_FORMULA = re.compile(r"'*[=+\-@]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_MARKED = re.compile(r"'+[=+\-@]")
_DELIMITERS = ",;\t"
# With fewer images than this, a percentage has few meaningful digits and is shown with its interval.
_FEW = 1000


def printable(text: str) -> str:
    r"""Text on one line with invisible characters escaped, which `original` undoes.

    >>> print(printable("line\rfeed"), printable("caf\udce9.png"), printable("naïve"))
    line\x0dfeed caf\xe9.png naïve
    """
    return visible(_AMBIGUOUS.sub(_number_of, text))


def visible(text: str) -> str:
    r"""Like `printable`, for text that may already hold escapes: they stay as they are, so it cannot be undone.

    >>> print(visible(visible("line\rfeed")))
    line\x0dfeed
    """
    return _INVISIBLE.sub(_number_of, text)


def original(text: str) -> str:
    r"""Undo `printable`.

    >>> original(printable("caf\udce9\r.png")) == "caf\udce9\r.png"
    True
    """
    return _ESCAPED.sub(_character_of, text)


def _number_of(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x80:
        return f"\\x{code:02x}"
    if _BYTES + 0x80 <= code <= _BYTES + 0xFF:
        return f"\\x{code - _BYTES:02x}"
    return f"\\u{code:04x}"


def _character_of(found: re.Match[str]) -> str:
    if found[2]:
        return chr(int(found[2], 16))
    code = int(found[1], 16)
    return chr(code if code < 0x80 else _BYTES + code)


def percent(share: float, digits: int = 0) -> str:
    """Format a share as a percentage.

    >>> percent(0.5417), percent(0.0084, 2)
    ('54 %', '0.84 %')
    """
    return f"{100 * share:.{digits}f} %"


def wilson(share: Floats, count: NDArray[Any], z: float = 1.96) -> tuple[Floats, Floats]:
    """Wilson interval for a share of `count` images, 95 % by default; it always contains the share.

    >>> import numpy as np
    >>> low, high = wilson(np.array([0.5]), np.array([100]))
    >>> low.round(3), high.round(3)
    (array([0.404]), array([0.596]))
    """
    import numpy as np

    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    # Rounding must not give −0 %, or an interval that excludes the share.
    return np.clip(centre - half, 0.0, share), np.clip(centre + half, share, 1.0)


def share_for_people(share: float, count: int) -> tuple[str, str]:
    """Percentage of `count` images with its meaningful digits, and a remark with its interval if `count` is small.

    >>> share_for_people(13 / 24, 24)
    ('54 %', '13 of 24, likely 35 % to 72 %')
    >>> share_for_people(0.0084, 10_000)
    ('0.84 %', '')
    """
    import numpy as np

    if not count:
        return "not known", ""
    if count >= _FEW:
        return percent(share, 2), ""
    digits = 1 if count >= _FEW / 10 else 0
    low, high = (float(bound) for bound in wilson(np.float64(share), np.float64(count)))  # type: ignore[arg-type]
    remark = f"{round(share * count)} of {count}, likely {percent(low, digits)} to {percent(high, digits)}"
    return percent(share, digits), remark


def aligned(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Align the cells of rows in columns two spaces apart; columns whose numbers are in `right` are right-aligned.

    >>> print(aligned([("network", "pairs"), ("cnn", "4,950")], right=[1]))
    network  pairs
    cnn      4,950
    """
    shown = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    to_the_right = set(right)
    lines = (
        "  ".join(
            cell.rjust(width) if i in to_the_right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in shown
    )
    return "\n".join(line.rstrip() for line in lines)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    r"""Format a table as CSV in which every cell is printable text and none is a formula.

    A cell that a spreadsheet would compute gets a leading apostrophe; `csv_cell` recovers the text.

    >>> csv_text(["name", "given"], [["=1+1.png", -1]])
    "name,given\n'=1+1.png,-1\n"
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_safe(printable(str(cell))) for cell in row] for row in rows)
    text = out.getvalue()
    return text if text.isascii() else "\ufeff" + text  # tells Excel that the file is UTF-8


def csv_cell(text: str) -> str:
    r"""Recover the text of a cell that `csv_text` wrote.

    >>> csv_cell("'=1+1.png"), csv_cell("-1")
    ('=1+1.png', '-1')
    """
    return original(text[1:] if _MARKED.match(text) else text)


def _safe(text: str) -> str:
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def read_csv(path: Path) -> tuple[list[str], list[list[str]]]:
    """Read the header and the rows of a UTF-8 table separated by commas, semicolons or tabs.

    Empty lines are skipped and short ones padded; cells are as in the file.
    """
    from .files import check_regular  # needs NumPy

    check_regular(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        delimiter = max(_DELIMITERS, key=text.partition("\n")[0].count)
        lines = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if any(line)]
    except UnicodeDecodeError:
        raise DatasetError(f"{path} is not a table in UTF-8; save it as CSV (UTF-8)") from None
    except csv.Error as error:
        raise DatasetError(f"{path} is not a table that can be read ({error}); save it as CSV (UTF-8)") from None
    if not lines:
        raise DatasetError(f"{path} is empty; expected a table with the names of its columns in the first line")
    heads = [head.strip() for head in lines[0]]
    for number, line in enumerate(lines[1:], 2):
        if len(line) > len(heads):
            raise DatasetError(f"{path}: row {number} has {len(line)} cells, and there are {len(heads)} columns")
    return heads, [line + [""] * (len(heads) - len(line)) for line in lines[1:]]
