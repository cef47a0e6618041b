"""From a function and a prior to a posterior: the one call that users make."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from qbvi.arguments import positive_number, whole_number
from qbvi.arrange import Groups, arrange
from qbvi.backends import HOST, Backend, find_backend
from qbvi.backends.base import leaves
from qbvi.checkpoint import Checkpoint, fingerprint, resumed_seed
from qbvi.core import Core
from qbvi.evaluate import Batches, BlackBox, DeviceBatches, DeviceBox, FromHost, OnFailure, ShardedLikelihood
from qbvi.evaluate.black_box import Runner, calls_of
from qbvi.evaluate.executors import open_runner, warn_if_nothing_to_share
from qbvi.evaluate.loaders import LoaderBatches, is_loader
from qbvi.families import Family, GaussianFamily
from qbvi.methods import choose_budget, choose_method
from qbvi.model import Model
from qbvi.progress import Progress
from qbvi.protocol import Algorithm
from qbvi.results import Fit
from qbvi.run import Iterate, Run, drive
from qbvi.signals import terminated_as_interrupted
from qbvi.starts import run_all, starting_points
from qbvi.stopping import MaxIterations

__all__ = ["fit"]


def fit(  # noqa: PLR0913 - the one call users make: every argument has a default that works
    log_likelihood: Callable[..., Any],
    prior: Any,
    *,
    vectorized: bool | int = False,
    method: str | Algorithm = "auto",
    family: str | Groups | Mapping[Any, str] = "auto",
    data: Any = None,
    batch_size: int | None = None,
    init: Any = None,
    n_starts: int = 1,
    tol: float = 0.01,
    max_evals: int | None = None,
    max_time: float | None = None,
    on_failure: OnFailure = "raise",
    executor: Any = None,
    timeout: float | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    on_mismatch: str = "raise",
    backend: str = "numpy",
    device: Any = None,
    dtype: Any = "float64",
    progress: bool | None = None,
    callback: Callable[[Iterate], bool | None] | None = None,
    seed: int | np.random.Generator | np.random.SeedSequence | None = None,
) -> Fit:
    r"""Fit a posterior to a log-likelihood that can be evaluated but not differentiated.

    Parameters
    ----------
    log_likelihood
        ``log p(y | theta)``: a function of one point that returns a number. The point is an array of the prior's shape or, with a
        dict of priors, a dict of arrays, always on its own constrained scale. With ``data`` it is called as ``f(point, data)``.
    prior
        A distribution (`qbvi.Normal`, `qbvi.InverseGamma` ..., any frozen SciPy distribution, `qbvi.LogPrior` for a log-density of your
        own, `qbvi.Flat` where the function is a log-joint already), or a dict of them by name.
    vectorized
        The function takes points stacked along a first axis and returns one number for each: all points of a step at once or, where a number is
        given, so many in each call.
    method
        ``"auto"``, ``"paper"``, a `qbvi.QBVI` put together from its parts, a `qbvi.Regression`, a `qbvi.Ridge` (or ``"ridge"``), or a method to compare with
        (``"bbvi"``, ``"cgvb"``, ``"mgvb"``, see `qbvi.baselines`). Automatic is `qbvi.Regression` for Gaussian posteriors (`qbvi.Ridge` on a ``backend`` other than NumPy),
        `qbvi.MeanFieldRegression` for others, and `qbvi.QBVI` with the residual estimator for mini-batches and for more than 250 dimensions.
    family
        The form of the posterior. ``"auto"``: parameters whose prior is a gamma, inverse gamma, beta, Dirichlet, (inverse) Wishart or discrete law keep that law, independent of
        the rest; all others share one Gaussian with full covariance, through a transform where they are constrained. ``"full"`` or ``"diagonal"``: one Gaussian for all.
        A dict by parameter, such as ``{"sigma2": "gamma", "beta": "diagonal"}`` or ``{("a", "b"): "full"}``, says it for single ones; a list of groups of
        parameters (names, or column numbers where they have none) gives independent Gaussian blocks.
    data, batch_size
        Rows handed to the function: all of them, or ``batch_size`` at random, the same for all points of a step. The log-likelihood of a
        batch is scaled by N / M. A PyTorch ``DataLoader`` as ``data`` brings its own batches.
    init
        A point to start from, on the constrained scale, or an earlier `qbvi.Fit`; by default the centre of the prior.
    n_starts
        Fit from so many starts, the further ones drawn from the prior, and return the best; if others settle elsewhere with a bound
        within 10 nats, the fit is not called converged and says so.
    tol
        Stop when fewer nats than this are predicted to be missing from the bound (method ``"auto"``).
    max_evals, max_time
        Budget in evaluations and in seconds.
    on_failure
        What becomes of points where the function gives NaN, an infinity, an exception, no answer in time, or kills its process: ``"raise"``,
        ``"exclude"``, ``"floor"``, a function of the `qbvi.Failure`, or a dict of these by kind of failure (``"nan"``, ``"+inf"``, ``"-inf"``,
        ``"exception"``, ``"timeout"``, ``"died"``) or exception type, where what is not listed raises.
    executor
        Who makes the calls: a number of processes, any ``concurrent.futures`` executor, a Dask client, an MPI pool executor, or anything with
        ``submit`` or ``map``. It changes nothing about the result. What you built yourself is not shut down.
    timeout
        Seconds that a call may take; then its process is killed and the point has failed. Needs processes: ``executor`` a number, one by default.
    checkpoint
        A file that keeps the run: if it is not there it is made, if it is the run goes on from it, to the same result as if it had never stopped
        and without paying for any evaluation again. Ctrl-C and SIGTERM end such a run with the fit so far. Evaluations since the last state are in
        a second file, with ``.journal`` at the end of its name; further starts have files of their own, ``.2``, ``.3`` ...
    on_mismatch
        What to do with a checkpoint that was made with another function, prior, data, method, family, ``init`` or seed: ``"raise"``; ``"keep"`` what
        it holds and go on as if nothing had changed; ``"re-evaluate"``: start from its posterior, but evaluate anew.
    backend
        Whose arrays the function is given: ``"numpy"``, ``"jax"``, ``"torch"`` or ``"cupy"``. With ``vectorized`` they are stacked; otherwise the function of
        one point is mapped by ``jax.vmap`` or ``torch.vmap``. Where method and family allow for it (`qbvi.Ridge` or `qbvi.QBVI` with Gaussians) the whole loop runs there, on JAX
        compiled; see docs/backends.md.
    device
        Where: ``"cpu"``, ``"gpu:1"``, ``"cuda"``, or as the library has it, on JAX also several or a mesh; by default where it puts new arrays.
    dtype
        ``"float64"`` or ``"float32"``.
    progress
        Whether to show a line of progress; by default only on a terminal.
    callback
        Called after each step with a `qbvi.Iterate`; a true answer ends the fit.
    seed
        Same seed, same result. A checkpoint that is resumed has its own.

    Returns
    -------
    Fit
        The posterior, with what is needed to judge it: a fresh estimate of the lower bound, k-hat, and why the fit ended.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> y = np.array([1.2, 0.7, 1.9])
    >>> post = qbvi.fit(lambda m: -0.5 * np.sum((y - m) ** 2), prior=qbvi.Normal(0, 1), seed=1)
    >>> bool(abs(post.mean - y.sum() / 4) < 0.01)
    True
    """
    model, posterior = arrange(prior, family)
    library = find_backend(backend, device, dtype)
    batches = _batches(log_likelihood, data, batch_size, checkpoint)
    _check_calls(library, log_likelihood, vectorized, {"executor": executor, "timeout": timeout})
    n_starts = whole_number("n_starts", n_starts)
    algorithm = choose_method(method, model, posterior, batches, positive_number("tol", tol), library)
    seed = resumed_seed(seed, checkpoint)
    given = {"function": log_likelihood, "prior": prior, "data": data, "method": algorithm, "family": family}
    prints = {} if checkpoint is None else {name: fingerprint(name, value) for name, value in given.items()}
    warn_if_nothing_to_share(executor, vectorized)
    if isinstance(batches, Batches) and (executor is not None or timeout is not None):
        log_likelihood, batches = batches.bound_to(log_likelihood)  # the data travel once, with the function
    place = _placed(
        _Place(log_likelihood, vectorized, batches, HOST, str(library)), library, (model, posterior, algorithm)
    )

    def run(start: Any, own_seed: int, number: int = 1) -> Fit:
        one = Run(
            model=model,
            family=posterior,
            black_box=place.black_box(on_failure, runner),
            batches=place.batches,
            algorithm=algorithm,
            budget=choose_budget(algorithm, model.dim, max_evals, max_time, n_starts),
            seed=own_seed,
            callback=callback,
            backend=place.loop,
            where=place.words,
        )
        progress_line = Progress(progress, _max_iterations(algorithm), max_evals, max_time)
        if checkpoint is None:
            return drive(one.requests(start, progress_line), one.evaluate)
        own = {"init": fingerprint("init", _plain(start)), "seed": fingerprint("seed", own_seed)}
        with terminated_as_interrupted(), Checkpoint(_part(checkpoint, number), one, prints | own, on_mismatch) as kept:
            return drive(one.requests(kept.begin(start), progress_line), kept.answer)

    with open_runner(calls_of(place.function, place.vectorized, on_failure), executor, timeout) as runner:
        if n_starts == 1:
            return run(init, seed)
        return run_all(run, init, starting_points(model, n_starts - 1, seed), seed)


class _Place(NamedTuple):
    """Where a fit computes: the function with its data, and the backend of the loop."""

    function: Callable[..., Any]
    vectorized: bool | int
    batches: Any
    loop: Backend
    words: str

    def black_box(self, on_failure: OnFailure, runner: Runner | None) -> BlackBox:
        """The function as the loop sees it."""
        if self.loop.is_host:
            return BlackBox(self.function, self.vectorized, on_failure, runner=runner)
        return DeviceBox(self.function, self.vectorized, on_failure, backend=self.loop)


def _placed(place: _Place, backend: Backend, parts: tuple[Model, Family, Algorithm]) -> _Place:
    """Bring the data to the backend and, where method, family and prior can follow, the loop; else only the calls go there, and back."""
    if backend.is_host:
        return place
    if place.batches is not None:
        loads = isinstance(place.batches, LoaderBatches)
        there = place.batches.on(backend) if loads else DeviceBatches(place.batches, backend)
        place = place._replace(batches=there)
    reason = _reason_for_the_host(backend, *parts)
    if not reason:
        return place._replace(loop=backend)
    function = FromHost(place.function, place.vectorized, backend)
    words = f"{backend} for the function, the loop on the host: {reason}"
    return place._replace(function=function, vectorized=place.vectorized or True, words=words)


def _batches(log_likelihood: Callable[..., Any], data: Any, batch_size: int | None, checkpoint: Any) -> Any:
    """Rows for the function: of ``data``, or of the parts that a sharded one holds."""
    if data is None and batch_size is not None:
        msg = f"`batch_size` needs `data` to draw from, got batch_size={batch_size} and no data"
        raise ValueError(msg)
    if not isinstance(log_likelihood, ShardedLikelihood):
        if is_loader(data):
            return _loader_batches(data, batch_size, checkpoint)
        size = None if batch_size is None else whole_number("batch_size", batch_size)
        return None if data is None else Batches(data, size)
    if data is not None:
        msg = "`data` must be left out with a qbvi.ShardedLikelihood, which holds its data in parts"
        raise ValueError(msg)
    return log_likelihood.batches


def _loader_batches(data: Any, batch_size: int | None, checkpoint: Any) -> LoaderBatches:
    if checkpoint is not None:
        msg = "`checkpoint` cannot keep the place of a run in a DataLoader; pass the tensors themselves as `data`, with batch_size"
        raise ValueError(msg)
    if batch_size is not None:
        msg = f"`batch_size` must be left out with a DataLoader, which has its own, {data.batch_size}; got {batch_size}"
        raise ValueError(msg)
    return LoaderBatches(data)


def _part(checkpoint: str | os.PathLike[str], number: int) -> str:
    """The file of one of several starts."""
    return os.fspath(checkpoint) + (f".{number}" if number > 1 else "")


def _plain(init: Any) -> Any:
    """A start by what it says, not by how long it took to find."""
    return init.unconstrained if isinstance(init, Fit) else init


def _check_calls(backend: Backend, log_likelihood: Any, vectorized: bool | int, limits: Mapping[str, Any]) -> None:
    """Refuse what does not go with the function, and what makes no sense on a device of this process."""
    is_sharded, timeout = isinstance(log_likelihood, ShardedLikelihood), limits["timeout"]
    given = next((name for name, value in limits.items() if value is not None), None)
    if is_sharded and not vectorized:
        msg = "a qbvi.ShardedLikelihood takes all points of a step at once: pass vectorized=True with it"
        raise ValueError(msg)
    if timeout is not None and not isinstance(timeout, int | float):
        msg = f"`timeout` must be a number of seconds, got {timeout!r}"
        raise TypeError(msg)
    if not backend.is_host and (is_sharded or given is not None):
        what = "a qbvi.ShardedLikelihood" if is_sharded else f"`{given}`"
        msg = (
            f"{what} must not be combined with backend={backend.name!r}, where all points of a step go to the device in calls of this process; other processes and "
            "time limits go with backend='numpy'"
        )
        raise ValueError(msg)
    if not backend.is_host and not vectorized and callable(log_likelihood):
        backend.mapped(log_likelihood)  # raises where there is no such map


def _reason_for_the_host(backend: Backend, model: Model, family: Family, algorithm: Algorithm) -> str:
    """Why the loop cannot run on the backend; empty where method, family and prior compute with whatever arrays they are given."""
    if not algorithm.is_array_api:
        return f"{type(algorithm).__name__} computes there"
    if not isinstance(family, GaussianFamily):
        return "the posterior is not all Gaussian"
    core = Core(model, family, algorithm, backend)
    try:
        with backend.active():
            u = backend.asarray(np.zeros((2, model.dim)))
            made = backend.shaped(lambda u: (core.points(u), core.values(u, u[:, 0], u[:, 0] == 0, u[:, 0])), u)
    except Exception as error:  # noqa: BLE001 - a prior of SciPy's, or a function of the user's, may fail in any way on other arrays
        return f"the prior computes there ({type(error).__name__})"
    is_foreign = any(isinstance(leaf, np.ndarray | np.generic) for leaf in leaves(made))
    return "the prior computes there" if is_foreign else ""


def _max_iterations(algorithm: Algorithm) -> int | None:
    limits = [rule.iterations for rule in algorithm.stop if isinstance(rule, MaxIterations)]
    return min(limits) if limits else None
