"""The picture of docs/predict.md: a decay curve with its bands. Run: ``python docs/figures/predictive.py``."""

from pathlib import Path

import numpy as np

import qbvi

rng = np.random.default_rng(1)
t = np.sort(rng.uniform(0, 5, 60))
y = 3 * np.exp(-0.6 * t) + 0.5 * rng.standard_normal(60)


def curve(p, t):
    """The decay."""
    return p["a"] * np.exp(-p["rate"] * t)


def terms(p):
    """Log density of each observation."""
    return -0.5 * ((y - curve(p, t)) / p["sigma"]) ** 2 - np.log(p["sigma"]) - 0.919


prior = {"a": qbvi.Normal(0, 5), "rate": qbvi.LogNormal(0, 1), "sigma": qbvi.HalfNormal(1)}
fit = qbvi.fit(terms, prior, pointwise=True, seed=1)
figure = fit.plot_predictive(
    np.linspace(0, 7, 80),
    curve,
    (t, y),
    outcomes=lambda p, t, rng: rng.normal(curve(p, t), p["sigma"]),
    labels=("time", "signal"),
)
figure.savefig(Path(__file__).parents[1] / "images" / "predictive.png", dpi=160)
