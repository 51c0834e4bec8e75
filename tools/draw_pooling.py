"""Draw the pictures of docs/pooling.md: python tools/draw_pooling.py

docs/pictures/sheets.svg: the displacements between two locations that each layer of a small network needs.
docs/pictures/shifts.svg: how all displacements along an axis pack into as many cyclic shifts as it has locations.
"""

from __future__ import annotations

from pathlib import Path

from cnngp import AvgPool, Conv, Dense, ReLU, Sequential
from cnngp.network.placed import placed

NETWORK = Sequential(Conv(3), ReLU(), AvgPool(2), Conv(3), ReLU(), AvgPool(2), Dense())
SIZE, REACH, CELL = (28, 28), 4, 11
PLACES = 8


def panel(left: int, title: str, wanted: frozenset[tuple[int, ...]]) -> list[str]:
    """A square of displacements from −4 to 4 along both axes; the needed ones are blue."""
    drawn = [f'<text x="{left}" y="20" font-size="13">{title}</text>']
    for dy in range(-REACH, REACH + 1):
        for dx in range(-REACH, REACH + 1):
            x, y = left + (dx + REACH) * CELL, 50 + (dy + REACH) * CELL
            colour = "#2b6cb0" if (dy, dx) in wanted else "#e2e8f0"
            drawn.append(f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" fill="{colour}"/>')
    count = f"{len(wanted)} sheet{'s' if len(wanted) > 1 else ''}"
    return [*drawn, f'<text x="{left}" y="38" font-size="12" fill="#4a5568">{count}</text>']


def sheets() -> list[str]:
    """Panels with the displacements of each layer, side by side."""
    layers = [here for here in placed(NETWORK, SIZE).walk() if isinstance(here.layer, Conv | AvgPool)]
    shown, left = [], 10
    for here in layers:
        side = " × ".join(map(str, here.after))
        shown += panel(left, f"{here.layer!r}, {side}", here.wanted)
        left += (2 * REACH + 1) * CELL + 40
    return picture(left, 160, shown)


def shifts() -> list[str]:
    """A row for each cyclic shift s of an axis of eight locations: p in x is paired with (p + s) mod 8 in z.

    Blue locations belong to displacement s, orange ones to s − 8; no sum crosses the wall between them.
    """
    wide, high, left, top = 40, 24, 90, 46
    shown = [f'<text x="{left}" y="18" font-size="13">place p of x, and the place of z that is read with it</text>']
    for p in range(PLACES):
        x = left + p * wide + wide // 2
        shown.append(f'<text x="{x}" y="38" font-size="12" text-anchor="middle" fill="#4a5568">{p}</text>')
    for s in range(PLACES):
        y = top + s * (high + 6)
        shown.append(f'<text x="10" y="{y + 16}" font-size="12" fill="#4a5568">shift {s}</text>')
        for p in range(PLACES):
            x, colour = left + p * wide, "#bee3f8" if p < PLACES - s else "#fbd38d"
            shown.append(f'<rect x="{x}" y="{y}" width="{wide - 1}" height="{high}" fill="{colour}"/>')
            shown.append(
                f'<text x="{x + wide // 2}" y="{y + 16}" font-size="12" text-anchor="middle">{(p + s) % PLACES}</text>'
            )
        if s:
            x = left + (PLACES - s) * wide - 2
            shown.append(f'<rect x="{x}" y="{y - 3}" width="3" height="{high + 6}" fill="#1a202c"/>')
        other = f" and d = {_signed(s - PLACES)}" if s else ""
        shown.append(f'<text x="{left + PLACES * wide + 12}" y="{y + 16}" font-size="12">d = {s}{other}</text>')
    return picture(left + PLACES * wide + 130, top + PLACES * (high + 6) + 4, shown)


def _signed(d: int) -> str:
    return f"−{-d}" if d < 0 else str(d)


def picture(width: int, height: int, shown: list[str]) -> list[str]:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
    return [head, *shown, "</svg>", ""]


def main() -> None:
    folder = Path(__file__).parent.parent / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    for name, lines in (("sheets", sheets()), ("shifts", shifts())):
        (folder / f"{name}.svg").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
