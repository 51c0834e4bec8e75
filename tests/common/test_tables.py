"""Names that are printed and read back, and CSV files with anything in them."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp.common.errors import DatasetError
from cnngp.common.tables import csv_cell, csv_text, original, printable, read_csv, visible, wilson
from helpers.examples import examples

# Of file names: any characters, and the lone surrogates that stand for bytes that are not UTF-8.
NAMES = st.text(
    st.characters(exclude_categories=()) | st.sampled_from("\\\r\n\t'=+-@,;\"\udce9\ufeffx0aé"), max_size=12
)


@given(name=NAMES)
@examples(200)
def test_a_printable_name_is_one_line_from_which_the_name_comes_back(name: str) -> None:
    shown = printable(name)
    assert original(shown) == name
    assert shown.encode().decode() == shown
    assert len(f".{shown}.".splitlines()) == 1
    assert visible(shown) == shown


@given(rows=st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=5))
@examples(100)
def test_a_table_is_read_as_it_was_written_and_holds_no_formula(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("tables") / "t.csv"
    text = csv_text(["name", "given"], [("image", *row[1:]) if not any(row) else row for row in rows])
    path.write_text(text, encoding="utf-8", newline="")
    heads, lines = read_csv(path)
    assert heads == ["name", "given"]
    assert [tuple(map(csv_cell, line)) for line in lines] == [row if any(row) else ("image", "") for row in rows]
    for line in csv.reader(io.StringIO(text.removeprefix("\ufeff"))):
        for cell in line:
            if cell.startswith(("=", "+", "-", "@")):
                float(cell)  # a number is no formula


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; expected a table with the names of its columns in the first line"),
        (b"a,b\n1,2,3\n", "row 2 has 3 cells, and there are 2 columns"),
        ("a,ä\n".encode("latin-1"), r"is not a table in UTF-8; save it as CSV \(UTF-8\)"),
    ],
)
def test_what_is_no_table(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        read_csv(tmp_path / "t.csv")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_empty_lines_and_short_rows(tmp_path: Path, separator: str) -> None:
    lines = ["\ufeffa,b ", "1,2", "", "3"]
    (tmp_path / "t.csv").write_text("\r\n".join(lines).replace(",", separator), encoding="utf-8")
    assert read_csv(tmp_path / "t.csv") == (["a", "b"], [["1", "2"], ["3", ""]])


def test_intervals_of_shares_stay_between_0_and_1() -> None:
    """Also where nothing, or all, is wrong, to the last bit: a report would say -0 %."""
    count = np.arange(1, 500)
    for share in (np.zeros(499), np.ones(499)):
        low, high = wilson(share, count)
        assert not np.signbit(low).any()
        assert (low <= share).all()
        assert (high >= share).all()
        assert high.max() <= 1.0
