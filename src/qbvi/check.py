"""A check of a posterior: fresh draws from it, at which the user's function is evaluated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import whole_number
from qbvi.arrays import Array
from qbvi.diagnostics import KHAT_LIMIT, Judged, missing_error, pareto_khat
from qbvi.ending import Stop, StopKind
from qbvi.evaluate import BlackBox, OnFailure
from qbvi.evaluate.black_box import calls_of
from qbvi.evaluate.executors import open_runner
from qbvi.evaluations import Evaluations, Record
from qbvi.families import Family, Gaussian, Sample
from qbvi.noise import Figures, Noise
from qbvi.regression.noise import Repeats, law_around
from qbvi.regression.rules import NoiseCheck, Weighting
from qbvi.report import Report
from qbvi.results import Fit
from qbvi.verdict import Verdict

__all__ = ["Source", "check"]

Floats = NDArray[np.float64]

# Nats that a check may find missing, beyond two standard errors, of a posterior that counts as
# complete: twice the default tolerance.
_MOST_MISSING = 0.1
_ERRORS = 2.0
# Missing nats below which the tail of the ratios is rounding: marginals are within 0.02 in total
# variation whatever it looks like.
_NEGLIGIBLE = 1e-3
_STREAM = 0x0C4EC  # keeps the random numbers of checks apart from those of the fit


@dataclass(frozen=True, eq=False)
class Source:
    """How to call the user's function again, as the fit called it.

    Parameters
    ----------
    function, vectorized, on_failure, executor, timeout
        As for `qbvi.fit`; the function takes and returns NumPy arrays.
    batches
        Its data, of which it gets all rows; None if it takes none.
    terms
        The function that returns the terms of the log-likelihood, one for each observation; None
        if it is not known.
    simulate
        A function of stacked points, with an argument ``rng``, that simulates new data: an array
        (n, ...), or a dict of them; None if it is not known.
    observed
        The observed data by name, in the form of the simulated ones.
    """

    function: Callable[..., Any]
    vectorized: bool | int = False
    on_failure: OnFailure = "raise"
    executor: Any = None
    timeout: float | None = None
    batches: Any = None
    terms: Callable[..., Any] | None = None
    simulate: Callable[..., Any] | None = None
    observed: Mapping[str, Any] | None = None
    kept: dict[Any, Any] = field(default_factory=dict, repr=False)  # terms at draws, for a second use

    @property
    def batch(self) -> tuple[Any, ...]:
        """Further arguments of a call for all data."""
        return () if self.batches is None else (self.batches.draw(np.random.default_rng(0))[0],)

    @property
    def is_partial(self) -> bool:
        """Whether a call gets only some rows of the data."""
        return self.batches is not None and bool(self.batches.is_partial)


class Ratios(NamedTuple):
    """Log importance ratios at draws from q."""

    h: Floats  # (n,) where the posterior is not zero
    noise: Noise  # at these draws
    zero: float  # share of the draws at which the posterior is zero

    @classmethod
    def of(cls, h: Floats, noise: Floats, error: float = 0.0) -> Ratios:
        """Draws with NaN, at which the function failed, are left out.

        ``noise`` are the variances of the noise (n,), with a relative error.
        """
        known, finite = ~np.isnan(h), np.isfinite(h)
        return cls(h[finite], Noise(noise[finite], error), float(1 - finite.sum() / max(known.sum(), 1)))

    def figures(self) -> dict[str, Any]:
        r"""Bound, evidence, missing nats and k-hat, by their names in a report.

        With r the log ratio and z the share of zeros,

        .. math:: \log p(y) = \log(1 - z) + \log E e^r, \quad \mathrm{KL} = \log E e^r - E r

        The divergence is that of q without the region where the posterior is zero.
        """
        h, n, allowed = self.h, len(self.h), math.log1p(-self.zero)
        found, khat = self._of_noise() if self.noise.mean else self._exact()
        if khat > KHAT_LIMIT:  # the largest ratios are still to come
            found = found._replace(evidence_se=math.inf, missing_se=math.inf)
        return {
            "elbo": float(h.mean()) + allowed,
            "elbo_se": float(h.std(ddof=1)) / math.sqrt(n),
            "evidence": found.evidence + allowed,
            "evidence_se": math.hypot(found.evidence_se, math.sqrt(self.zero / n)),
            "missing": found.missing,
            "missing_se": found.missing_se,
            "khat": khat,
            "khat_draws": n,
        }

    def _exact(self) -> tuple[Figures, float]:
        """Figures and k-hat of a function without noise."""
        h, root = self.h, math.sqrt(len(self.h))
        ratios = np.exp(h - h.max())
        gain = float(h.max() + np.log(np.mean(ratios)))
        ratios /= ratios.mean()
        missing = gain - float(h.mean())
        khat = -math.inf if missing < _NEGLIGIBLE else pareto_khat(h)[0]
        return Figures(gain, float(ratios.std(ddof=1)) / root, missing, missing_error(h)), khat

    def _of_noise(self) -> tuple[Figures, float]:
        """Figures and k-hat of a noisy function."""
        judged = Judged.by(self.h, self.noise)
        return judged.figures, judged.khat


def check(fit: Fit, n: int, source: Source, seed: int | np.random.Generator | None = None) -> Fit:
    """Evaluate the function at n draws from the posterior, and judge the posterior by them.

    Draws of earlier checks of the same fit count too. With ``seed=None`` the draws follow from the
    fit's own seed, and each further check has new ones.
    """
    n = whole_number("n", n)
    if isinstance(fit.family, Sample):
        msg = "`check` judges a density by draws from it, and this posterior is known by its draws alone: check the fit that it started from, as in chains.start.check(...)"
        raise TypeError(msg)
    if source.is_partial:
        msg = "`log_likelihood` must be given: this fit used mini-batches, whose values are of different data; pass a function of all data"
        raise ValueError(msg)
    u = fit.draw_unconstrained(n, _stream(fit) if seed is None else seed)
    box, new = _bought(fit, u, source)
    table = new if fit.evaluations is None else Evaluations.joined([fit.evaluations, new])
    report = replace(
        fit.record,
        evaluations=table,
        n_evals=fit.n_evals + box.n_evals,
        failures=(*fit.failures, *box.failures),
    )
    checked = replace(fit, record=report)
    h, noise = checked.log_ratios
    ratios = Ratios.of(h, *_noise(checked, noise))
    if len(ratios.h) < 2:
        msg = f"`n` must be larger: of {n} draws from this posterior {len(ratios.h)} had a finite value"
        raise ValueError(msg)
    return replace(checked, record=_judged(_figured(report, ratios), ratios))


def _figured(report: Report, ratios: Ratios) -> Report:
    """The report with the figures of the draws, but with its own bound if that is exact."""
    found = replace(report, **ratios.figures())
    if report.elbo_se != 0:
        return found
    evidence = report.elbo + found.missing
    return replace(found, elbo=report.elbo, elbo_se=0.0, evidence=evidence, evidence_se=found.missing_se)


def _noise(fit: Fit, returned: Floats) -> tuple[Floats, float]:
    """Variances of the noise at the draws of the check (n,), and their relative error.

    They are what the function returns, or what the points imply that the fit evaluated twice.
    """
    table, rule = fit.evaluations, NoiseCheck()
    if np.any(returned > 0) or table is None:
        return returned, 0.0
    family, q = _family_around(fit)
    own = table[np.isin(table.stage, ("step", "fresh"))]
    assert own.unconstrained is not None
    repeats = Repeats.among(own.unconstrained, own.values, rule)
    squares = np.sum(family.coordinates(q, repeats.theta) ** 2, axis=1)
    n_near = int(np.sum(squares < Weighting().usual_square(family.n_whitened)))
    law = law_around(family, q, repeats, rule)
    u = table[table.stage == "posterior"].unconstrained
    return law.at(np.sum(family.coordinates(q, u) ** 2, axis=1)), rule.relative_error(n_near)


def _family_around(fit: Fit) -> tuple[Family, Array]:
    """The posterior's own family, or a Gaussian with its moments if it has no coordinates."""
    if isinstance(fit.family, Family):
        return fit.family, fit.q
    gaussian = Gaussian(fit.model.dim)
    return gaussian, gaussian.from_moments(fit.family.mean(fit.q), fit.family.cov(fit.q))


def _stream(fit: Fit) -> np.random.Generator:
    """Random numbers that follow from the fit's seed and from the checks so far."""
    if fit.seed is None:
        return np.random.default_rng()
    return np.random.default_rng([_STREAM, fit.seed, fit.n_evals])


def _bought(fit: Fit, u: Floats, source: Source) -> tuple[BlackBox, Evaluations]:
    """Evaluate the function at unconstrained points (n, d)."""
    record = Record(fit.model.dim)
    calls = calls_of(source.function, source.vectorized, source.on_failure)
    with open_runner(calls, source.executor, source.timeout) as runner:
        box = BlackBox(source.function, source.vectorized, source.on_failure, runner=runner)
        box.on_returned = lambda made, values, noise_sd: record.add(u[made], values, noise_sd, "posterior")
        box(fit.model.constrain(u), *source.batch)
    return box, record.table(fit.model)


def _judged(report: Report, ratios: Ratios) -> Report:
    """Take a convergence back if the draws contradict it."""
    judged = Judged.by(ratios.h, ratios.noise) if ratios.noise.mean else None
    h, missing = (ratios.h, report.missing) if judged is None else (judged.ratios, judged.proven)
    stop = Verdict().on_ratios(Stop(report.stop_kind, report.stop_reason), h, report.khat, missing)
    if stop.kind is StopKind.MISSING and report.missing - _ERRORS * report.missing_se > _MOST_MISSING:
        stop = stop.but(StopKind.CHECKED, nats=report.missing)
    note = f"bound, evidence, missing nats and k-hat are from a check with {len(ratios.h):,} draws"
    kept = [old for old in report.notes if "from a check with" not in old]
    return replace(report.ended(stop), notes=(*kept, note))
