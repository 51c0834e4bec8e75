"""One HTML file per run, with its pictures inside: it can be mailed, archived and opened anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template

from cnngp.common.files import write_atomically
from cnngp.common.tables import percent, printable, share_for_people
from cnngp.estimators.certificate import FitReport
from cnngp.estimators.learning import Learned, counted_matrices
from cnngp.network.layers import Network

from . import plots, web_page
from .evaluation import Evaluation, Picture

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
<h2>Which classes are confused, and how honest the probabilities are</h2>
<div class="figures">$figures</div>
$looked_at
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
    loo, remark = share_for_people(e.loo.error, e.loo_images)
    on_test = "" if e.test is None else f"It gets {round(e.test.error * tested):,} of {tested:,} test images wrong. "
    summary = (
        f"The model was trained on {e.images:,} images by one linear solve. {on_test}By leave-one-out, which needs no "
        f"test set, it gets {loo} of the training images wrong{f' ({remark})' if remark else ''}, each predicted from "
        "all the others."
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
        data=escape(printable(e.data)),
        numbers=_numbers(e),
        summary=summary,
        figures=web_page.figure(
            plots.confusion(e.confusion, e.classes),
            f"Confusion matrix of the {predicted}: rows are labels, mistakes are orange.",
        )
        + web_page.figure(
            plots.reliability(e.reliability),
            f"Reliability of the {'test' if e.test is not None else 'leave-one-out'} probabilities: ECE "
            f"{scores.ece:.4f}, NLL {scores.nll:.4f}. The temperature "
            f"{e.temperature:.3f} was chosen on leave-one-out predictions"
            + (
                f", by which {percent(e.label_noise, 1)} of the labels are taken to be random."
                if e.label_noise
                else "."
            ),
        ),
        guessing="" if certificate.guessing is None else _warning(certificate),
        looked_at=_NOTHING_TO_SEE if certificate.guessing is not None else _looked_at(e),
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
        command=escape(printable(command)),
        versions=escape(versions),
    )
    return web_page.whole("Exact Gaussian process classification", _STYLE, body)


def _warning(certificate: FitReport) -> str:
    return f'<p class="verdict warning">{escape(certificate.verdict)}</p>'


def _looked_at(e: Evaluation) -> str:
    """The images that are worth a look."""
    suspect = ""
    if e.suspects is not None:
        suspect = _SUSPECT.substitute(said=e.suspects.sentence) + _pictures(e.suspect, "", suspect=True)
    if e.test is None:
        return suspect
    sure = [p for p in e.wrong if p.probability >= CLEAR]
    none = f"No test image is predicted wrongly{f' with a probability of {percent(CLEAR)} or more' if e.wrong else ''}."
    wrong = _WRONG + _pictures(sure, none)
    return wrong + suspect + _UNCERTAIN + _pictures(e.uncertain, "")


CLEAR = 0.6
"""The probability from which on a wrong prediction is a confident one."""

_WRONG = """
<h2>Confidently wrong</h2>
<p class="muted">Test images with a wrong prediction, the most certain first. Below each are the training images that
contribute most to the prediction, with their labels and shares.</p>
"""
_SUSPECT = Template("""
<h2>Suspect labels</h2>
<p>$said</p>
<p class="muted">By leave-one-out, the most suspect first: look at these when cleaning labels. The proposed label comes
first; the percentage is the probability of the label as given.</p>
""")
_UNCERTAIN = """
<h2>Most uncertain</h2>
<p class="muted">Test images whose predicted class is least probable: look at these, or label more like them, next.</p>
"""
_NOTHING_TO_SEE = """
<h2>Single images</h2>
<p>Images that are confidently wrong, uncertain, or under a suspect label are not shown: this model is not clearly
better than guessing, so what it says of single images means little.</p>
"""


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
        f"{learned.after:.4f} after {counted_matrices(len(learned.path))} in {learned.seconds:.1f} s."
    )
    said += " Nothing better was found than the network as it was given." if learned.found_nothing else ""
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
    tested = int(e.confusion.sum())
    entries = [
        *([] if e.test is None else [_error("test error", e.test.error, tested)]),
        _error("leave-one-out error", e.loo.error, e.loo_images),
        (f"{scores.ece:.4f}", "calibration error (ECE)"),
        (f"{scores.nll:.4f}", f"NLL per {image}"),
        (
            "not known" if e.log_marginal_likelihood is None else _with_minus(f"{e.log_marginal_likelihood:,.0f}"),
            "log marginal likelihood",
        ),
    ]
    if e.validation is not None:
        at = 0 if e.test is None else 1
        entries.insert(at, _error("validation error", e.validation.error, e.validation_images))
    return "".join(f'<div class="number"><b>{value}</b><span>{name}</span></div>' for value, name in entries)


def _error(name: str, share: float, count: int) -> tuple[str, str]:
    value, remark = share_for_people(share, count)
    return value, f"{name}: {remark}" if remark else name


def _with_minus(number: str) -> str:
    return number.replace("-", "\N{MINUS SIGN}")


def _pictures(pictures: Iterable[Picture], none: str, suspect: bool = False) -> str:
    cells = []
    for p in pictures:
        predicted, label = _breakable(p.predicted), _breakable(p.label)
        probability = percent(p.probability).replace(" ", "&nbsp;")
        said = f"{predicted} ({probability})"
        if suspect:
            said = f"{predicted}?, is labelled {label} ({probability})"
        elif p.predicted != p.label:
            said = f'<span class="wrong">{said}</span>, is {label}'
        alt = f"labelled {escape(p.label)}, predicted {escape(p.predicted)}"
        name = "" if p.name is None else f'<span class="name">{escape(p.name)}</span>'
        image = f'<img src="{web_page.inline(plots.picture(p.pixels))}" alt="{alt}">'
        cells.append(f"<div>{image}{said}{name}{_neighbours(p)}</div>")
    if not cells:
        return f"<p>{none}</p>" if none else ""
    return f'<div class="pictures">{"".join(cells)}</div>'


def _breakable(name: str) -> str:
    """A name whose lines break between its words, as in `red_fox`, before they break within one."""
    return re.sub(r"(?<=[_./\\-])(?=\w)", "<wbr>", escape(name))


def _neighbours(picture: Picture) -> str:
    """Small training images with their labels and shares."""
    cells = []
    for n in picture.neighbours:
        share = _with_minus(f"{n.share:+.2f}")
        said = f"{n.label} {share}"
        title = escape(said if n.name is None else f"{n.name}: {said}")
        alt = f"training image labelled {escape(n.label)}"
        image = f'<img src="{web_page.inline(plots.picture(n.pixels))}" alt="{alt}">'
        cells.append(f'<span title="{title}">{image}<i>{escape(n.label)}</i>{share}</span>')
    return f'<div class="because">{"".join(cells)}</div>' if cells else ""


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return "<table>" + "".join(f"<tr><th>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows) + "</table>"
