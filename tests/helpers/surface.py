"""The public surface as calls to make with one wrong argument, and what counts as an exception of ours.

An exception is ours if a line of qbvi raised it on purpose (the innermost frame is a ``raise`` in the package), its class is one
that users are told of, and its text names an argument. Everything else is raw: it comes from the middle of some computation.
"""

import inspect
import linecache
import re
import traceback
import warnings
from pathlib import Path

import numpy as np

import qbvi
from qbvi import baselines, models

PACKAGE = str(Path(qbvi.__file__).parent)
CLASSES = (ValueError, TypeError, qbvi.CheckpointError, qbvi.EvaluationError, qbvi.BackendError, qbvi.DomainError)


class Opaque:
    """A value that suits nothing, and whose text raises too."""

    def __str__(self):
        msg = "no text"
        raise RuntimeError(msg)


VALUES = {
    "None": None,
    "True": True,
    "-1": -1,
    "0": 0,
    "1": 1,
    "3": 3,
    "2.5": 2.5,
    "1e3": 1e3,
    "nan": float("nan"),
    "inf": float("inf"),
    "-1e300": -1e300,
    "10**40": 10**40,
    "text": "x",
    "empty text": "",
    "bytes": b"x",
    "empty list": [],
    "list": [1.0, 2.0],
    "ragged": [[1.0], [1.0, 2.0]],
    "list of texts": ["a", "b"],
    "list of None": [None],
    "empty dict": {},
    "dict": {"a": 1},
    "dict by number": {1: 2},
    "set": {1},
    "object": object(),
    "class": int,
    "function": lambda *_: 1.0,
    "complex": 1 + 2j,
    "numpy float": np.float64(3),
    "numpy int": np.int64(3),
    "empty array": np.array([]),
    "matrix": np.ones((2, 2)),
    "nan array": np.array([1.0, np.nan]),
    "object array": np.array([None, "x"], dtype=object),
    "masked array": np.ma.masked_array([1.0, 2.0], mask=[False, True]),
    "opaque": Opaque(),
}


def exception_of(call):
    """None if the call works, or the exception that it raises."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            call()
        except Exception as error:  # noqa: BLE001
            return error
    return None


def why_raw(error, name):
    """Why an exception is not ours; empty if it is, or if there is none."""
    if error is None:
        return ""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}: {str(error)[:90]}"
    if not isinstance(error, CLASSES):
        return place
    if not frame.filename.startswith(PACKAGE) or not is_raise(frame):
        return place
    if name not in str(error) and re.search(r"[`'][A-Za-z_]\w*", str(error)) is None:  # it may be another one's fault
        return f"does not name {name}: {place}"
    return ""


def is_raise(frame):
    lines = [linecache.getline(frame.filename, at).strip() for at in range(frame.lineno, (frame.end_lineno or 0) + 1)]
    return lines[0].startswith("raise")


def quadratic(theta):
    return -float(np.sum(np.square(theta)))


X = np.arange(12.0).reshape(6, 2) % 5
BITS = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
SERIES = 1.0 + np.random.default_rng(0).random(60)

# A call that works for each public name; every argument of it, and every other of its signature, is then changed in turn.
CONSTRUCTORS = {
    "Normal": {"loc": 0.0, "scale": 1.0},
    "MultivariateNormal": {"mean": [0.0, 1.0], "cov": np.eye(2)},
    "InverseGamma": {"alpha": 3.0, "beta": 1.0},
    "Gamma": {"alpha": 3.0, "beta": 1.0},
    "Beta": {"alpha": 3.0, "beta": 1.0},
    "Exponential": {"rate": 1.0},
    "LogNormal": {"mu": 0.0, "sigma": 1.0},
    "HalfNormal": {"scale": 1.0},
    "HalfCauchy": {"scale": 1.0},
    "StudentT": {"df": 3.0},
    "Uniform": {"low": 0.0, "high": 1.0},
    "Dirichlet": {"concentration": [1.0, 2.0]},
    "Wishart": {"df": 4.0, "scale": np.eye(2)},
    "InverseWishart": {"df": 4.0, "scale": np.eye(2)},
    "Bernoulli": {},
    "Categorical": {"probs": [0.5, 0.5]},
    "Poisson": {"rate": 2.0},
    "NegativeBinomial": {"count": 2.0, "p": 0.5},
    "Flat": {"shape": 2},
    "LogPrior": {"log_prob": quadratic, "shape": 2},
    "Transformed": {"base": qbvi.Normal(0, 1), "support": qbvi.Positive()},
    "Interval": {"low": 0.0, "high": 1.0},
    "WholeNumbers": {},
    "Bijection": {"forward": np.tanh, "inverse": np.arctanh},
    "QBVI": {},
    "paper": {},
    "Regression": {},
    "MeanFieldRegression": {},
    "Ridge": {},
    "LowRank": {},
    "LowRankRegression": {},
    "BoundedRate": {},
    "CholeskyLog": {},
    "ExponentialMap": {},
    "InParameters": {},
    "Retraction": {},
    "MaxIterations": {},
    "ParameterChange": {},
    "Patience": {},
    "Plateau": {},
    "ClipByNorm": {"max_norm": 1.0},
    "Euclidean": {},
    "LearningRate": {"rate": 0.1},
    "Momentum": {"gamma": 0.4},
    "SeparateRates": {"mean": 0.1, "precision": 0.1},
    "ControlVariate": {},
    "LeaveOneOut": {},
    "Residual": {},
    "ResidualControlVariate": {},
    "Antithetic": {},
    "Sobol": {},
    "baselines.BBVI": {},
    "baselines.CGVB": {},
    "baselines.MGVB": {},
    "models.Logistic": {"X": X, "y": BITS},
    "models.Linear": {"X": X, "y": SERIES[:6]},
    "models.Poisson": {"X": X, "y": BITS},
    "models.Binomial": {"X": X, "y": BITS, "trials": np.full(6, 2.0)},
    "models.MultinomialLogistic": {"X": X, "y": BITS},
    "models.HAR": {"volatility": SERIES},
    "models.GARCH": {"returns": SERIES},
}
METHODS = ("QBVI", "paper", "Regression", "MeanFieldRegression", "Ridge", "baselines.BBVI", "baselines.MGVB")
FIT_ARGUMENTS = {"log_likelihood": quadratic, "prior": qbvi.Normal(0, 1, shape=2), "max_evals": 60, "seed": 1}
SKIPPED = {
    ("fit", "executor", "numpy int"): "three processes are a valid choice, and slow to start",
    ("fit", "executor", "3"): "the same",
    ("fit", "executor", "1"): "the same",
    **{("fit", "timeout", text): "the same" for text in ("1", "3", "2.5", "1e3", "numpy float", "numpy int")},
    ("fit", "checkpoint", "text"): "a file of that name would be a valid choice",
}


def found(name):
    owner = {"baselines": baselines, "models": models}.get(name.partition(".")[0], qbvi)
    return getattr(owner, name.rpartition(".")[2])


def constructor_cases():
    """(name, argument, name of the value, call) for every public class and function that is only a description."""
    for name, given in CONSTRUCTORS.items():
        build = found(name)
        for argument in arguments_of(build):
            for text, value in VALUES.items():
                yield (
                    name,
                    argument,
                    text,
                    lambda b=build, g=given, a=argument, v=value, n=name: _built(n, b, {**g, a: v}),
                )


def _built(name, build, given):
    made = build(**given)
    if name in METHODS:  # a method that is made must also work, or say why before any evaluation
        qbvi.fit(quadratic, FIT_ARGUMENTS["prior"], method=made, max_evals=60, max_time=2.0, seed=1)
    repr(made)
    return made


def arguments_of(build):
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in inspect.signature(build).parameters.values() if p.kind in kinds]


def fit_cases(counted):
    """Every argument of `qbvi.fit` and `qbvi.Ask`; ``counted`` is the likelihood that is paid for."""
    for argument in arguments_of(qbvi.fit):
        for text, value in VALUES.items():
            if ("fit", argument, text) not in SKIPPED:
                given = {**FIT_ARGUMENTS, "log_likelihood": counted, argument: value}
                yield "fit", argument, text, lambda g=given: qbvi.fit(**g)
    given = {"prior": FIT_ARGUMENTS["prior"], "seed": 1}
    for argument in arguments_of(qbvi.Ask):
        for text, value in VALUES.items():
            if ("fit", argument, text) not in SKIPPED:
                yield "Ask", argument, text, lambda g={**given, argument: value}: qbvi.Ask(**g).ask()


def result_cases(fit, folder):
    """Every method of a `qbvi.Fit` that takes arguments."""
    calls = {
        "sample": {"n": 3},
        "log_prob": {"theta": fit.mean},
        "summary": {},
        "quantiles": {"levels": [0.5]},
        "save": {"path": folder / "saved"},
        "to_arviz": {},
        "interval": {},
        "predict": {"function": lambda theta: theta, "n": 3},
        "loo": {"log_likelihood": lambda theta: -(theta**2), "n": 25},
        "mcmc": {"n": 256, "warmup": 0, "log_likelihood": quadratic},
        "walkers": {"n": 3},
        "to_pymc_start": {},
    }
    for name, given in calls.items():
        method = getattr(fit, name)
        for argument in arguments_of(method):
            for text, value in VALUES.items():
                if (argument, text) not in (("path", "text"), ("path", "bytes")):  # names of files
                    yield f"Fit.{name}", argument, text, lambda m=method, g={**given, argument: value}: m(**g)
    for text, value in VALUES.items():
        if text != "text":  # a file that is not there is an OSError, as everywhere
            yield "load", "path", text, lambda v=value: qbvi.load(v)
