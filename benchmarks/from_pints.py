"""Logistic growth, the first example of PINTS, by its samplers and by qbvi.

``python benchmarks/from_pints.py`` prints the table of docs/from/pints.md. It needs pints.
"""

from __future__ import annotations

import numpy as np
import pints
import pints.toy
from coming_from import Counted, Row, Watch, show

import qbvi

NAMES = ["rate", "capacity", "sigma"]


class CountedLikelihood(pints.LogLikelihood):
    """A log-likelihood that counts its calls."""

    def __init__(self, log_likelihood: pints.LogLikelihood) -> None:
        self.counted, self.d = Counted(log_likelihood), log_likelihood.n_parameters()

    def n_parameters(self) -> int:
        """Number of parameters."""
        return self.d

    def __call__(self, theta):
        """Value at a point."""
        return self.counted(theta)


def data() -> tuple[pints.toy.LogisticModel, np.ndarray, np.ndarray]:
    """A population and 60 noisy observations of it."""
    model, times = pints.toy.LogisticModel(), np.linspace(0, 1000, 60)
    return model, times, model.simulate([0.015, 500.0], times) + 12.0 * np.random.default_rng(3).standard_normal(60)


def posterior() -> tuple[pints.LogPosterior, CountedLikelihood]:
    """Noisy observations of a population, with a uniform prior."""
    model, times, values = data()
    log_likelihood = CountedLikelihood(pints.GaussianLogLikelihood(pints.SingleOutputProblem(model, times, values)))
    log_prior = pints.UniformLogPrior([0.01, 400.0, 5.0], [0.02, 600.0, 50.0])
    return pints.LogPosterior(log_likelihood, log_prior), log_likelihood


def by_mcmc() -> Row:
    """Three chains of PINTS's default method."""
    log_posterior, counted = posterior()
    np.random.seed(1)  # noqa: NPY002 - the only source of PINTS
    starts = [np.array([0.015, 500.0, 12.0]) * f for f in (0.99, 1.0, 1.01)]
    controller = pints.MCMCController(log_posterior, 3, starts, method=pints.HaarioBardenetACMC)
    controller.set_max_iterations(10_000)
    controller.set_log_to_screen(False)
    watch = Watch()
    chains = controller.run()[:, 2500:].reshape(-1, 3)
    return Row("PINTS, three chains", counted.counted.calls, watch.seconds, chains.mean(0), chains.std(0))


def by_nested() -> Row:
    """Nested ellipsoidal rejection sampling, PINTS's default for the evidence."""
    log_posterior, counted = posterior()
    np.random.seed(1)  # noqa: NPY002 - the only source of PINTS
    controller = pints.NestedController(counted, log_posterior.log_prior())
    controller.set_log_to_screen(False)
    controller.set_iterations(4000)
    watch = Watch()
    samples = controller.run()
    evidence = controller.marginal_log_likelihood(), controller.marginal_log_likelihood_standard_deviation()
    return Row(
        "PINTS, nested sampling", counted.counted.calls, watch.seconds, samples.mean(0), samples.std(0), evidence
    )


def by_quadrature() -> float:
    """The log evidence, by sums over a grid."""
    model, times, values = data()
    rate, capacity = np.linspace(0.0143, 0.0159, 161), np.linspace(478.0, 520.0, 161)
    sigma = np.linspace(5.0, 50.0, 2001)
    squares = np.array([[np.sum((model.simulate([r, k], times) - values) ** 2) for k in capacity] for r in rate])
    terms = -30 * np.log(2 * np.pi) - 60 * np.log(sigma) - squares[..., None] / (2 * sigma**2)
    cell = (rate[1] - rate[0]) * (capacity[1] - capacity[0]) * (sigma[1] - sigma[0])
    return float(terms.max() + np.log(np.sum(np.exp(terms - terms.max())) * cell / (0.01 * 200 * 45)))


def main() -> None:
    """The table of the page."""
    problem = qbvi.from_pints(posterior()[0], names=NAMES)
    show(NAMES, [by_mcmc(), by_nested(), Row.of("`qbvi.from_pints`", problem)])
    print(f"log evidence by quadrature: {by_quadrature():.3f}")


if __name__ == "__main__":
    main()
