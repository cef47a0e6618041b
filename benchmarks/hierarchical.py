"""Eight schools in three forms: evaluations, means and standard deviations, beside the exact ones.

    python benchmarks/hierarchical.py --seeds 3
    python benchmarks/hierarchical.py --seeds 2 --groups 11 12 13 14

With ``--groups``, there are as many simulated schools in the centred form, and the log evidence is compared with quadrature.
docs/hierarchical.md has the tables.
"""

import argparse
import time

import numpy as np
from scipy import stats

import qbvi

Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SE = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
TOP = {"mu": qbvi.Normal(0, 5), "tau": qbvi.HalfCauchy(5.0)}


def centred(p):
    """The effects themselves, with their density given ``mu`` and ``tau``."""
    z = (p["theta"] - p["mu"]) / p["tau"]
    r = (Y - p["theta"]) / SE
    return float(-0.5 * z @ z - len(Y) * np.log(p["tau"]) - 0.5 * r @ r)


def not_centred(p):
    """Effects ``mu + tau * z`` with standard normal ``z``."""
    r = (Y - p["mu"] - p["tau"] * p["z"]) / SE
    return float(-0.5 * r @ r)


def integrated(p):
    """No effects: they are integrated out in closed form."""
    variance = SE**2 + p["tau"] ** 2
    return float(-0.5 * np.sum((Y - p["mu"]) ** 2 / variance + np.log(variance)))


FORMS = {
    "centred": (centred, TOP | {"theta": qbvi.Flat(8)}),
    "not centred": (not_centred, TOP | {"z": qbvi.Normal(0, 1, shape=8)}),
    "effects integrated out": (integrated, TOP),
}


def exact():
    """Mean and sd of mu and tau, by quadrature on a grid of mu and log tau."""
    mu, log_tau = np.meshgrid(np.linspace(-25, 35, 601), np.linspace(-10, 7, 1701), indexing="ij")
    tau = np.exp(log_tau)
    variance = SE**2 + tau[..., None] ** 2
    value = -0.5 * np.sum((Y - mu[..., None]) ** 2 / variance + np.log(variance), axis=-1)
    value += -0.5 * (mu / 5) ** 2 - np.log1p((tau / 5) ** 2) + log_tau
    weight = np.exp(value - value.max())
    weight /= weight.sum()
    for x in (mu, tau):
        mean = float((weight * x).sum())
        yield mean, float(np.sqrt((weight * (x - mean) ** 2).sum()))


class Schools:
    """More schools in the centred form, with their true log evidence."""

    def __init__(self, groups, seed):
        rng = np.random.default_rng([groups, seed])
        self.se = rng.uniform(8, 18, groups)
        self.y = rng.normal(5, 8, groups) + self.se * rng.standard_normal(groups)
        self.prior = TOP | {"theta": qbvi.Flat(groups)}

    def __call__(self, p):
        """Log density of effects and outcomes."""
        return (
            stats.norm.logpdf(self.y, p["theta"], self.se).sum()
            + stats.norm.logpdf(p["theta"], p["mu"], p["tau"]).sum()
        )

    def evidence(self):
        """Log evidence by quadrature: given mu and tau the effects have a closed integral."""
        mu, log_tau = np.meshgrid(np.linspace(-30, 40, 561), np.linspace(-14, 8, 1761), indexing="ij")
        tau = np.exp(log_tau)
        value = stats.norm.logpdf(mu, 0, 5) + stats.halfcauchy.logpdf(tau, scale=5) + log_tau
        for y, se in zip(self.y, self.se, strict=True):
            value += stats.norm.logpdf(y, mu, np.hypot(se, tau))
        top = value.max()
        return top + np.log(np.exp(value - top).sum() * (mu[1, 0] - mu[0, 0]) * (log_tau[0, 1] - log_tau[0, 0]))


def larger(groups, seeds):
    """Print one line for each number of groups and seed, and the best Gaussian beside it."""
    print("groups   d seed evaluations converged  evidence: off  its error  CPU s   one Gaussian: evaluations  missing")
    for n in groups:
        for seed in seeds:
            schools = Schools(n, seed)
            truth, start = schools.evidence(), time.process_time()
            fit = qbvi.fit(schools, schools.prior, max_evals=4000, seed=seed, progress=False)
            seconds = time.process_time() - start
            one = qbvi.fit(schools, schools.prior, family="full", max_evals=4000, seed=seed, progress=False)
            ours = f"{fit.n_evals:11,} {fit.converged!s:>9} {fit.evidence - truth:14.3f} {fit.evidence_se:10.3f} {seconds:6.1f}"
            print(f"{n:6d} {n + 2:3d} {seed:4d} {ours} {one.n_evals:27,} {truth - one.elbo:8.2f}", flush=True)


def main():
    """Print one line for each form and seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--groups", type=int, nargs="+")
    args = parser.parse_args()
    seeds = range(1, args.seeds + 1)
    if args.groups:
        larger(args.groups, seeds)
        return
    print(f"{'form':24s} seed evaluations converged   mu (mean, sd)   tau (mean, sd)  off by at most")
    (mu, mu_sd), (tau, tau_sd) = exact()
    print(f"{'exact, by quadrature':44s} {mu:9.2f} {mu_sd:5.2f} {tau:9.2f} {tau_sd:5.2f}")
    for name, (function, prior) in FORMS.items():
        for seed in seeds:
            fit = qbvi.fit(function, prior, max_evals=3000, seed=seed)
            top = [f"{fit.mean[k]:9.2f} {fit.sd[k]:5.2f}" for k in ("mu", "tau")]
            error = np.sqrt((max(fit.missing, 0) + fit.missing_se) / 2)
            print(
                f"{name:24s} {seed:4d} {fit.n_evals:11,} {fit.converged!s:>9} {' '.join(top)} {error:9.2f}", flush=True
            )


if __name__ == "__main__":
    main()
