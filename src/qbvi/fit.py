"""From a function and a prior to a posterior: the one call that users make."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, ParamSpec

import numpy as np

from qbvi.arguments import a_function, a_path, flag, number, positive_number, shown, whole_number
from qbvi.arrange import Groups, LowRank, arrange, size_note
from qbvi.backends import HOST, Backend, find_backend
from qbvi.backends.base import leaves
from qbvi.check import Source
from qbvi.checkpoint import Checkpoint, fingerprint, resumed_seed
from qbvi.conversation import Iterate, drive
from qbvi.core import Core
from qbvi.earlier import Earlier
from qbvi.evaluate import (
    Batches,
    BlackBox,
    DeviceBatches,
    DeviceBox,
    FromHost,
    OnFailure,
    ShardedLikelihood,
)
from qbvi.evaluate.black_box import Runner, calls_of
from qbvi.evaluate.deadlines import deadline_in
from qbvi.evaluate.executors import open_runner, warn_if_nothing_to_share
from qbvi.evaluate.loaders import LoaderBatches, is_loader
from qbvi.evaluate.terms import Summed, terms_of
from qbvi.families import Family, GaussianFamily
from qbvi.methods import Task, choose_budget, choose_method, choose_verdict, most_joint_wholes
from qbvi.model import Model
from qbvi.naming import nearest
from qbvi.problem import Problem, with_arguments
from qbvi.progress import Progress
from qbvi.protocol import Algorithm
from qbvi.results import Fit
from qbvi.run import Run
from qbvi.signals import terminated_as_interrupted
from qbvi.starts import check_init, run_all, starting_points
from qbvi.stopping import GapBelow, MaxIterations, MissingBelow

__all__ = ["fit"]

P = ParamSpec("P")

_LONGEST = 1e9  # seconds of one call, 30 years: much longer waits overflow the clock of the system


def _takes_problems(function: Callable[P, Fit]) -> Callable[P, Fit]:
    """Let a `qbvi.Problem` stand for the first two arguments, and correct names of arguments."""
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def fit(*args: P.args, **kwargs: P.kwargs) -> Fit:
        given = args[0] if args else kwargs.get("log_likelihood")
        if not isinstance(given, Problem):
            if unknown := [name for name in kwargs if name not in names]:
                msg = f"`qbvi.fit` has no argument `{unknown[0]}`{nearest(unknown[0], names)}"
                raise TypeError(msg)
            return function(*args, **kwargs)
        options = {name: value for name, value in kwargs.items() if name != "log_likelihood"}
        return given.fit(**options | ({"prior": args[1]} if len(args) > 1 else {}))

    return fit


@_takes_problems
def fit(  # noqa: PLR0913 - the one call users make: every argument has a default that works
    log_likelihood: Callable[..., Any] | Problem,
    prior: Any = None,
    *,
    args: Sequence[Any] = (),
    vectorized: bool | int = False,
    pointwise: bool = False,
    method: str | Algorithm = "auto",
    family: str | Groups | Mapping[Any, str] | LowRank = "auto",
    data: Any = None,
    batch_size: int | None = None,
    init: Any = None,
    evaluations: Any = None,
    n_starts: int | str = "auto",
    tol: float | None = None,
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

    The function may be any program that returns a number. Two arguments are enough: the function
    and a prior. The fit chooses its own step sizes and stops by itself.

    Parameters
    ----------
    log_likelihood
        ``log p(y | theta)``: a function of one point that returns a number. The point is an array
        of the prior's shape or, if ``prior`` is a dict, a dict of arrays. It is always on the
        constrained scale: a positive parameter is positive. If ``data`` is given, the call is
        ``f(point, data)``. A noisy function may return a pair, its value and standard deviation.
        A `qbvi.Problem` stands for the function and its prior.
    prior
        The prior distribution, or a dict of distributions by parameter name. A list has the priors
        of the entries of one vector. A distribution is

        - one of qbvi's own, such as `qbvi.Normal` or `qbvi.InverseGamma`,
        - a frozen SciPy distribution,
        - a `qbvi.LogPrior`, for a log-density of your own,
        - a `qbvi.Flat`, if the function already is a log-joint,
        - a pair of bounds, such as ``(0, 5)`` for `qbvi.Uniform`. It is flat, and improper, if a
          bound is None or infinite.
    args
        Further arguments of the function, after the point and its data.
    vectorized
        Whether one call takes many points, stacked along a first axis, and returns one number for
        each. True passes all points of an iteration in one call. A number passes at most that many.
    pointwise
        Whether the function returns the terms of the log-likelihood, one for each observation, in
        place of their sum: an array (observations,) or, if vectorized, (points, observations). The
        fit sums them. `qbvi.Fit.loo`, `qbvi.compare` and `qbvi.Fit.to_arviz` then have the terms.
    method
        The algorithm. ``"auto"`` chooses one:

        - `qbvi.Free` for posteriors of any shape: up to 16 dimensions, with NumPy,
        - `qbvi.Regression` for Gaussian posteriors with NumPy,
        - `qbvi.Ridge` for Gaussian posteriors on other backends,
        - `qbvi.MeanFieldRegression` for posteriors that are not all Gaussian,
        - `qbvi.QBVI` with the residual estimator for mini-batches and for more than 600
          dimensions (on other backends than NumPy, 250, and for a diagonal Gaussian 20). Between
          250 and 600 dimensions the family and ``max_evals`` decide; see docs/benchmarks.md.

        Otherwise pass one of these objects, or a name:

        - ``"free"``, ``"regression"``, ``"mean-field"`` or ``"ridge"``,
        - ``"paper"``: the paper's algorithm, see `qbvi.paper`,
        - ``"bbvi"``, ``"cgvb"`` or ``"mgvb"``: methods to compare with, see `qbvi.baselines`.

        ``"exact"`` is for ready-made regressions, not for functions: see `qbvi.models`.
    family
        The form of the posterior.

        - ``"auto"``: all continuous parameters are joint, after a transform if they are
          constrained: up to 12 dimensions as a density of any shape (up to 16 if most of them are
          Gaussian given one or two others), beyond as one Gaussian, with full covariance up to
          1,000 coordinates and diagonal covariance after that, which a note says. Whole numbers of
          eight or more values are part of a density of any shape. Other discrete parameters keep
          the distribution of their prior, independent of all others. With more than 250 continuous
          dimensions, so does a parameter whose prior is gamma, inverse gamma, beta, Dirichlet,
          Wishart or inverse Wishart.
        - ``"full"`` or ``"diagonal"``: one Gaussian for all parameters.
        - ``"low-rank"``: one Gaussian whose covariance is a diagonal plus a matrix of low rank, for
          many parameters with few strong correlations; ``qbvi.LowRank(rank=10)`` limits the rank.
        - A dict by parameter or group of parameters, such as
          ``{"sigma2": "gamma", "beta": "diagonal"}`` or ``{("a", "b"): "full"}``. Each entry is
          independent of the others. Parameters that it does not list are treated as with
          ``"auto"``.
        - A list of groups: independent Gaussian blocks. A group lists names or, if the parameters
          have none, column numbers.

        If independence leaves out correlations, ``fit.notes`` names them and their cost in nats.
    data
        Data for the function: an array, a pandas object, or a tuple, list or dict of them with a
        common number of rows. A PyTorch ``DataLoader`` brings its own mini-batches.
    batch_size
        Rows of a mini-batch; by default each call gets all rows. Each iteration draws new rows at
        random and uses them for all its points. Values are scaled by the number of all rows over
        ``batch_size``.
    init
        Where to start: a point on the constrained scale, or an earlier `qbvi.Fit`. The default is
        the centre of the prior.
    evaluations
        Earlier evaluations of the same function: what was paid for once informs this fit, which
        calls the function only at new points. One of

        - an earlier `qbvi.Fit`, or its `qbvi.Evaluations`,
        - a file: ``.csv``, ``.parquet`` or ``.npz``, see `qbvi.Evaluations.load`,
        - a pair of constrained points (N, p) and log-likelihoods (N,), such as the trace of an
          optimiser,
        - a dict or data frame with parameters by name and ``"log_likelihood"`` or, for prior times
          likelihood, ``"log_density"``, such as an old chain,
        - a sampler or backend of emcee, results of dynesty, or a sampler of nautilus, see
          `qbvi.Evaluations.from_sampler`.

        Two or three of the points are evaluated again, and an error is raised if their values have
        changed. The prior may be another one. The fit starts where the given points have most of
        their posterior, unless ``init`` is given.
    n_starts
        Number of starts.

        - ``"auto"``: one. If the fit finds that the log joint is not log-concave, it searches the
          whole prior for a better start. Otherwise, if the posterior may take any shape, it surveys
          the prior for other modes once it has found one, and combines what it finds. With
          ``init`` or ``evaluations`` it does the latter only, and not if these are a sample of the
          posterior or are spread over the prior already.
        - 1: one, without such a search or survey.
        - More: so many complete fits. All but the first start from draws from the prior. Modes
          within 10 nats of the best one are combined, with the weights of their evidence. The
          result counts as converged if the fits of all these modes did. ``max_evals`` and
          ``max_time`` are divided equally among the starts.
    tol
        Nats that may be missing at the end. None means

        - 0.05 nats of the posterior, if it may take any shape: `qbvi.Fit.missing` is below that,
        - 0.01 nats to the best member of the family, for Gaussians and other families.

        `qbvi.QBVI` and the baselines have other stopping rules. A method passed as an object has
        its own ``tol``.
    max_evals
        Largest number of evaluations of the function. By default, in d dimensions,

        - ``200 (d + 10) + 10 d (d + 3)`` for `qbvi.Free`, `qbvi.Regression` and
          `qbvi.MeanFieldRegression`: 3,400 in 5 dimensions, 5,300 in 10, 14,000 in 25. For several
          starts, each has as many.
        - 200 iterations of `qbvi.Ridge`.
        - No limit for `qbvi.QBVI` and the baselines, which stop after 1,000 iterations.

        Most fits settle long before. `qbvi.Fit.stop_reason` names the budget if it was spent.
    max_time
        Seconds that the fit may take, fresh draws at the end included. No call begins after that.

        - Calls in this process that are under way are finished, so a fit may exceed ``max_time`` by
          the time of one call.
        - Calls in processes of qbvi's own are ended.
        - Calls elsewhere cannot be ended. If they do not end soon by themselves, they are abandoned
          with a `qbvi.EvaluationError`, which holds the fit so far.

        An iteration that is not complete is left out. If it is the first one, there is no fit, and
        an error says so.
    on_failure
        What to do with points at which the function fails:

        - ``"raise"``: stop with a `qbvi.EvaluationError`, which holds the fit so far. Minus
          infinity does not raise: the likelihood is zero there, and the point is left out.
        - ``"exclude"``: leave the point out.
        - ``"floor"``: use a value below all others of the same iteration. The regression methods
          leave the point out, as with ``"exclude"``, because no polynomial follows a cliff.
        - ``"retry"``: make the call again, up to three calls in all, and then leave the point out;
          see `qbvi.Retry`.
        - A function that takes the `qbvi.Failure` and returns a value.
        - A dict of these by exception type or kind of failure: ``"nan"``, ``"+inf"``, ``"-inf"``,
          ``"exception"``, ``"timeout"``, ``"died"`` (the process ended). What it does not list
          raises.
    executor
        What makes the calls: a number of processes, any ``concurrent.futures`` executor, a Dask
        client, an MPI pool executor, or any object with ``submit`` or ``map``. The result is the
        same with all of them. The fit does not shut down an executor that you pass.
    timeout
        Seconds that one call may take. After that its process is killed, and the point counts as
        failed. ``executor`` must then be a number of processes or None, which means one.
    checkpoint
        A file that saves the run. If it exists, the run continues from it, to the same result as
        without the interruption, and repeats no finished evaluation. Ctrl-C and SIGTERM end such a
        run and return the fit so far. A second file, ``<checkpoint>.journal``, holds the
        evaluations since the last save. With several starts, the files of the others end in ``.2``,
        ``.3`` and so on.
    on_mismatch
        What to do if the checkpoint belongs to another function, prior, data, method, family,
        ``init``, ``evaluations`` or seed:

        - ``"raise"`` an error that names the difference,
        - ``"keep"`` the checkpoint and continue as if nothing had changed,
        - ``"re-evaluate"``: start from its posterior with new evaluations.
    backend
        Array library of the points that the function gets: ``"numpy"``, ``"jax"``, ``"torch"`` or
        ``"cupy"``. A function of one point is vectorised by ``jax.vmap`` or ``torch.vmap``. The
        whole loop runs there too if method, family and prior can, compiled on JAX; see
        docs/backends.md.
    device
        Device of that library, such as ``"cpu"``, ``"gpu:1"`` or ``"cuda"``. JAX also takes a list
        of devices or a mesh. The default is the library's own.
    dtype
        ``"float64"`` or ``"float32"``.
    progress
        Whether to show a line of progress. The default shows it on a terminal only.
    callback
        Function that is called with a `qbvi.Iterate` after each iteration. It ends the fit by
        returning True.
    seed
        The same seed gives the same result. Without one, a resumed checkpoint uses its own seed and
        any other fit a new one.

    Returns
    -------
    Fit
        The posterior, with the means to judge it: how many nats of the true posterior it misses,
        the log evidence and the lower bound with standard errors, whether it converged, and the
        reason why the fit ended. For a family by name, converged means that the best member of
        the family was found. Otherwise it is about the posterior itself. All evaluations are
        there too, for a later fit.

    Examples
    --------
    A normal mean with a standard normal prior, whose posterior mean is known:

    >>> import numpy as np, qbvi
    >>> y = np.array([1.2, 0.7, 1.9])
    >>> post = qbvi.fit(lambda m: -0.5 * np.sum((y - m) ** 2), prior=qbvi.Normal(0, 1), seed=1)
    >>> bool(abs(post.mean - y.sum() / 4) < 0.01)
    True
    """
    library, log_likelihood = find_backend(backend, device, dtype), _function_of(log_likelihood, prior, args)
    log_likelihood = _summed(log_likelihood, pointwise, vectorized, (data, batch_size), library)
    model, posterior = _arranged(
        {"checkpoint": checkpoint, "progress": progress, "callback": callback, "timeout": timeout},
        prior,
        family,
        init,
        most_joint_wholes(method, library, has_batches=batch_size is not None or is_loader(data)),
    )
    batches = _batches(log_likelihood, data, batch_size, checkpoint)
    _check_calls(library, log_likelihood, vectorized, {"executor": executor, "timeout": timeout})
    is_auto, n_starts = _starts(n_starts)
    task = Task.of(posterior, family, tol, max_evals)._replace(
        has_batches=_is_partial(batches), backend=library, max_time=max_time
    )
    algorithm = choose_method(method, model, task)
    budget, deadline = choose_budget(algorithm, model.dim, max_evals, max_time, n_starts), deadline_in(max_time)
    earlier, seed = _earlier(evaluations, model, batches), resumed_seed(seed, checkpoint)
    prints = _fingerprints(
        checkpoint,
        {"function": log_likelihood, "prior": prior, "data": data, "method": algorithm, "family": family}
        | {"n_starts": is_auto},
        earlier,
    )
    if is_auto and not _is_partial(batches):
        algorithm = algorithm.looking_at(model, budget.max_evals, has_start=init is not None or earlier is not None)
    if isinstance(batches, Batches) and (executor is not None or timeout is not None):
        # The data are sent once, with the function, and then only row numbers.
        log_likelihood, batches = batches.bound_to(log_likelihood)
    place = _placed(
        _Place(log_likelihood, vectorized, batches, HOST, str(library)), library, (model, posterior, algorithm)
    )

    def run(start: Any, own_seed: int, number: int = 1) -> Fit:
        one = Run(
            model=model,
            family=posterior,
            black_box=place.black_box(on_failure, runner, deadline),
            batches=place.batches,
            algorithm=algorithm,
            budget=budget,
            seed=own_seed,
            callback=callback,
            backend=place.loop,
            where=place.words,
            earlier=earlier,
            note=size_note(family, posterior),
            verdict=choose_verdict(method, task),
        )
        progress_line = Progress(progress, _max_iterations(algorithm), max_evals, max_time, _tolerance(algorithm))
        if checkpoint is None:
            return drive(one.requests(start, progress_line), one.evaluate)
        own = {"init": fingerprint("init", _plain(start)), "seed": fingerprint("seed", own_seed)}
        with terminated_as_interrupted(), Checkpoint(_part(checkpoint, number), one, prints | own, on_mismatch) as kept:
            return drive(one.requests(kept.begin(start), progress_line), kept.answer)

    with open_runner(calls_of(place.function, place.vectorized, on_failure), executor, timeout, deadline) as runner:
        found = run_all(run, init, starting_points(model, n_starts - 1, seed), seed)
    return replace(found, _source=place.source(library, on_failure, executor, timeout))


def _function_of(log_likelihood: Any, prior: Any, args: Sequence[Any]) -> Callable[..., Any]:
    """The function with its further arguments; also refuses a missing prior."""
    if prior is None:
        msg = "`prior` must be given: a distribution, a dict of them by name, or a list; for none write qbvi.Flat(shape=...)"
        raise TypeError(msg)
    function = with_arguments(log_likelihood, args)
    if function is not log_likelihood and isinstance(log_likelihood, ShardedLikelihood):
        msg = "`args` must be left out with a qbvi.ShardedLikelihood, which has its own function"
        raise ValueError(msg)
    return function


def _arranged(options: Mapping[str, Any], prior: Any, family: Any, init: Any, most_joint: int) -> tuple[Model, Family]:
    """Check what can be checked without the function; arrange model and family."""
    _check_options(options)
    model, posterior = arrange(prior, family, most_joint)
    check_init(model, init)
    return model, posterior


def _check_options(given: Mapping[str, Any]) -> None:
    """Refuse options of the wrong kind; all of them may be None."""
    a_path("checkpoint", given["checkpoint"], optional=True)
    a_function("callback", given["callback"], optional=True)
    if given["progress"] is not None:
        flag("progress", given["progress"])
    if given["timeout"] is not None:
        number("timeout", positive_number("timeout", given["timeout"]), most=_LONGEST)


def _starts(n_starts: Any) -> tuple[bool, int]:
    """Whether the method may look for a better start, and the number of starts."""
    is_auto = isinstance(n_starts, str) and n_starts == "auto"
    return is_auto, 1 if is_auto else whole_number("n_starts", n_starts, otherwise="'auto'")


def _fingerprints(checkpoint: Any, given: Mapping[str, Any], earlier: Earlier | None) -> dict[str, Any]:
    """What a checkpoint compares with a later run; nothing without one."""
    if checkpoint is None:
        return {}
    evaluations = {} if earlier is None else {"evaluations": earlier.digest}
    return {name: fingerprint(name, value) for name, value in {**given, **evaluations}.items()}


def _is_partial(batches: Any) -> bool:
    return batches is not None and bool(batches.is_partial)


def _earlier(evaluations: Any, model: Model, batches: Any) -> Earlier | None:
    if evaluations is not None and _is_partial(batches):
        msg = "`evaluations` must be left out with mini-batches, whose values are of different data; pass init= to start from an earlier fit"
        raise ValueError(msg)
    return Earlier.of(evaluations, model)


class _Place(NamedTuple):
    """Where a fit runs: the function with its data, and the backend of the loop."""

    function: Callable[..., Any]
    vectorized: bool | int
    batches: Any
    loop: Backend
    words: str

    def black_box(self, on_failure: OnFailure, runner: Runner | None, deadline: float | None) -> BlackBox:
        """The function as the loop sees it."""
        if self.loop.is_host:
            return BlackBox(self.function, self.vectorized, on_failure, runner=runner, deadline=deadline)
        return DeviceBox(self.function, self.vectorized, on_failure, deadline=deadline, backend=self.loop)

    def source(self, backend: Backend, on_failure: OnFailure, executor: Any, timeout: float | None) -> Source:
        """The function as a loop on the host calls it, for later checks."""
        is_there = not self.loop.is_host
        function = FromHost(self.function, self.vectorized, backend) if is_there else self.function
        return Source(
            function,
            self.vectorized or is_there,
            on_failure,
            executor,
            timeout,
            self.batches,
            terms_of(function),
        )


def _placed(place: _Place, backend: Backend, parts: tuple[Model, Family, Algorithm]) -> _Place:
    """Move the data to the backend and, if method, family and prior can run there, the loop too.

    Otherwise the loop stays on the host, and only the calls of the function go to the backend.
    """
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


def _summed(
    function: Callable[..., Any], pointwise: Any, vectorized: Any, data: tuple[Any, Any], backend: Backend
) -> Callable[..., Any]:
    """The function, or the sum of the terms that it returns."""
    if not flag("pointwise", pointwise):
        return function
    a_function("log_likelihood", function)
    is_sharded = isinstance(function, ShardedLikelihood)
    if is_sharded or is_loader(data[0]) or data[1] is not None:
        what = "a qbvi.ShardedLikelihood" if is_sharded else "mini-batches"
        msg = f"`pointwise` must be left out with {what}, of which each call has other terms; return their sum"
        raise ValueError(msg)
    if not backend.is_host:
        msg = (
            f"`pointwise` must be left out with backend={backend.name!r}, where terms are summed on the device; "
            "return their sum, and pass the function of the terms to fit.loo"
        )
        raise ValueError(msg)
    return Summed(function, bool(vectorized))


def _batches(log_likelihood: Callable[..., Any], data: Any, batch_size: int | None, checkpoint: Any) -> Any:
    """Rows for the function: of ``data``, or of the parts of a `qbvi.ShardedLikelihood`."""
    if data is None and batch_size is not None:
        msg = f"`batch_size` needs `data` to draw from, got batch_size={shown(batch_size)} and no data"
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
        msg = (
            "`checkpoint` cannot save the position in a DataLoader; pass the tensors themselves as `data`, "
            "with batch_size"
        )
        raise ValueError(msg)
    if batch_size is not None:
        msg = f"`batch_size` must be left out with a DataLoader, which has its own, {data.batch_size}; got {batch_size}"
        raise ValueError(msg)
    return LoaderBatches(data)


def _part(checkpoint: str | os.PathLike[str], number: int) -> str:
    """The checkpoint file of start ``number``."""
    return os.fspath(checkpoint) + (f".{number}" if number > 1 else "")


def _plain(init: Any) -> Any:
    """The part of ``init`` that decides the start: of an earlier fit, mean and covariance."""
    return init.unconstrained if isinstance(init, Fit) else init


def _check_calls(backend: Backend, log_likelihood: Any, vectorized: bool | int, limits: Mapping[str, Any]) -> None:
    """Refuse options that do not suit the function, or that do not work on a device."""
    is_sharded = isinstance(log_likelihood, ShardedLikelihood)
    given = next((name for name, value in limits.items() if value is not None), None)
    if is_sharded and not vectorized:
        msg = "a qbvi.ShardedLikelihood takes all points of a step at once: pass vectorized=True with it"
        raise ValueError(msg)
    if not backend.is_host and (is_sharded or given is not None):
        what = "a qbvi.ShardedLikelihood" if is_sharded else f"`{given}`"
        msg = (
            f"{what} must not be combined with backend={backend.name!r}, where this process passes all points "
            "of a step to the device; use backend='numpy' for other processes and time limits"
        )
        raise ValueError(msg)
    if not backend.is_host and not vectorized and callable(log_likelihood):
        backend.mapped(log_likelihood)  # raises an error if the library has no vmap
    warn_if_nothing_to_share(limits["executor"], vectorized)


def _reason_for_the_host(backend: Backend, model: Model, family: Family, algorithm: Algorithm) -> str:
    """Why the loop cannot run on the backend; empty if it can."""
    if not algorithm.is_array_api:
        return f"{type(algorithm).__name__} computes there"
    if not isinstance(family, GaussianFamily):
        return "the posterior is not all Gaussian"
    core = Core(model, family, algorithm, backend)
    try:
        with backend.active():
            made = backend.shaped(core, "tried", backend.asarray(np.zeros((2, model.dim))))
    # SciPy's priors and users' functions may fail in any way on arrays of another library.
    except Exception as error:  # noqa: BLE001
        return f"the prior computes there ({type(error).__name__})"
    is_foreign = any(isinstance(leaf, np.ndarray | np.generic) for leaf in leaves(made))
    return "the prior computes there" if is_foreign else ""


def _tolerance(algorithm: Algorithm) -> float | None:
    """The predicted gap that ends the fit."""
    limits = [rule.tol for rule in algorithm.stop if isinstance(rule, GapBelow | MissingBelow)]
    return max(limits) if limits else None


def _max_iterations(algorithm: Algorithm) -> int | None:
    limits = [rule.iterations for rule in algorithm.stop if isinstance(rule, MaxIterations)]
    return min(limits) if limits else None
