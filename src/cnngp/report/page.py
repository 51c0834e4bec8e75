"""The report: one HTML file per run, with its pictures inside, to be mailed, archived and opened anywhere."""

from __future__ import annotations

from html import escape
from string import Template

from cnngp.common.tables import printable
from cnngp.estimators.learning import Learned, counted_matrices

from . import plots, web_page
from .evaluation import Evaluation

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
<h2>The kernel</h2>
<div class="figures">$kernel</div>
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
    """The whole page as text; `command` repeats the run."""
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
        kernel=web_page.figure(
            plots.kernel_matrix(e.correlations, *e.axes[:2]),
            f"Correlations of {len(e.correlations):,} training images under the network's kernel, by {e.axes[2]}.",
        ),
        learned="" if model.learned_ is None else _learned(model.learned_),
        verdict=escape(fit.verdict),
        certificate=web_page.table(fit.rows()),
        network=escape(repr(model.network_)),
        layers=escape(str(model.network_.shapes(kernel.preparation.output_shape(model.input_shape_)))),
        times=web_page.table(times),
        command=escape(printable(command)),
        versions=escape(versions),
    )
    return web_page.whole(e.title, _STYLE, body)


_NOTHING_TO_SEE = """
<h2>Single images</h2>
<p>Images that are confidently wrong, uncertain, or under a suspect label are not shown: this model is not clearly
better than guessing, so what it says of single images means little.</p>
"""


def _learned(learned: Learned) -> str:
    """What the network's variances were and are, and the loss on the way."""
    rows = [
        (f"{c.name}, {c.places} layer{'s' if c.places > 1 else ''}", f"{c.before:.4g} → {c.after:.4g}")
        for c in learned.changes
    ]
    if learned.noise is not None:
        rows.append(("noise over the mean k(x, x)", f"{learned.noise_before:.2g} → {learned.noise:.2g}"))
    rule = "leave-one-out" if learned.rule == "loo" else "marginal likelihood"
    said = (
        f"By {rule}, on {learned.images:,} training images: a loss of {learned.before:.4f} nats became "
        f"{learned.after:.4f} after {counted_matrices(len(learned.path))} in {learned.seconds:.1f} s."
    )
    said += " Nothing better was found than the network as it was given." if learned.found_nothing else ""
    said += " It was interrupted; this is the best until then." if learned.interrupted else ""
    left = ", ".join(learned.left_out)
    said += f" Left out, as they only scale the kernel: {left}." if left else ""
    return (
        f"<h2>What was learned</h2><p>{escape(said)}</p>{web_page.table(rows)}"
        + f'<div class="figures">{web_page.figure(plots.learning(learned.path), _PATH)}</div>'
        + f"<details><summary>The network that was given</summary><pre class="
        f'"wrap">{escape(repr(learned.network_before))}</pre></details>'
    )


_PATH = "The loss of each kernel matrix on the way, one colour for each start; the line is the best so far."
