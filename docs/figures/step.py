"""Draw one step of the default method: docs/images/step.png, the figure of docs/method.md.

The problem is the bioassay of Racine et al. (1986, Applied Statistics 35, 93-150): deaths of
animals at four doses, a logistic regression with two parameters. The fit stops after its first
step. The figure uses only what the fit returns: the evaluated points, q before and after the step,
and the length beta of the step. From these the script recovers the quadratic part of the
regression. The step leads to the whitened precision ``P = I - beta C`` and the whitened mean
``beta P^-1 b``.

Run: ``python docs/figures/step.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import qbvi

DOSE, ANIMALS, DEATHS = np.array([-0.86, -0.30, -0.05, 0.73]), 5, np.array([0, 1, 3, 5])
PRIOR_MEAN, PRIOR_SD = np.array([0.0, 10.0]), np.array([2.0, 10.0])
START, START_SCALE = np.array([-2.0, 12.0]), 0.2  # off the mode and wide enough to see
OLD, NEW, REGRESSION, TRUTH = "#0072B2", "#D55E00", "#009E73", "#999999"  # Okabe and Ito: colour-blind safe
LEVELS = (-35.0, -25.0, -18.0, -13.0, -10.0, -8.0)  # of the log posterior, up to a constant
TARGET = Path(__file__).resolve().parents[1] / "images" / "step.png"


def log_likelihood(theta: np.ndarray) -> Any:
    """Of stacked points (n, 2): intercept and slope."""
    eta = theta[:, :1] + theta[:, 1:] * DOSE
    return eta @ DEATHS - ANIMALS * np.logaddexp(0, eta).sum(axis=1)


def log_joint(theta: np.ndarray) -> Any:
    """Log-likelihood plus log prior (n,)."""
    z = (theta - PRIOR_MEAN) / PRIOR_SD
    return log_likelihood(theta) - 0.5 * np.sum(z**2, axis=1) - np.log(2 * np.pi * PRIOR_SD.prod())


class Step:
    """The first step of a fit: what was evaluated, and q before and after."""

    def __init__(self) -> None:
        calls: list[np.ndarray] = []

        def recorded(theta: np.ndarray) -> Any:
            calls.append(theta.copy())
            return log_likelihood(theta)

        after: list[qbvi.Iterate] = []
        fit = qbvi.fit(
            recorded,
            qbvi.Normal(PRIOR_MEAN, PRIOR_SD),
            vectorized=True,
            init=START,
            method=qbvi.Regression(initial_scale=START_SCALE),
            callback=lambda iterate: after.append(iterate) or True,  # stop after the first step
            seed=1,
        )
        self.points = np.unique(calls[0], axis=0)  # four of them are evaluated twice
        self.mean, self.factor = START, np.diag(START_SCALE * PRIOR_SD)
        self.new_mean, self.new_cov = after[0].mean, after[0].cov
        self.bound, beta = after[0].elbo, fit.trace.step[0]
        precision = self.factor.T @ np.linalg.solve(self.new_cov, self.factor)
        shift = np.linalg.solve(self.factor, self.new_mean - self.mean)
        self.C, self.b = (np.eye(2) - precision) / beta, precision @ shift / beta
        of_covariance = 0.5 * (np.trace(np.linalg.inv(precision)) - 2 + np.linalg.slogdet(precision)[1])
        self.kl, self.reach = of_covariance + 0.5 * shift @ shift, np.linalg.norm(shift)

    def regression(self, theta: np.ndarray) -> Any:
        """The quadratic approximation of the log joint (n,): log q plus the regressed residual."""
        z = np.linalg.solve(self.factor, (theta - self.mean).T).T
        log_q = -0.5 * np.sum(z**2, axis=1) - np.log(2 * np.pi * np.linalg.det(self.factor))
        return log_q + self.bound + z @ self.b + 0.5 * (np.sum((z @ self.C) * z, axis=1) - np.trace(self.C))


def ellipse(mean: np.ndarray, factor: np.ndarray, radius: float) -> np.ndarray:
    """The image of a circle (2, 200)."""
    angle = np.linspace(0, 2 * np.pi, 200)
    return mean[:, None] + radius * factor @ np.stack([np.cos(angle), np.sin(angle)])


def main() -> None:
    """Fit and draw."""
    step = Step()
    figure = Figure(figsize=(8.4, 4.3), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    x, y = np.linspace(-4.6, 4.6, 240), np.linspace(-4, 26, 240)
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    wide = np.sqrt(-2 * np.log(0.05))  # a circle of this radius holds 95 % of a standard normal
    for panel in panels:
        panel.contour(
            x, y, log_joint(grid).reshape(240, 240), levels=LEVELS, colors=TRUTH, linestyles="-", linewidths=0.9
        )
        panel.plot(*ellipse(step.mean, step.factor, wide), color=OLD, linewidth=2)
        panel.plot(*step.mean, "o", color=OLD, markersize=4)
        panel.set_xlabel("intercept")
    panels[0].set_ylabel("slope")
    for panel in panels[:2]:
        panel.plot(*step.points.T, "o", color="black", markersize=4.5, markerfacecolor="white")
    values = step.regression(grid).reshape(240, 240)
    panels[1].contour(x, y, values, levels=LEVELS, colors=REGRESSION, linestyles="--", linewidths=1.4)
    panels[2].plot(*ellipse(step.mean, step.factor, step.reach), ":", color="black", linewidth=1.6)
    panels[2].plot(*ellipse(step.new_mean, np.linalg.cholesky(step.new_cov), wide), color=NEW, linewidth=2)
    panels[2].plot(*step.new_mean, "o", color=NEW, markersize=4)
    arrow = {"arrowstyle": "-|>", "color": "black", "shrinkA": 2, "shrinkB": 2}
    panels[2].annotate("", xy=step.new_mean, xytext=step.mean, arrowprops=arrow)
    for panel, title in zip(panels, ("1. Draw and evaluate", "2. Regress", "3. Move"), strict=True):
        panel.set_title(title, loc="left", fontsize=11)
    figure.legend(handles=keys(step), loc="outside lower center", ncols=2, frameon=False, fontsize=9.5)
    figure.savefig(TARGET, dpi=150)
    print(f"KL(new || old) {step.kl:.3f} nats; saved {TARGET.name}")


def keys(step: Step) -> list[Line2D]:
    """The legend."""
    return [
        Line2D([], [], color=TRUTH, label="log posterior (unknown to the method)"),
        Line2D([], [], color=OLD, label="old q, 95 % ellipse"),
        Line2D(
            [],
            [],
            color="black",
            linestyle="",
            marker="o",
            markerfacecolor="white",
            label="draws: mirror pairs from old q",
        ),
        Line2D([], [], color=REGRESSION, linestyle="--", label="regression, quadratic part"),
        Line2D([], [], color=NEW, label="new q, 95 % ellipse"),
        Line2D(
            [], [], color="black", linestyle=":", label=f"trust region: means allowed, KL(new || old) ≤ {step.kl:.0f}"
        ),
    ]


if __name__ == "__main__":
    main()
