"""Images in a report: a grid of them with what was predicted, and below each the training images behind that."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from . import plots, web_page

if TYPE_CHECKING:
    from .evaluation import Picture


def grid(pictures: Iterable[Picture]) -> str:
    """The pictures with their words; nothing for none."""
    cells = []
    for p in pictures:
        predicted, label = _breakable(p.predicted), _breakable(p.label)
        sure = escape(p.sure).replace(" %", "&nbsp;%")
        said = f"{predicted} ({sure})"
        if p.suspect:
            said = f"{predicted}?, is labelled {label} ({sure})"
        elif p.wrong:
            said = f'<span class="wrong">{said}</span>, is {label}'
        alt = f"labelled {p.label}, predicted {p.predicted}"
        name = "" if p.name is None else f'<span class="name">{escape(p.name)}</span>'
        where = "" if p.saliency is None else _image(plots.saliency(p.pixels, p.saliency), f"where: {alt}")
        behind = []
        for n in p.neighbours:
            title = escape(": ".join(filter(None, (n.name, f"{n.label} {n.share}"))))
            image = _image(plots.picture(n.pixels), f"training image labelled {n.label}")
            behind.append(f'<span title="{title}">{image}<i>{escape(n.label)}</i>{escape(n.share)}</span>')
        neighbours = f'<div class="because">{"".join(behind)}</div>' if behind else ""
        cells.append(f"<div>{_image(plots.picture(p.pixels), alt)}{where}{said}{name}{neighbours}</div>")
    return f'<div class="pictures">{"".join(cells)}</div>' if cells else ""


def _image(png: bytes, alt: str) -> str:
    return f'<img src="{web_page.inline(png)}" alt="{escape(alt)}">'


def _breakable(name: str) -> str:
    """A name whose lines break between its words, as in `red_fox`, before they break within one; no number does."""
    return re.sub(r"(?<=[_./\\-])(?!(?<=\d\.)\d)(?=\w)", "<wbr>", escape(name))
