"""A fit as a page of HTML: for notebooks, and as one file to read, print and send."""

from __future__ import annotations

import base64
import io
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from qbvi._version import __version__
from qbvi.diagnostics import Khat, judge_khat
from qbvi.ending import StopKind
from qbvi.evaluate.failures import Failure
from qbvi.results import Fit
from qbvi.summary import Summary, diagnostic_lines, largest_error
from qbvi.tables import html_table

__all__ = ["Trust", "Verdict", "notebook_html", "verdict_of", "write_report"]

Names = Sequence[str] | Mapping[str, str] | None  # entries to plot, or their names by label

_NOTEBOOK_ROWS, _PAGE_ROWS = 12, 200  # entries of the table
_PANELS, _PAIRED, _FOREST = 24, 6, 100  # most entries of a legible figure
_LISTED = 10  # failures shown in full
_CAREFUL = 0.2  # error of a probability from which on a reader must know of it
_MOST_FAILED = 0.02  # share of failures from which on a reader must know of them
_DPI = 200  # of the files, for print; on a screen an inch has so many pixels:
_PIXELS = 130
_BROAD = 5.0  # inches: a wider figure has two columns
_PAPER = "https://arxiv.org/abs/2205.11568"

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 0 auto; padding: 1rem;
       max-width: 46rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.verdict { border-left: 0.4rem solid #8c8c8c; padding: 0.2rem 0.9rem; background: #f6f6f6; }
.verdict.good { border-color: #009e73; } .verdict.care { border-color: #e69f00; } .verdict.bad { border-color: #d55e00; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd; vertical-align: top; }
tbody th, .words th, .words td { text-align: left; font-weight: normal; }
.words th { white-space: nowrap; }
figure { margin: 1rem 0; } figcaption { font-size: 0.9rem; color: #555; }
img { max-width: 100%; height: auto; }
.wide img { max-width: none; width: 100%; min-width: 34rem; }
pre { white-space: pre-wrap; background: #f6f6f6; padding: 0.6rem; font-size: 0.8rem; }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  figure, tr, .verdict, pre { break-inside: avoid; } h2 { break-after: avoid; }
  .wide { overflow: visible; } img { max-height: 20cm; }
  .wide img { min-width: 0; }
}
"""


class Trust(Enum):
    """How far a reader can rely on a fit; the value is a word for style sheets."""

    GOOD = "good"
    CARE = "care"
    BAD = "bad"


class Verdict(NamedTuple):
    """What to think of a fit: how far to trust it, and why, in sentences."""

    trust: Trust
    headline: str
    reasons: tuple[str, ...]


def verdict_of(fit: Fit) -> Verdict:
    """Judge a fit in words.

    Examples
    --------
    >>> import qbvi
    >>> verdict = verdict_of(qbvi.fit(lambda x: -0.5 * (x - 1) ** 2, qbvi.Normal(0, 1), seed=1))
    >>> verdict.trust, verdict.headline
    (<Trust.GOOD: 'good'>, 'You can use this posterior.')
    """
    reasons = [_sentence(f"The fit {'has' if fit.converged else 'has not'} converged: {fit.stop_reason}")]
    doubts = [*_doubts_on_missing(fit), *_doubts_on_khat(fit), *_doubts_on_failures(fit)]
    if fit.stop_kind is StopKind.BY_HAND:
        return Verdict(Trust.CARE, "Nobody has checked this posterior.", (_sentence(_capital(fit.stop_reason)),))
    if not fit.converged:
        return Verdict(Trust.BAD, "Do not rely on this posterior yet.", (*reasons, *doubts, *fit.notes))
    if doubts:
        return Verdict(Trust.CARE, "Use this posterior with care.", (*reasons, *doubts, *fit.notes))
    return Verdict(Trust.GOOD, "You can use this posterior.", (*reasons, *_good_news(fit), *fit.notes))


def notebook_html(fit: Fit) -> str:
    """The verdict, the first rows of the table and one picture, for a notebook."""
    verdict, summary = verdict_of(fit), fit.summary()
    parts = [
        f"<p><b>{escape(summary.header[0])}</b><br>{escape(verdict.headline)} {escape(verdict.reasons[0])}</p>",
        _table(summary, _NOTEBOOK_ROWS),
        _details(fit),
    ]
    picture = _one_picture(fit)
    if picture is not None:
        parts.append(_image(picture, "Posterior", dpi=100))
    return f'<div class="qbvi">{"".join(parts)}</div>'


def write_report(
    fit: Fit,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    names: Names = None,
    reference: Any = None,
    figures: Mapping[str, Any] | None = None,
) -> Path:
    """Write a report of a fit: one HTML file without links to others.

    It has the verdict in words, the table, trace, marginals and pairs, figures of your own, failed
    evaluations, priors, and how to cite. It reads well on a phone and in print.

    Parameters
    ----------
    fit : Fit
        The fit.
    path : path
        Where to write; an existing file is replaced.
    title : str, optional
        The heading, by default the names of the parameters.
    names, reference
        What to plot, and draws to compare with, as in `qbvi.plots.plot_pairs`. By default the
        plots have as many entries as are legible. A dict gives entries other names, in the table
        too.
    figures : dict of str to matplotlib.figure.Figure, optional
        Further figures by caption, such as a posterior predictive check.

    Returns
    -------
    pathlib.Path
        The file.

    Examples
    --------
    >>> import qbvi, tempfile
    >>> prior = {"beta": qbvi.Normal(0, 1, shape=2)}
    >>> fit = qbvi.fit(lambda theta: -float(theta["beta"] @ theta["beta"]), prior, seed=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = fit.report(folder + "/report.html", title="Two coefficients").read_text()
    >>> page.count("<img ")
    3
    """
    summary = _renamed(fit.summary(), names if isinstance(names, Mapping) else {})
    heading = escape(summary.header[0] if title is None else title)
    body = [
        f"<h1>{heading}</h1>",
        _verdict_html(verdict_of(fit)),
        f"<h2>Posterior</h2><p>{escape(summary.header[0])}.</p>",
        _table(summary, _PAGE_ROWS),
        "<h2>Diagnostics</h2>" + _details(fit),
        _figures(fit, names, reference, figures or {}),
        _failures(fit),
        _priors(fit),
        _citation(fit),
    ]
    page = (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{heading}</title><style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )
    file = Path(path)
    file.write_text(page, encoding="utf-8")
    return file


def _renamed(summary: Summary, names: Mapping[str, str]) -> Summary:
    """The table with some entries under other names."""
    rows = tuple(row._replace(parameter=names.get(row.parameter, row.parameter)) for row in summary)
    return replace(summary, rows=rows)


def _doubts_on_missing(fit: Fit) -> list[str]:
    if math.isnan(fit.missing):
        return []
    error = largest_error(fit.missing, fit.missing_se)
    if math.isfinite(error) and error <= _CAREFUL:
        return []
    how_far = f"by up to about {error:.1f}" if error < 0.7 else "far"
    return [f"Fresh draws do not exclude that probabilities are {how_far} off; fit.check(1000) tells more."]


def _doubts_on_khat(fit: Fit) -> list[str]:
    meaning = judge_khat(fit.khat, fit.record.khat_draws, fit.missing)
    if meaning not in (Khat.DOUBTFUL, Khat.BAD):
        return []
    return [_sentence(f"k-hat is {fit.khat:.2f}, which is {fit.record.khat_verdict}")]


def _doubts_on_failures(fit: Fit) -> list[str]:
    share = fit.n_failed / max(fit.n_evals, 1)
    if share <= _MOST_FAILED:
        return []
    return [f"The function failed at {fit.n_failed:,} of {fit.n_evals:,} points ({share:.1%})."]


def _good_news(fit: Fit) -> list[str]:
    if math.isnan(fit.missing):
        return []
    error = max(largest_error(fit.missing, fit.missing_se), 0.01)
    return [f"No posterior probability is wrong by more than about {error:.2f}."]


def _sentence(text: str) -> str:
    return text if text.endswith(".") else text + "."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _verdict_html(verdict: Verdict) -> str:
    reasons = "".join(f"<p>{escape(reason)}</p>" for reason in verdict.reasons)
    return f'<div class="verdict {verdict.trust.value}"><p><b>{escape(verdict.headline)}</b></p>{reasons}</div>'


def _table(summary: Summary, most: int) -> str:
    head, *rows = summary.cells()
    more = f"<p>{len(rows) - most:,} more entries are in summary().</p>" if len(rows) > most else ""
    return f'<div class="wide">{html_table([head, *rows[:most]])}</div>{more}'


def _details(fit: Fit) -> str:
    """The diagnostics as a table of two columns."""
    rows = [
        line.split(maxsplit=1) if not line.startswith("log ") else ["log evidence", line[13:]]
        for line in diagnostic_lines(fit.record)
    ]
    return _words([(name, rest) for name, rest in rows])


def _words(rows: Sequence[tuple[str, str]]) -> str:
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows)
    return f'<div class="wide"><table class="words"><tbody>{body}</tbody></table></div>'


def _figures(fit: Fit, names: Names, reference: Any, figures: Mapping[str, Any]) -> str:
    try:
        drawn = _own_figures(fit, names, reference)
    except ImportError as error:
        drawn, missing = {}, f"<p>{escape(_capital(str(error)))}.</p>"
    else:
        missing = ""
    shown = "".join(
        f"<figure>{_framed(figure, caption)}<figcaption>{escape(caption)}</figcaption></figure>"
        for caption, figure in {**drawn, **figures}.items()
    )
    return f"<h2>Figures</h2>{missing}{shown}"


def _own_figures(fit: Fit, names: Names, reference: Any) -> dict[str, Any]:
    import qbvi.plots  # noqa: F401  # raises with the remedy where matplotlib is missing

    chosen = list(fit.labels) if names is None else _entries_of(fit, names)
    shown = names if isinstance(names, Mapping) else {}

    def first(n: int) -> dict[str, str]:
        return {label: shown.get(label, label) for label in chosen[:n]}

    found: dict[str, Any] = {}
    if len(fit.trace):
        found["The lower bound over evaluations, and its final estimate from fresh draws."] = fit.plot_trace()
    found[f"Marginal densities{_part(chosen, _PANELS)}."] = fit.plot_marginals(first(_PANELS), reference=reference)
    if len(chosen) > 1:
        caption = f"Pairs of entries{_part(chosen, _PAIRED)}, with regions of 50 % and 95 %."
        found[caption] = fit.plot_pairs(first(_PAIRED), reference=reference)
    if len(chosen) > _PANELS:
        caption = f"Medians, 50 % and 95 % intervals{_part(chosen, _FOREST)}."
        found[caption] = fit.plot_forest(first(_FOREST), reference=reference)
    return found


def _entries_of(fit: Fit, names: Sequence[str] | Mapping[str, str]) -> list[str]:
    from qbvi.plots.entries import select

    return [fit.labels[entry.place] for entry in select(fit, names, len(fit.labels))]


def _part(chosen: Sequence[str], most: int) -> str:
    return f" of the first {most} of {len(chosen):,} entries" if len(chosen) > most else ""


def _one_picture(fit: Fit) -> Any:
    """The pairs or, of one entry or of many, the marginals; None if there is nothing legible."""
    try:
        if 2 <= len(fit.labels) <= _PAIRED:
            return fit.plot_pairs()
        return fit.plot_marginals() if len(fit.labels) <= _PANELS else None
    except ImportError:  # without matplotlib a notebook shows the table alone
        return None


def _framed(figure: Any, words: str) -> str:
    """The image; one of two columns scrolls on a phone, because it would be too small to read."""
    image = _image(figure, words)
    return f'<div class="wide">{image}</div>' if figure.get_figwidth() > _BROAD else image


def _image(figure: Any, words: str, dpi: int = _DPI) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    width = round(_PIXELS * figure.get_figwidth())
    return f'<img alt="{escape(words)}" width="{width}" src="data:image/png;base64,{data}">'


def _failures(fit: Fit) -> str:
    if not fit.failures:
        return ""
    counts = ", ".join(f"{n:,} {kind}" for kind, n in Counter(failure.kind for failure in fit.failures).most_common())
    share = fit.n_failed / max(fit.n_evals, 1)
    more = f" The first {_LISTED} are:" if fit.n_failed > _LISTED else ""
    rows = [(failure.kind, _failure_line(failure)) for failure in fit.failures[:_LISTED]]
    text = f"{fit.n_failed:,} of {fit.n_evals:,} evaluations failed ({share:.1%}): {counts}.{more}"
    return f"<h2>Failed evaluations</h2><p>{escape(text)}</p>{_words(rows)}"


def _failure_line(failure: Failure) -> str:
    """Where, why and how long, as in the representation of a failure."""
    return repr(failure)[len("Failure(") : -1]


def _priors(fit: Fit) -> str:
    rows = [(p["name"], p["prior"]) for p in fit.model.describe()["parameters"]]
    return f"<h2>Priors</h2>{_words(rows)}"


def _citation(fit: Fit) -> str:
    seed = "" if fit.seed is None else f", seed {fit.seed}"
    method = f"{fit.record.method}, " if fit.record.method else ""
    how = (
        f"Posterior by qbvi {__version__} ({method}{fit.record.backend}{seed}) "
        f"from {fit.n_evals:,} evaluations of the log-likelihood."
    )
    cite = (
        "M. Magris, M. Shabani and A. Iosifidis (2022). Quasi Black-Box Variational Inference with Natural "
        f"Gradients for Bayesian Learning. {_PAPER}\n"
        f"The qbvi developers. qbvi: posteriors for log-likelihoods that cannot be differentiated, version {__version__}."
    )
    return (
        f"<h2>How to cite</h2><p>{escape(how)} If you use it, please cite the method's paper and this software:</p>"
        f"<pre>{escape(cite)}</pre>"
    )
