"""Draw the posterior of the README's example: docs/images/posterior.png.

The data are the biochemical oxygen demand of Marske (1967), from Bates and Watts (1988, Nonlinear
Regression Analysis and Its Applications, appendix A4.1). Two parameters are few enough for a grid,
which gives the exact posterior.

Run: ``python docs/figures/posterior.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import qbvi

DAYS = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 7.0])
OXYGEN = np.array([8.3, 10.3, 19.0, 16.0, 15.6, 19.8])
ENDS = {"limit": 60.0, "rate": 2.0}  # of the uniform priors, which begin at zero
FREE, GAUSSIAN = "#0072B2", "#D55E00"  # Okabe and Ito: colour-blind safe
CELLS = 600  # of the grid, in each direction
WINDOW = {"xlim": (10.0, 36.0), "ylim": (0.0, 1.7)}  # that the figure shows
TARGET = Path(__file__).resolve().parents[1] / "images" / "posterior.png"


def log_likelihood(p: dict[str, Any]) -> Any:
    """As in the README, for one point or for stacked ones."""
    expected = p["limit"] * (1 - np.exp(-p["rate"] * DAYS))
    return -0.5 * np.sum(((OXYGEN - expected) / 2.5) ** 2, axis=-1)


def main() -> None:
    """Fit and draw."""
    prior = {name: qbvi.Uniform(0, end) for name, end in ENDS.items()}
    fits = {family: qbvi.fit(log_likelihood, prior, family=family, seed=1) for family in ("auto", "full")}
    middle = (np.arange(CELLS) + 0.5) / CELLS
    grid = {name: end * middle for name, end in ENDS.items()}
    points = dict(zip(grid, np.meshgrid(*grid.values(), indexing="ij"), strict=True))
    log_density = log_likelihood({name: values[..., None] for name, values in points.items()})
    mass = np.exp(log_density - log_density.max())
    evidence = float(np.log(mass.mean()) + log_density.max())  # the prior is uniform over the grid

    figure = Figure(figsize=(8.4, 3.3), layout="constrained")
    panels = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
    draws = fits["auto"].sample(1500, seed=2)
    panels[0].plot(draws["limit"], draws["rate"], ".", color=FREE, markersize=2.5, alpha=0.5)
    panels[0].contour(*grid.values(), mass.T, levels=levels(mass), colors="black", linewidths=1)
    flat = {name: values.ravel() for name, values in points.items()}
    gaussian = np.exp(fits["full"].log_prob(flat, batched=True)).reshape(mass.shape)
    panels[0].contour(*grid.values(), gaussian.T, levels=levels(gaussian), colors=GAUSSIAN, linestyles="--")
    panels[0].set(xlabel="limit", ylabel="rate", **WINDOW)
    marginals(panels[1:], {"exact": mass, "gaussian": gaussian}, grid, fits["auto"])
    figure.legend(handles=keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=9.5)
    figure.savefig(TARGET, dpi=150)
    for family, fit in fits.items():
        print(f"{family}: {fit.n_evals} evaluations, evidence {fit.evidence:.3f} ± {fit.evidence_se:.3f}")
    print(f"evidence by the grid {evidence:.3f}; saved {TARGET.name}")


def marginals(panels: Any, masses: dict[str, np.ndarray], grid: dict[str, np.ndarray], fit: qbvi.Fit) -> None:
    """The density of each parameter: on the grid, and by draws of the fit."""
    draws = fit.sample(40_000, seed=3)
    for axis, (panel, (name, x)) in enumerate(zip(panels, grid.items(), strict=True)):
        panel.hist(draws[name], bins=90, range=(0, x[-1]), density=True, color=FREE, alpha=0.45)
        for which, mass in masses.items():
            density = mass.sum(axis=1 - axis)
            density /= density.sum() * (x[1] - x[0])
            is_exact = which == "exact"
            panel.plot(x, density, "-" if is_exact else "--", color="black" if is_exact else GAUSSIAN, linewidth=1.2)
        panel.set(xlabel=name, yticks=[], xlim=WINDOW["xlim" if name == "limit" else "ylim"])


def levels(mass: np.ndarray) -> list[float]:
    """The densities above which 95 % and 50 % of the probability lie."""
    ordered = np.sort(mass, axis=None)[::-1]
    share = np.cumsum(ordered) / ordered.sum()
    return [float(ordered[np.searchsorted(share, level)]) for level in (0.95, 0.5)]


def keys() -> list[Line2D]:
    """The legend."""
    return [
        Line2D([], [], color=FREE, linestyle="", marker="o", label="qbvi: draws"),
        Line2D([], [], color="black", label="exact, by a grid"),
        Line2D([], [], color=GAUSSIAN, linestyle="--", label='family="full": one Gaussian'),
    ]


if __name__ == "__main__":
    main()
