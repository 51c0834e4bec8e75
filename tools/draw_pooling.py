"""Draws docs/pictures/sheets.svg: which displacements between two locations each layer of a small network has to carry.

python tools/draw_pooling.py
"""

from __future__ import annotations

from pathlib import Path

from cnngp import AvgPool, Conv, Dense, ReLU, Sequential
from cnngp.network.demands import placed

NETWORK = Sequential(Conv(3), ReLU(), AvgPool(2), Conv(3), ReLU(), AvgPool(2), Dense())
SIZE, REACH, CELL = (28, 28), 4, 11


def panel(left: int, title: str, wanted: frozenset[tuple[int, ...]]) -> list[str]:
    """A square of displacements from −4 to 4 along both axes; those that are carried are blue."""
    drawn = [f'<text x="{left}" y="20" font-size="13">{title}</text>']
    for dy in range(-REACH, REACH + 1):
        for dx in range(-REACH, REACH + 1):
            x, y = left + (dx + REACH) * CELL, 50 + (dy + REACH) * CELL
            colour = "#2b6cb0" if (dy, dx) in wanted else "#e2e8f0"
            drawn.append(f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" fill="{colour}"/>')
    count = f"{len(wanted)} sheet{'s' if len(wanted) > 1 else ''}"
    return [*drawn, f'<text x="{left}" y="38" font-size="12" fill="#4a5568">{count}</text>']


def main() -> None:
    layers = [here for here in placed(NETWORK, SIZE).walk() if isinstance(here.layer, Conv | AvgPool)]
    shown, left = [], 10
    for here in layers:
        side = " × ".join(map(str, here.after))
        shown += panel(left, f"{here.layer!r}, {side}", here.wanted)
        left += (2 * REACH + 1) * CELL + 40
    text = f'<svg xmlns="http://www.w3.org/2000/svg" width="{left}" height="160" font-family="sans-serif">'
    file = Path(__file__).parent.parent / "docs" / "pictures" / "sheets.svg"
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join([text, *shown, "</svg>", ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
