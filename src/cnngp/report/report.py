"""One HTML file per run, with its pictures inside: it can be mailed, archived and opened anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template

from cnngp.common.files import write_atomically
from cnngp.estimators.certificate import FitReport
from cnngp.estimators.learning import Learned
from cnngp.network.layers import Network

from . import plots, web_page
from .evaluation import Evaluation, Picture

_STYLE = """
pre.wrap { white-space: pre-wrap; } p, .pictures div { overflow-wrap: anywhere; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 20px 0 6px; }
.number { background: #f5f7fa; border-radius: 8px; padding: 12px 14px; } .number b { display: block; font-size: 24px; }
.number span { color: #616e7c; font-size: 13px; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(118px, 1fr)); gap: 14px; }
.pictures div { font-size: 12.5px; line-height: 1.35; } .pictures img { width: 100%; image-rendering: pixelated;
     border: 1px solid #e4e7eb; border-radius: 4px; background: #000; display: block; margin-bottom: 4px; }
.name { display: block; color: #616e7c; font-size: 11px; }
.pictures .because { display: grid; grid-template-columns: repeat(3, 1fr); gap: 4px; margin-top: 4px; }
.because span { font-size: 10.5px; }
.verdict { border-left: 4px solid #2b6cb0; padding: 6px 12px; background: #ebf4fb; } .wrong { color: #c05621; }
"""

_BODY = Template("""
<p class="muted">$data</p>
<div class="numbers">$numbers</div>
<p>$summary</p>
<h2>Which classes are confused, and how honest the probabilities are</h2>
<div class="figures">$figures</div>
$wrong
<h2>Suspect labels</h2>
<p class="muted">Training images whose label all the others contradict, by leave-one-out: look at these first when
cleaning labels. The proposed label comes first; the percentage is the probability of the label as given.</p>
$suspect
$uncertain
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

# What is shown of a test set, where there is one.
_WRONG = """<h2>Confidently wrong</h2>
<p class="muted">Test images with a wrong prediction, the most certain first. Below each are the training images that
contribute most to the prediction, with their labels and shares.</p>
"""
_UNCERTAIN = """<h2>Most uncertain</h2>
<p class="muted">Test images whose predicted class is least probable: look at these, or label more like them, next.</p>
"""


def render(
    evaluation: Evaluation,
    certificate: FitReport,
    network: Network,
    input_shape: Sequence[int],
    *,
    learned: Learned | None = None,
    command: str,
    versions: str,
) -> str:
    """The whole page as text."""
    e = evaluation
    tested = int(e.confusion.sum())
    on_test = "" if e.test is None else f"It gets {round(e.test.error * tested):,} of {tested:,} test images wrong. "
    summary = (
        f"The model was trained on {e.images:,} images by one linear solve. {on_test}By leave-one-out, which needs no "
        f"test set, it gets {100 * e.loo.error:.2f} % of the training images wrong, each predicted from all the others."
    )
    scores, predicted = (e.loo, "leave-one-out predictions") if e.test is None else (e.test, "test set")
    times = [
        ("kernel of the training images", f"{certificate.kernel_seconds:.2f} s"),
        ("solve, leave-one-out and certificate", f"{certificate.solve_seconds:.2f} s"),
    ]
    if e.test is not None:
        times.append(("test predictions with variances", f"{e.predict_seconds:.2f} s"))
    if certificate.compiling is not None:
        times.insert(0, ("compiling, or loading compiled code", certificate.compiling))
    body = _BODY.substitute(
        data=escape(e.data),
        numbers=_numbers(e),
        summary=summary,
        figures=web_page.figure(
            plots.confusion(e.confusion, e.classes), f"Confusion matrix of the {predicted}: rows are labels."
        )
        + web_page.figure(
            plots.reliability(e.reliability),
            f"Reliability of the {'test' if e.test is not None else 'leave-one-out'} probabilities: ECE "
            f"{scores.ece:.4f}, NLL {scores.nll:.4f}. The temperature "
            f"{e.temperature:.3f} was chosen on leave-one-out predictions"
            + (
                f", by which {100 * e.label_noise:.1f} % of the labels are taken to be random."
                if e.label_noise
                else "."
            ),
        ),
        wrong="" if e.test is None else _WRONG + _pictures(e.wrong, "No test image is predicted wrongly."),
        suspect=_pictures(e.suspect, "The other images contradict no label.", suspect=True),
        uncertain="" if e.test is None else _UNCERTAIN + _pictures(e.uncertain, ""),
        kernel=web_page.figure(
            plots.kernel_matrix(e.correlations, e.boundaries, e.classes),
            f"Correlations of {len(e.correlations):,} training images under the network's kernel, ordered by class.",
        ),
        learned="" if learned is None else _learned(learned),
        verdict=escape(certificate.verdict),
        certificate=_table(certificate.rows()),
        network=escape(repr(network)),
        layers=escape(str(network.shapes(tuple(input_shape)))),
        times=_table(times),
        command=escape(command),
        versions=escape(versions),
    )
    return web_page.whole("Exact Gaussian process classification", _STYLE, body)


def write(path: Path, page: str) -> None:
    write_atomically(path, page)


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
        f"{learned.after:.4f} after {len(learned.path):,} kernel matrices in {learned.seconds:.1f} s."
    )
    said += " It was interrupted; this is the best until then." if learned.interrupted else ""
    left = ", ".join(learned.left_out)
    said += f" Left out, as they only scale the kernel: {left}." if left else ""
    return (
        f"<h2>What was learned</h2><p>{escape(said)}</p>{_table(rows)}"
        + f'<div class="figures">{web_page.figure(plots.learning(learned.path), _PATH)}</div>'
        + f"<details><summary>The network that was given</summary><pre class="
        f'"wrap">{escape(repr(learned.network_before))}</pre></details>'
    )


_PATH = "The loss of each kernel matrix on the way, one colour for each start; the line is the best so far."


def _numbers(e: Evaluation) -> str:
    scores, image = (e.loo, "image, left out") if e.test is None else (e.test, "test image")
    entries = [
        *([] if e.test is None else [(f"{100 * e.test.error:.2f} %", "test error")]),
        (f"{100 * e.loo.error:.2f} %", "leave-one-out error"),
        (f"{scores.ece:.4f}", "calibration error (ECE)"),
        (f"{scores.nll:.4f}", f"NLL per {image}"),
        (
            "not known" if e.log_marginal_likelihood is None else f"{e.log_marginal_likelihood:,.0f}",
            "log marginal likelihood",
        ),
    ]
    if e.validation is not None:
        entries.insert(0 if e.test is None else 1, (f"{100 * e.validation.error:.2f} %", "validation error"))
    return "".join(f'<div class="number"><b>{value}</b><span>{name}</span></div>' for value, name in entries)


def _pictures(pictures: Iterable[Picture], none: str, suspect: bool = False) -> str:
    cells = []
    for p in pictures:
        said = f"{escape(p.predicted)} ({100 * p.probability:.0f} %)"
        if suspect:
            said = f"{escape(p.predicted)}?, is labelled {escape(p.label)} ({100 * p.probability:.0f} %)"
        elif p.predicted != p.label:
            said = f'<span class="wrong">{said}</span>, is {escape(p.label)}'
        alt = f"labelled {escape(p.label)}, predicted {escape(p.predicted)}"
        name = "" if p.name is None else f'<span class="name">{escape(p.name)}</span>'
        image = f'<img src="{web_page.inline(plots.picture(p.pixels))}" alt="{alt}">'
        cells.append(f"<div>{image}{said}{name}{_neighbours(p)}</div>")
    return f'<div class="pictures">{"".join(cells)}</div>' if cells else f"<p>{none}</p>"


def _neighbours(picture: Picture) -> str:
    """Small training images with their labels and shares."""
    cells = []
    for n in picture.neighbours:
        said = f"{escape(n.label)} {n.share:+.2f}"
        title = escape(said if n.name is None else f"{n.name}: {said}")
        alt = f"training image labelled {escape(n.label)}"
        cells.append(
            f'<span title="{title}"><img src="{web_page.inline(plots.picture(n.pixels))}" alt="{alt}">{said}</span>'
        )
    return f'<div class="because">{"".join(cells)}</div>' if cells else ""


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return "<table>" + "".join(f"<tr><th>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows) + "</table>"
