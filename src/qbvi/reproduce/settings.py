"""The settings of an experiment: seed, folder of the data, and how much work to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["FULL", "QUICK", "Effort", "Settings"]


@dataclass(frozen=True)
class Effort:
    """How much work to do.

    Attributes
    ----------
    iterations
        Most iterations of the paper's method and of the baselines.
    mcmc_steps, mcmc_warmup
        Steps of every walker.
    noise_iterations, noise_draws
        For the experiment with control variates: iterations of each run, and draws for one estimate
        of the variance of a gradient.
    batch_sizes, batch_draws, batch_rows, batch_iterations
        For the mini-batch experiment: rows of a batch, draws of an iteration, rows of the data, and
        iterations.
    timing_runs
        For the timing experiment: number of runs.
    """

    iterations: int
    mcmc_steps: int
    mcmc_warmup: int
    noise_iterations: int
    noise_draws: int
    batch_sizes: tuple[int, ...]
    batch_draws: tuple[int, ...]
    batch_rows: int
    batch_iterations: int
    timing_runs: int


FULL = Effort(
    iterations=1000,
    mcmc_steps=2000,
    mcmc_warmup=1000,
    noise_iterations=500,
    noise_draws=2000,
    batch_sizes=(64, 128, 254, 514, 1028, 2056),
    batch_draws=(25, 50, 100, 200),
    batch_rows=50_000,
    batch_iterations=100,
    timing_runs=50,
)

QUICK = Effort(
    iterations=200,
    mcmc_steps=500,
    mcmc_warmup=500,
    noise_iterations=150,
    noise_draws=500,
    batch_sizes=(64, 514, 2056),
    batch_draws=(25, 100),
    batch_rows=50_000,
    batch_iterations=100,
    timing_runs=10,
)


@dataclass(frozen=True)
class Settings:
    """The settings that every experiment receives.

    Examples
    --------
    >>> Settings(effort=QUICK).iterations
    'at most 200 iterations (the paper: 1,000)'
    """

    seed: int = 1
    effort: Effort = FULL
    data: Path | None = None

    @property
    def iterations(self) -> str:
        """The limit on iterations of the paper's method and the baselines, in words."""
        paper = "" if self.effort.iterations == FULL.iterations else f" (the paper: {FULL.iterations:,})"
        return f"at most {self.effort.iterations:,} iterations{paper}"
