"""Self-contained HTML pages, with pictures inside the file so that it can be mailed; and the report page of a run."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from string import Template
from typing import TYPE_CHECKING

from cnngp.common.tables import printable

from . import plots

if TYPE_CHECKING:
    from cnngp.estimators.learning import Learned

    from .evaluation import Evaluation, Picture

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect width='16' height='16' "
    "rx='3' fill='%232b6cb0'/%3E%3Cpath d='M2 11c3 0 3-7 6-7s3 7 6 7' fill='none' stroke='%23fff' stroke-width='2'/%3E"
    "%3C/svg%3E"
)
_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<link rel="icon" href="$icon">
<style>
:root { color-scheme: light dark; --ink: #1f2933; --muted: #616e7c; --line: #e4e7eb; --card: #f5f7fa; --page: #fff;
        --blue: #2b6cb0; --orange: #c05621; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9f0; --muted: #9aa5b8; --line: #38415a; --card: #222838; --page: #161a24; --blue: #63a4e8;
          --orange: #f0935a; }
  figure img { filter: invert(0.91) hue-rotate(180deg); } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 1040px;
       margin: 0 auto; padding: 28px 22px 60px; }
h1 { font-size: 25px; margin: 0 0 2px; } h2 { font-size: 19px; margin: 42px 0 8px; padding-top: 18px;
     border-top: 1px solid var(--line); }
p { margin: 6px 0; } .muted { color: var(--muted); } pre { font: 12.5px/1.45 ui-monospace, monospace;
     background: var(--card); padding: 12px 14px; overflow-x: auto; border-radius: 6px; margin: 8px 0; }
table { border-collapse: collapse; } td, th { text-align: left; padding: 4px 16px 4px 0; vertical-align: top; }
th { font-weight: 600; }
.figures { display: flex; flex-wrap: wrap; gap: 26px; align-items: flex-start; }
figure { margin: 0; flex: 1 1 420px; } figure img { max-width: 100%; }
figcaption { color: var(--muted); font-size: 13px; }
$style
</style>
</head>
<body>
<h1>$title</h1>
$body
</body>
</html>
""")


def whole(title: str, style: str, body: str) -> str:
    """Return a whole page; `style` is CSS in addition to that of all pages."""
    return _PAGE.substitute(icon=_ICON, title=escape(title), style=style.strip(), body=body.strip())


def inline(png: bytes) -> str:
    """A PNG picture as a data URL for the `src` of an <img>."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def minus(number: str) -> str:
    """A number with a typographic minus sign instead of a hyphen."""
    return number.replace("-", "\N{MINUS SIGN}")


def table(rows: Sequence[tuple[str, str]]) -> str:
    """HTML table of (name, text) rows."""
    lines = [f"<tr><th>{escape(name)}</th><td>{escape(said)}</td></tr>" for name, said in rows]
    return f"<table>{''.join(lines)}</table>"


def figure(png: bytes, caption: str) -> str:
    caption = escape(caption)
    return f'<figure><img src="{inline(png)}" alt="{caption}"><figcaption>{caption}</figcaption></figure>'


def grid(pictures: Iterable[Picture]) -> str:
    """HTML grid of pictures with their captions; "" without pictures."""
    cells = []
    for p in pictures:
        predicted, label = escape(p.predicted), escape(p.label)
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
    return f'<img src="{inline(png)}" alt="{escape(alt)}">'


# ---- the report of a run ----

_STYLE = """
pre.wrap { white-space: pre-wrap; } p, .pictures div { overflow-wrap: anywhere; hyphens: auto; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 20px 0 6px; }
.number { background: var(--card); border-radius: 8px; padding: 12px 14px; }
.number b { display: block; font-size: 24px; }
.number span { color: var(--muted); font-size: 13px; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(140px, 1fr)); gap: 14px; }
.pictures div { font-size: 12.5px; line-height: 1.35; } .pictures img { width: 100%; image-rendering: pixelated;
     border: 1px solid var(--line); border-radius: 4px; background: #000; display: block; margin-bottom: 4px; }
.name { display: block; color: var(--muted); font-size: 11px; }
.pictures .because { display: grid; grid-template-columns: repeat(3, 1fr); gap: 4px; margin-top: 4px; }
.because span { font-size: 10.5px; min-width: 0; }
.because i { font-style: normal; display: block; overflow: hidden; white-space: nowrap; text-overflow: ellipsis; }
.verdict { border-left: 4px solid var(--blue); padding: 6px 12px; background: var(--card); }
.wrong { color: var(--orange); } .warning { border-color: var(--orange); }
"""

_BODY = Template("""
<p class="muted">$data</p>
<div class="numbers">$numbers</div>
<p>$summary</p>
$guessing
<h2>$heading</h2>
<div class="figures">$figures</div>
$sections
$learned
<h2>What can be trusted</h2>
<p class="verdict">$verdict</p>
$certificate
<h2>The network</h2>
<pre class="wrap">$network</pre>
<details><summary>Every layer on these images, with its cost</summary><pre>$layers</pre></details>
<h2>Time, and how to repeat this</h2>
$times
<pre class="wrap">$command</pre>
<p class="muted">$versions</p>
""")


def render(e: Evaluation, command: str, versions: str) -> str:
    """Return the report of a run as HTML; `command` repeats the run."""
    model, fit = e.model, e.model.fit_report_
    kernel = model.fit_.only_kernel.terms[0]
    times = [
        ("kernel of the training images", f"{fit.kernel_seconds:.2f} s"),
        ("solve, leave-one-out and certificate", f"{fit.solve_seconds:.2f} s"),
        *([("test predictions with variances", f"{e.predict_seconds:.2f} s")] if e.tested else []),
    ]
    if fit.compiling is not None:
        times.insert(0, ("compiling, or loading compiled code", fit.compiling))
    heading, figures = e.figures()
    body = _BODY.substitute(
        data=escape(printable(repr(e.data).strip("<>"))),
        numbers="".join(f'<div class="number"><b>{value}</b><span>{name}</span></div>' for value, name in e.tiles()),
        summary=e.summary(),
        guessing=f'<p class="verdict warning">{escape(fit.verdict)}</p>' if e.guessing else "",
        heading=heading,
        figures="".join(figures),
        sections=_NOTHING_TO_SEE if e.guessing else e.sections(),
        learned="" if model.learned_ is None else _learned(model.learned_),
        verdict=escape(fit.verdict),
        certificate=table(fit.rows()),
        network=escape(repr(model.network_)),
        layers=escape(str(model.network_.shapes(kernel.preparation.output_shape(model.input_shape_)))),
        times=table(times),
        command=escape(printable(command)),
        versions=escape(versions),
    )
    return whole(e.title, _STYLE, body)


_NOTHING_TO_SEE = """
<h2>Single images</h2>
<p>Images that are confidently wrong, uncertain, or under a suspect label are not shown: this model is not clearly
better than guessing, so what it says of single images means little.</p>
"""


def _learned(learned: Learned) -> str:
    """HTML section on learning: the network's variances and the loss, before and after."""
    rows = [
        (f"{c.name}, {c.places} layer{'s' if c.places > 1 else ''}", f"{c.before:.4g} → {c.after:.4g}")
        for c in learned.changes
    ]
    if learned.noise is not None:
        rows.append(("noise over the mean k(x, x)", f"{learned.noise_before:.2g} → {learned.noise:.2g}"))
    rule = "leave-one-out" if learned.rule == "loo" else "marginal likelihood"
    said = (
        f"By {rule}, on {learned.images:,} training images: a loss of {learned.before:.4f} nats became "
        f"{learned.after:.4f} after {learned.matrices} in {learned.seconds:.1f} s."
    )
    said += " Nothing better was found than the network as it was given." if learned.found_nothing else ""
    said += " It was interrupted; this is the best until then." if learned.interrupted else ""
    left = ", ".join(learned.left_out)
    said += f" Left out, as they only scale the kernel: {left}." if left else ""
    return (
        f"<h2>What was learned</h2><p>{escape(said)}</p>{table(rows)}"
        f"<details><summary>The network that was given</summary><pre class="
        f'"wrap">{escape(repr(learned.network_before))}</pre></details>'
    )
