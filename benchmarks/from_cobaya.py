"""The input file with which Cobaya's documentation begins: qbvi beside Cobaya's MCMC.

Prints a row for each: calls of the likelihood, seconds, means, standard deviations and the log
evidence. The first row is from quadrature.

    python benchmarks/from_cobaya.py
"""

import time
import warnings

import numpy as np
from cobaya.run import run
from scipy import integrate, stats

NORMAL = stats.multivariate_normal([0.2, 0], [[0.1, 0.05], [0.05, 0.2]])
calls = 0


def likelihood(a, b):
    """The Gaussian of the example, which counts its calls."""
    global calls
    calls += 1
    return NORMAL.logpdf([a, b])


def exact():
    """Mean, sd and log evidence by quadrature."""
    a, b = np.meshgrid(np.linspace(-0.5, 3, 1401), np.linspace(-4, 4, 1601), indexing="ij")
    joint = NORMAL.pdf(np.stack([a, b], axis=-1)) * stats.norm.pdf(b) / 3.5

    def integral(values):
        return integrate.trapezoid(integrate.trapezoid(values, dx=0.005), dx=0.0025)

    z = integral(joint)
    mean = np.array([integral(joint * x) / z for x in (a, b)])
    sd = np.sqrt([integral(joint * x**2) / z for x in (a, b)] - mean**2)
    return mean, sd, f"{np.log(z):.3f}"


def by(sampler, options, skip=0.0):
    """One run of Cobaya."""
    info = {
        "likelihood": {"gaussian": likelihood},
        "params": {
            "a": {"prior": {"min": -0.5, "max": 3}},
            "b": {"prior": {"dist": "norm", "loc": 0, "scale": 1}, "ref": 0, "proposal": 0.5},
        },
        "sampler": {sampler: options},
        "debug": 50,  # errors only
    }
    products = run(info)[1].products(combined=True, skip_samples=skip, to_getdist=True)
    log_z = f"{products['logZ']:.3f} ± {products['logZstd']:.3f}" if "logZ" in products else ""
    samples = products["sample"]
    return samples.mean(["a", "b"]), samples.std(["a", "b"]), log_z


def main():
    """Print the table."""
    global calls
    warnings.simplefilter("ignore")
    methods = {
        "quadrature": exact,
        "`qbvi:`": lambda: by("qbvi", {"seed": 1}),
        "`mcmc:`": lambda: by("mcmc", {"seed": 1}, skip=0.3),
        "`mcmc: {Rminus1_stop: 0.001, Rminus1_cl_stop: 0.02}`": lambda: by(
            "mcmc", {"seed": 1, "Rminus1_stop": 0.001, "Rminus1_cl_stop": 0.02}, skip=0.3
        ),
    }
    print("| sampler | calls | seconds | a | b | log evidence |")
    print("| --- | ---: | ---: | --- | --- | --- |")
    for name, method in methods.items():
        calls, begin = 0, time.perf_counter()
        mean, sd, log_z = method()
        seconds = "" if name == "quadrature" else f"{time.perf_counter() - begin:.1f}"
        cells = [f"{x:.3f} ± {s:.3f}" for x, s in zip(mean, sd, strict=True)]
        print("|", " | ".join([name, f"{calls:,}" if seconds else "", seconds, *cells, log_z]), "|")


if __name__ == "__main__":
    main()
