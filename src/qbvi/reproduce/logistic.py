"""The two logistic regressions of the paper: every method, beside the exact best Gaussian."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import qbvi
from qbvi.reproduce import figures, measures
from qbvi.reproduce.data import Split
from qbvi.reproduce.estimates import (
    DEFAULT,
    PRIOR_VARIANCE,
    Estimate,
    beside_published,
    cost_rows,
    gaussian_methods,
    heading,
    marginal_paths,
    published_row,
)
from qbvi.reproduce.exact import Best, LogisticBound
from qbvi.reproduce.published import PERFORMANCE
from qbvi.reproduce.report import Picture, Report
from qbvi.reproduce.settings import Settings
from qbvi.reproduce.tables import Row, Table

__all__ = ["LogisticExperiment"]

Floats = NDArray[np.float64]

_MEASURES = ("precision", "recall", "accuracy", "F1")
# What the paper's four test rows hold, under the labels precision, recall, accuracy and F1.
_TEST_ROWS = ("accuracy", "F1", "precision of the zeros", "precision of the ones")
_SHOWN = 8  # parameters in a figure
_PAPERS = {"QBVI diagonal": "diagonal", "QBVI": "full"}  # columns of the paper's own method, and their families


@dataclass(frozen=True, eq=False)
class LogisticExperiment:
    """A data set, the paper's columns for it, and what was computed.

    Parameters
    ----------
    name, title
        Name and title of the report.
    split
        The data.
    paper
        Published columns: coefficients, then the lower bound.
    settings
        Seed and effort.
    """

    name: str
    title: str
    split: Split
    paper: dict[str, tuple[float, ...]]
    settings: Settings

    def report(self) -> Report:
        """Run every method and put the numbers side by side."""
        about = (
            f"Logistic regression, {len(self.split.y)} training and {len(self.split.y_test)} test rows, {self.d} "
            f"coefficients with independent N(0, 5) priors, seed {self.settings.seed}. QBVI, BBVI, CGVB and MGVB: "
            f"{self.settings.iterations}; {DEFAULT}: qbvi.fit with nothing set."
        )
        return Report(
            name=self.name,
            title=self.title,
            about=(about,),
            tables=(self.means_table, self.variances_table, self.performance_table),
            pictures=(self._learning(), self._paths()),
            findings=self._findings(),
        )

    @cached_property
    def columns(self) -> dict[str, Estimate]:
        """Every method's estimate, in the order of the table."""
        fits = {
            name: self._fitted(*how)
            for name, how in gaussian_methods(self.model.gradient, self.settings.effort).items()
        }
        default = fits.pop(DEFAULT)
        return fits | {"MCMC": self._mcmc(), "ML": self._ml(), DEFAULT: default, "exact best": self._exact()}

    @cached_property
    def published(self) -> dict[str, Estimate]:
        """The paper's own QBVI, with the exact bound of its parameters.

        The paper prints no correlations and, for the diagonal family, no variances. Those of the
        best Gaussian are used instead.
        """
        return {name: self._as_published(name, family) for name, family in _PAPERS.items()}

    @cached_property
    def model(self) -> Any:
        """The likelihood of the training rows."""
        return qbvi.models.Logistic(self.split.X, self.split.y)

    @cached_property
    def bound(self) -> LogisticBound:
        """The lower bound of any Gaussian, exact up to rounding."""
        return LogisticBound(self.model.design, self.split.y, PRIOR_VARIANCE)

    @cached_property
    def best(self) -> dict[str, Best]:
        """The best Gaussian of each family."""
        return {family: self.bound.best(family == "diagonal") for family in ("full", "diagonal")}

    @cached_property
    def chains(self) -> Any:
        """Draws from the posterior itself; the chains start near its centre."""
        effort = self.settings.effort
        return qbvi.baselines.mcmc(
            self.model.log_likelihood,
            self.prior,
            vectorized=True,
            init=self.best["full"].mean,
            n_steps=effort.mcmc_steps,
            warmup=effort.mcmc_warmup,
            seed=self.settings.seed,
        )

    @property
    def prior(self) -> qbvi.Normal:
        """The paper's prior."""
        return qbvi.Normal(0.0, math.sqrt(PRIOR_VARIANCE), shape=self.d)

    @property
    def d(self) -> int:
        """Number of coefficients."""
        return len(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coefficients."""
        return ("intercept", *self.split.names)

    @cached_property
    def parts(self) -> dict[str, tuple[Floats, Floats]]:
        """Training and test rows: the design with its column of ones, and the target."""
        rows = {"train": (self.split.X, self.split.y), "test": (self.split.X_test, self.split.y_test)}
        return {part: (np.column_stack([np.ones(len(X)), X]), y) for part, (X, y) in rows.items()}

    @property
    def means_table(self) -> Table:
        """Posterior means, bounds and costs of all methods."""
        columns = beside_published(self.columns, self.published)
        rows = [self._parameter_row(j, "mean", "", columns) for j in range(self.d)]
        bounds = {
            name: values[self.d]
            for name, values in self.paper.items()
            if len(values) > self.d and name not in self.published
        }
        return Table(
            f"{self.name}-means",
            f"Posterior means (paper, table par_{self.name})",
            tuple(heading(name, columns) for name in columns),
            (*rows, *cost_rows(columns, bounds)),
            note="Lower bounds are fresh estimates, those of the paper its best smoothed ones; 'best of the family' and the nats "
            "below it are exact, by quadrature. As published: nats of the published means and variances, what the paper does "
            "not print (correlations; variances of the diagonal family) taken from the best Gaussian. MCMC: evaluations "
            "include the warm-up.",
        )

    @property
    def variances_table(self) -> Table:
        """Posterior variances of the columns that the paper gives, and of ours."""
        shown = {name: self.columns[name] for name in ("QBVI", "MCMC", "ML", DEFAULT, "exact best")}
        columns = beside_published(shown, self.published)
        rows = tuple(self._parameter_row(j, "variance", " variance", columns) for j in range(self.d))
        title = f"Posterior variances (paper, table par_{self.name})"
        headings = tuple(heading(name, columns) for name in columns)
        return Table(f"{self.name}-variances", title, headings, rows, note="ML: from the asymptotic covariance.")

    @cached_property
    def performance(self) -> dict[str, dict[str, dict[str, float]]]:
        """Measures by part of the data, by method: at the posterior means."""
        return {
            part: {name: _measured(*rows, self.columns[name].mean) for name in ("QBVI", "ML", DEFAULT)}
            for part, rows in self.parts.items()
        }

    @property
    def performance_table(self) -> Table:
        """The part of Table 1 for these data."""
        note = "Precision, recall and F1 are means over the two classes."
        return measures.performance_table(self.name, self.performance, note)

    def _fitted(self, method: Any, family: str) -> Estimate:
        start = time.perf_counter()
        fit = self.model.fit(self.prior, method=method, family=family, seed=self.settings.seed, progress=False)
        seconds = time.perf_counter() - start
        mean, cov = fit.unconstrained
        best = self.best[family].bound
        return Estimate(
            mean, np.diag(cov), fit.elbo, fit.elbo_se, self.bound(mean, cov), best, fit.n_evals, seconds, fit
        )

    def _mcmc(self) -> Estimate:
        start = time.perf_counter()
        chains = self.chains
        return Estimate(chains.mean, chains.sd**2, n_evals=chains.n_evals, seconds=time.perf_counter() - start)

    def _ml(self) -> Estimate:
        found = self.model.maximum_likelihood()
        estimate = np.array([float(value) for value in found.estimate.values()])
        return Estimate(estimate, np.diag(found.cov), n_evals=found.n_evals)

    def _exact(self) -> Estimate:
        best = self.best["full"]
        return Estimate(best.mean, np.diag(best.cov), exact_bound=best.bound, best=best.bound)

    def _as_published(self, name: str, family: str) -> Estimate:
        values, best = self.paper[name], self.best[family]
        mean, missing = np.array(values[: self.d]), (math.nan,) * self.d
        variance = np.array(self.paper.get(f"{name} variance", missing))
        scale = np.sqrt(np.where(np.isnan(variance), 1.0, variance / np.diag(best.cov)))
        bound = self.bound(mean, best.cov * scale[:, None] * scale)
        return Estimate(mean, variance, values[self.d], exact_bound=bound, best=best.bound)

    def _parameter_row(self, j: int, moment: str, suffix: str, columns: Mapping[str, Estimate]) -> Row:
        shown = {name: float(getattr(column, moment)[j]) for name, column in columns.items()}
        beside = [name for name in columns if name not in self.published and name + suffix in self.paper]
        return published_row(self.names[j], shown, {name: self.paper[name + suffix][j] for name in beside})

    def _learning(self) -> Picture:
        figure, axes = figures.new_figure(1, 3, (11.0, 3.4))
        fit: Any = self.columns["QBVI"].fit
        figures.bound_panel(axes[0, 0], fit.trace.elbo_smooth, self.best["full"].bound)
        found = {part: measures.classification(*rows, fit.trace.mean) for part, rows in self.parts.items()}
        lines = [
            figures.Curve(name if part == "train" else f"{name}, test", found[part][name], part == "test")
            for name in _MEASURES
            for part in found
        ]
        figures.curves(axes[0, 1], lines, "Performance")
        axes[0, 1].legend(fontsize=6.5, frameon=False, ncols=2, loc="lower right")
        likelihoods = [
            figures.Curve(
                f"{part}, per row", measures.log_likelihood(*rows, fit.trace.mean) / len(rows[1]), part == "test"
            )
            for part, rows in self.parts.items()
        ]
        figures.curves(axes[0, 2], likelihoods, "Log-likelihood at the posterior mean")
        caption = (
            "QBVI as it learns: smoothed lower bound with its maximum, performance measures and log-likelihoods "
            "on training and test rows."
        )
        return Picture(f"{self.name}-learning", caption, figure)

    def _paths(self) -> Picture:
        fit: Any = self.columns["QBVI"].fit
        widest = np.argsort(-self.columns["exact best"].variance, kind="stable")[:_SHOWN]
        chosen = sorted(int(j) for j in widest)
        columns = {name: self.columns[name] for name in ("QBVI", "MGVB", DEFAULT)}
        parameters = marginal_paths({j: self.names[j] for j in chosen}, fit.trace, columns, self.chains.draws)
        which = "all coefficients" if self.d <= _SHOWN else f"the {_SHOWN} coefficients with the widest posteriors"
        caption = (
            f"Posterior means and variances of QBVI over the iterations, and the marginals of {which}: QBVI, MGVB and "
            "our default beside draws of the posterior (MCMC) and the prior."
        )
        return Picture(f"{self.name}-parameters", caption, figures.paths(parameters))

    def _findings(self) -> tuple[str, ...]:
        return (
            self._on_ml(),
            self._on_default(),
            self._on_published_bounds(),
            self._on_mcmc() + " " + self._on_ml_variances(),
            self._on_test_rows(),
        )

    def _on_ml(self) -> str:
        off = np.abs(self.columns["ML"].mean - np.array(self.paper["ML"])).max()
        ours, paper = (self.performance["train"]["ML"]["log-likelihood"], PERFORMANCE[self.name]["log-likelihood"][1])
        verdict = "agree with the published ones" if off < 0.002 else "differ from the published ones"
        return (
            f"Maximum likelihood: the estimates {verdict} (largest difference {off:.4f}), and so the data and the "
            f"split are {'those of the paper' if off < 0.002 else 'not quite those of the paper'}; training "
            f"log-likelihood {ours:.3f}, published {paper:.2f}."
        )

    def _on_default(self) -> str:
        ours, loop, literal = (self.columns[name] for name in (DEFAULT, "QBVI", "QBVI literal"))
        exact = self.columns["exact best"]
        away = np.max(np.abs(ours.mean - exact.mean) / np.sqrt(exact.variance))
        return (
            f"Our default spends {ours.n_evals:,} evaluations and ends {ours.gap:.4f} nats below the best Gaussian, "
            f"its means at most {away:.3f} posterior standard deviations from the exact ones. The paper's loop spends "
            f"{loop.n_evals:,} and ends {loop.gap:.4f} nats below it in the reading nearest to the published tables, "
            f"{literal.gap:.1f} nats below with the control variate as printed. "
            + _ranking({name: self.columns[name] for name in ("BBVI", "CGVB", "MGVB")})
        )

    def _on_published_bounds(self) -> str:
        return " ".join(self._on_published(name) for name in _PAPERS)

    def _on_published(self, name: str) -> str:
        paper, ours = self.published[name], self.columns[name]
        best = self.best[_PAPERS[name]]
        side = "below" if paper.bound < paper.best else "above"
        why = "" if paper.bound < paper.best else ", where no bound can lie: it is the maximum of a noisy curve"
        off = np.abs(paper.mean - best.mean)
        away = off / np.sqrt(np.diag(best.cov))
        return (
            f"{name}: the published bound {paper.bound:.3f} is {abs(paper.best - paper.bound):.3f} {side} the exact optimum "
            f"{paper.best:.3f}{why}. The published parameters are {paper.gap:.4f} nats below it, ours {ours.gap:.4f}, and by "
            f"the paper's way of reporting ours would print {ours.best_smoothed:.3f}. The published means are at most "
            f"{off.max():.3f} ({away.max():.2f} posterior standard deviations) from the exact ones."
        )

    def _on_mcmc(self) -> str:
        exact, published = self.columns["exact best"].variance, np.array(self.paper["MCMC variance"])
        ours = self.columns["MCMC"].variance / exact
        ratio = np.maximum(published, 5e-4) / exact
        agree = "agree with" if ratio.min() > 0.75 and ratio.max() < 1.35 else "do not agree with"
        return (
            f"Variances: those of our MCMC are {ours.min():.2f} to {ours.max():.2f} times those of the best Gaussian "
            f"(r-hat at most {self.chains.rhat.max():.2f}); the published MCMC variances, {ratio.min():.2f} to "
            f"{ratio.max():.2f} times, {agree} "
            f"them{'' if agree == 'agree with' else ', as those of a chain that has not mixed would'}."
        )

    def _on_ml_variances(self) -> str:
        published = np.array(self.paper["ML variance"])
        chosen = published > 0.05  # below, three decimals say too little
        of_ml, of_best = (
            np.abs(published / self.columns[name].variance - 1)[chosen].max() for name in ("ML", "exact best")
        )
        nearer = "; they are rather those of a posterior" if of_best < 0.5 * of_ml else ""
        return (
            f"The published variances of ML, where they exceed 0.05, are up to {of_ml:.0%} from the inverse information at "
            f"the maximum and up to {of_best:.0%} from the variances of the best Gaussian{nearer}."
        )

    def _on_test_rows(self) -> str:
        published = np.array([PERFORMANCE[self.name][measure][3] for measure in _MEASURES])
        ours = np.array([self.performance["test"]["ML"][measure] for measure in _MEASURES])
        shifted = np.array([self.performance["test"]["ML"][measure] for measure in _TEST_ROWS])
        train = [(PERFORMANCE[self.name][m][1], self.performance["train"]["ML"][m]) for m in _MEASURES]
        off = max(abs(paper - here) for paper, here in train)
        start = f"Table 1: the training measures of ML are within {off:.4f} of the published ones. "
        if np.abs(published - shifted).max() < 0.002 < np.abs(published - ours).max():
            return start + (
                "In the test columns the paper's rows hold other measures than their labels: its precision, recall, "
                "accuracy and F1 are our accuracy, F1, precision of the zeros and precision of the ones, to within "
                f"{np.abs(published - shifted).max():.4f} for ML."
            )
        return start + f"The test measures differ by at most {np.abs(published - ours).max():.3f}."


def _measured(design: Floats, y: Floats, beta: Floats) -> dict[str, float]:
    found = measures.classification(design, y, beta) | {"log-likelihood": measures.log_likelihood(design, y, beta)}
    return {name: float(value) for name, value in found.items()}


def _ranking(columns: dict[str, Estimate]) -> str:
    parts = [f"{name} {estimate.gap:.3f}" for name, estimate in columns.items()]
    return f"Nats below the best, the others: {', '.join(parts)}."
