"""PyMC models as problems of qbvi: log densities by value alone, names, transforms, coordinates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array, refuse_traced, to_numpy
from qbvi.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Flat,
    NegativeBinomial,
    Normal,
    Poisson,
    Transformed,
)
from qbvi.export import Described
from qbvi.integrations.packages import needed
from qbvi.naming import pick
from qbvi.problem import Problem
from qbvi.supports import Bijection, Interval, Periodic, Positive, Real, Shape, Simplex, Support, like

__all__ = ["ModelLikelihood", "ModelPrior", "Variable", "from_pymc"]

Floats = NDArray[np.float64]

_DRAWS = 1000  # of the prior, for location and scale of every variable
_FEWEST = 20  # draws that give a location and a scale
_NORMAL_RANGE = 1.349  # interquartile range of a standard normal
_LEAST_SHARE = 1e-3  # of a category that no draw of the prior had
# Compiles in a moment and runs slowly: for priors, which cost little next to a likelihood.
_QUICK = "FAST_COMPILE"


def from_pymc(model: Any = None, deterministics: bool | Sequence[str] = True) -> Problem:
    """A problem from a PyMC model, of which only values of log densities are used.

    The likelihood may be anything that PyMC can evaluate, such as an ``Op`` around a program
    without gradients. The fit has the names and shapes of the model's free variables, on their own
    scale. ``fit.to_arviz()`` also has the model's coordinates, dimensions, deterministics and
    observed data.

    - The log-likelihood is that of the observed variables, plus the potentials.
    - A variable without parents keeps its prior.
    - A variable with parents, as in a hierarchical model, has a Gaussian of the same location and
      scale as its prior, for the start and the survey of the fit. The difference between the two is
      part of the function, so posterior and evidence are those of the model.
    - A variable whose bounds depend on others, such as ``pm.Uniform("b", 0, a)``, is fitted under
      the name that PyMC gives its transform, ``b_interval__``. ``fit.to_arviz()`` has ``b`` itself.
    - Discrete variables keep a distribution of their own if they are Bernoulli, categorical,
      Poisson or negative binomial. Others are refused.

    Parameters
    ----------
    model : pymc.Model, optional
        The model. By default that of the ``with`` block around the call.
    deterministics : bool or sequence of str
        Which deterministics ``fit.to_arviz()`` computes, once for each draw: all, none or those
        with these names. Leave out those that call an expensive function.

    Returns
    -------
    Problem
        ``problem.fit(seed=1)`` fits it.

    Examples
    --------
    >>> import pymc as pm, qbvi  # doctest: +SKIP
    >>> with pm.Model() as model:  # doctest: +SKIP
    ...     mu = pm.Normal("mu", 0, 5)
    ...     sigma = pm.HalfNormal("sigma", 2)
    ...     y = pm.Normal("y", mu, sigma, observed=[1.2, 0.7, 1.9])
    >>> fit = qbvi.from_pymc(model).fit(seed=1)  # doctest: +SKIP
    >>> fit.mean["sigma"], fit.evidence  # doctest: +SKIP
    """
    pymc = needed("pymc", "PyMC")
    model = _context(pymc) if model is None else model
    if not isinstance(model, pymc.Model):
        msg = f"`model` must be a pymc.Model, got {type(model).__name__}; inside of `with model:` leave it out"
        raise TypeError(msg)
    if not model.free_RVs:
        msg = "`model` must have free variables to fit, got none; pm.Normal('mu') without observed= is one"
        raise ValueError(msg)
    function = ModelLikelihood(model, _chosen(model, deterministics))
    return Problem(function, function.prior)


class ModelLikelihood:
    """The part of a model's log density that the prior of the problem does not have.

    Called with values of the free variables by name, it returns a number. It is sent to other
    processes as the model, and compiled there.

    Parameters
    ----------
    model : pymc.Model
    deterministics : tuple of str
        Names of those that `described` computes.

    Attributes
    ----------
    prior : dict of str to Distribution
        The prior of each variable, for `qbvi.fit`.
    """

    def __init__(self, model: Any, deterministics: tuple[str, ...] = ()) -> None:
        self.model, self.deterministics = model, deterministics
        self._graph = _Graph.of(model)
        self.prior = {v.name: _prior(v, self._graph) for v in self._graph.variables}
        # What a checkpoint compares: the formula, and the numbers in it.
        self.formula, self.numbers = _printed(self._graph.log_likelihood)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.deterministics)

    def __call__(self, values: Mapping[str, Any]) -> float:
        """The log-likelihood at one point, and what the priors of dependent variables leave out."""
        value = float(self._compiled(*self._arguments(values)))
        stand_ins = [self.prior[name].log_prob(np.asarray(values[name], dtype=float)[None]) for name in self._stand_ins]
        return value - sum(float(log_prob[0]) for log_prob in stand_ins)

    def described(self, values: Mapping[str, Floats]) -> Described:
        """Draws, stacked along a first axis, as ArviZ shows them: with coordinates and data."""
        n = len(next(iter(values.values())))
        found = [self._shown(*self._arguments({name: x[i] for name, x in values.items()})) for i in range(n)]
        names = [*(rv.name for rv in self.model.free_RVs), *self.deterministics]
        return Described(
            variables={name: np.stack([row[i] for row in found]) for i, name in enumerate(names)},
            coords={name: np.asarray(at) for name, at in self.model.coords.items() if at is not None},
            dims={name: list(axes) for name, axes in self.model.named_vars_to_dims.items()},
            observed={rv.name: _numbers(self.model.rvs_to_values[rv]) for rv in self.model.observed_RVs},
        )

    @cached_property
    def _stand_ins(self) -> tuple[str, ...]:
        return tuple(v.name for v in self._graph.variables if v.is_in_function)

    @cached_property
    def _compiled(self) -> Callable[..., Any]:
        return self._graph.compiled(self._graph.log_likelihood)

    @cached_property
    def _shown(self) -> Callable[..., Any]:
        """Free variables and deterministics, given the values of a point."""
        wanted = [*self.model.free_RVs, *(self.model[name] for name in self.deterministics)]
        return self._graph.compiled(self._graph.replaced(wanted))

    def _arguments(self, values: Mapping[str, Any]) -> list[NDArray[Any]]:
        return [np.asarray(values[v.name]).astype(v.value.dtype) for v in self._graph.variables]


class ModelPrior(Distribution):
    """The prior of one variable of a PyMC model.

    Parameters
    ----------
    variable : Variable
        The variable.
    log_prob : callable
        Its log density as a compiled function of one value.
    """

    def __init__(self, variable: Variable, log_prob: Callable[[Any], Any]) -> None:
        self.shape, self.support = variable.shape, variable.support
        self._variable, self._function = variable, log_prob

    @property
    def can_sample(self) -> bool:
        """True: PyMC draws from it."""
        return True

    def log_prob(self, x: Array) -> Array:
        """Log-density on the constrained scale: ``(n, *shape)`` -> (n,)."""
        refuse_traced(repr(self), x)
        return like(x, np.array([float(self._function(point)) for point in to_numpy(x)]))

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        """Draw ``n`` values on the constrained scale: ``(n, *shape)``."""
        return _drawn([self._variable.rv], n, rng)[0].reshape(n, *self.shape)

    def initial(self) -> tuple[Floats, Floats]:
        """Location and scale of the prior on the unconstrained scale, each (k,)."""
        return self._variable.location_and_scale

    def __repr__(self) -> str:
        return f"ModelPrior({self._variable.name}, shape={self.shape}, support={self.support!r})"


@dataclass(frozen=True, eq=False)
class Variable:
    """A free variable of the model, as the fit sees it."""

    rv: Any
    value: Any  # the input of the graph that stands for it
    transform: Any  # PyMC's, if its bounds depend on other variables, else None
    name: str
    shape: Shape
    support: Support
    has_parents: bool
    draws: Floats | None = None  # (n, *shape) from the prior, on the scale of the fit
    is_cut: bool = False  # whether other draws of the prior are outside of the support

    @property
    def is_discrete(self) -> bool:
        """Whether its values are whole numbers."""
        return bool(self.rv.dtype.startswith(("int", "uint", "bool")))

    @property
    def is_in_function(self) -> bool:
        """Whether its log density is a part of the function, as the fit has another prior for it.

        PyMC has no draws of `pymc.Flat` and of some custom distributions. Draws of variables with
        the transform ``ordered`` are not in order.
        """
        return self.has_parents or self.draws is None or self.is_cut

    @property
    def drawable(self) -> Any:
        """The random variable on the scale of the fit."""
        return self.rv if self.transform is None else self.transform.forward(self.rv, *self.rv.owner.inputs)

    @cached_property
    def location_and_scale(self) -> tuple[Floats, Floats]:
        """Median and rescaled interquartile range of the draws, unconstrained: (k,) each."""
        lower, median, upper = np.quantile(
            to_numpy(self.support.unconstrain(self.draws, self.shape)), [0.25, 0.5, 0.75], axis=0
        )
        return median, np.where(upper > lower, (upper - lower) / _NORMAL_RANGE, 1.0)


class _Graph:
    """A model's log density, as graphs of values on the variables' own scale."""

    def __init__(self, model: Any, variables: tuple[Variable, ...]) -> None:
        self.model, self.variables = model, variables

    @classmethod
    def of(cls, model: Any) -> _Graph:
        """Read the variables of a model, and draw from their priors."""
        shapes = {name: tuple(map(int, shape)) for name, shape in model.eval_rv_shapes().items()}
        variables = [_variable(model, rv, shapes) for rv in model.free_RVs]
        return cls(model, tuple(map(_with_draws, variables, _prior_draws(variables))))

    @cached_property
    def log_likelihood(self) -> Any:
        """Log density of data, potentials and of variables that are a part of the function."""
        import pytensor.tensor

        terms = [self.log_prob(v.rv) for v in self.variables if v.is_in_function]
        terms += [self.log_prob(rv) for rv in self.model.observed_RVs]
        terms += [term.sum() for term in self.replaced(self.model.potentials)]
        return sum(terms, start=pytensor.tensor.constant(0.0))

    def log_prob(self, rv: Any) -> Any:
        """Log density of one variable given its parents, a number on the scale of the fit."""
        return self._terms[rv]

    def replaced(self, graphs: Sequence[Any]) -> list[Any]:
        """Graphs of random variables as graphs of their values."""
        from pymc.logprob.utils import replace_rvs_by_values

        return list(replace_rvs_by_values(list(graphs), **self._maps)) if graphs else []

    def compiled(self, graphs: Any, inputs: Sequence[Any] | None = None, mode: Any = None) -> Callable[..., Any]:
        """A function of the values of all variables, or of these inputs."""
        given = [v.value for v in self.variables] if inputs is None else list(inputs)
        function: Callable[..., Any] = self.model.compile_fn(
            graphs, inputs=given, mode=mode, point_fn=False, on_unused_input="ignore"
        )
        return function

    @cached_property
    def _terms(self) -> dict[Any, Any]:
        from pymc.logprob import transformed_conditional_logp

        rvs = list(self._maps["rvs_to_values"])
        terms = transformed_conditional_logp(rvs, **self._maps)
        return {rv: term.sum() for rv, term in zip(rvs, terms, strict=True)}

    @cached_property
    def _maps(self) -> dict[str, dict[Any, Any]]:
        """Value and transform of every random variable."""
        observed = {rv: self.model.rvs_to_values[rv] for rv in self.model.observed_RVs}
        return {
            "rvs_to_values": {v.rv: v.value for v in self.variables} | observed,
            "rvs_to_transforms": {v.rv: v.transform for v in self.variables} | dict.fromkeys(observed),
        }


def _variable(model: Any, rv: Any, shapes: Mapping[str, Shape]) -> Variable:
    from pytensor.graph import ancestors

    others = set(model.free_RVs) - {rv}
    transform, value = model.rvs_to_transforms[rv], model.rvs_to_values[rv]
    has_parents = bool(others.intersection(ancestors(rv.owner.inputs)))
    if transform is not None and others.intersection(ancestors([transform.backward(value, *rv.owner.inputs)])):
        return Variable(rv, value, transform, value.name, shapes[value.name], Real(), has_parents)
    support = Real() if transform is None else _support(model, rv, transform, shapes[value.name])
    return Variable(rv, rv.type(name=rv.name), None, rv.name, shapes[rv.name], support, has_parents)


def _support(model: Any, rv: Any, transform: Any, value_shape: Shape) -> Support:
    """The support that belongs to a transform of PyMC."""
    from pymc.distributions import transforms

    if isinstance(transform, transforms.IntervalTransform):
        low, high = transform.args_fn(*rv.owner.inputs)
        return Interval(-np.inf if low is None else _numbers(low), np.inf if high is None else _numbers(high))
    known: dict[type, Support] = {
        transforms.LogTransform: Positive(),
        transforms.LogOddsTransform: Interval(0.0, 1.0),
        transforms.CircularTransform: Periodic(2 * np.pi, -np.pi),
        transforms.SimplexTransform: Simplex(),
    }
    return known.get(type(transform)) or _by_transform(model, rv, transform, value_shape)


def _by_transform(model: Any, rv: Any, transform: Any, value_shape: Shape) -> Support:
    """A support that computes PyMC's own transform."""
    u, x = model.rvs_to_values[rv].type("u"), rv.type("x")
    graph, inputs = _Graph(model, ()), rv.owner.inputs
    to_value = graph.compiled(transform.backward(u, *inputs), [u], _QUICK)
    to_line = graph.compiled(transform.forward(x, *inputs), [x], _QUICK)
    log_jacobian = graph.compiled(transform.log_jac_det(u, *inputs).sum(), [u], _QUICK)
    return Bijection(
        lambda flat: to_value(flat.reshape(value_shape)),
        lambda value: np.ravel(to_line(value)),
        lambda flat: log_jacobian(flat.reshape(value_shape)),
        unconstrained_size=int(np.prod(value_shape)),
    )


def _prior(variable: Variable, graph: _Graph) -> Distribution:
    """The prior of one variable: its own, or a stand-in if its own is a part of the function."""
    if variable.is_discrete:
        return _discrete(variable)
    if variable.draws is None:
        return Flat(variable.shape, variable.support)
    if variable.is_in_function:
        loc, scale = variable.location_and_scale
        return Transformed(Normal(loc, scale), variable.support, variable.shape)
    return ModelPrior(variable, graph.compiled(graph.log_prob(variable.rv), [variable.value], _QUICK))


def _discrete(variable: Variable) -> Distribution:
    """The distribution of a discrete variable; with parents, the one with their prior's shares."""
    op, node = variable.rv.owner.op, variable.rv.owner
    kind = getattr(op, "name", None)
    if kind not in _DISCRETE or (variable.is_in_function and kind == "negative_binomial"):
        msg = (
            f"{variable.name!r} is discrete, {kind or type(op).__name__}, and qbvi has no distribution of its kind for it: sum it out "
            "(pymc_extras.marginalize), or write it as pm.Bernoulli, pm.Categorical or pm.Poisson"
        )
        raise ValueError(msg)
    own, of_draws = _DISCRETE[kind]
    parameters = op.dist_params(node)
    if not variable.is_in_function:
        return own(variable.shape, *map(_numbers, parameters))
    if variable.draws is None:
        msg = f"{variable.name!r} is discrete and PyMC cannot draw from its prior, so qbvi has no start for it: sum it out (pymc_extras.marginalize)"
        raise ValueError(msg)
    return of_draws(variable, parameters)


def _shares(variable: Variable, parameters: Sequence[Any]) -> Distribution:
    """Categories with the shares that they have among the draws of the prior."""
    k = int(parameters[0].shape[-1].eval())
    shares = np.mean(variable.draws[..., None] == np.arange(k), axis=0) + _LEAST_SHARE  # type: ignore[index]
    return Categorical(shares / shares.sum(axis=-1, keepdims=True), variable.shape)


def _mean(variable: Variable) -> Floats:
    return np.asarray(np.mean(variable.draws, axis=0))  # type: ignore[arg-type]


# For each kind of PyMC, the same distribution, and the one that stands in if there are parents.
_DISCRETE: dict[str, tuple[Callable[..., Distribution], Callable[..., Distribution]]] = {
    "bernoulli": (
        lambda shape, p: Bernoulli(p, shape),
        lambda v, _: Bernoulli(np.clip(_mean(v), _LEAST_SHARE, 1 - _LEAST_SHARE), v.shape),
    ),
    "categorical": (lambda shape, p: Categorical(p, shape), _shares),
    "poisson": (
        lambda shape, mu: Poisson(mu, shape),
        lambda v, _: Poisson(np.maximum(_mean(v), _LEAST_SHARE), v.shape),
    ),
    "negative_binomial": (lambda shape, n, p: NegativeBinomial(n, p, shape), lambda v, _: Flat(v.shape, v.support)),
}


def _prior_draws(variables: Sequence[Variable]) -> list[Floats | None]:
    """Draws of each variable on the scale of the fit; None for those that PyMC cannot draw."""
    try:
        found: Sequence[Any] = _drawn([v.drawable for v in variables], _DRAWS, np.random.default_rng(0))
    except NotImplementedError:
        found = [_one_drawn(v) for v in variables]
    return [x if x is not None and np.all(np.isfinite(x)) else None for x in found]


def _with_draws(variable: Variable, draws: Floats | None) -> Variable:
    """The variable with those of its draws that are inside of its support."""
    if draws is None or variable.is_discrete:
        return replace(variable, draws=draws)
    with np.errstate(all="ignore"):
        u = to_numpy(variable.support.unconstrain(draws, variable.shape))
    is_inside = np.all(np.isfinite(u), axis=-1)
    few = np.count_nonzero(is_inside) < _FEWEST
    return replace(variable, draws=None if few else draws[is_inside], is_cut=not np.all(is_inside))


def _one_drawn(variable: Variable) -> Floats | None:
    try:
        return _drawn([variable.drawable], _DRAWS, np.random.default_rng(0))[0]
    except NotImplementedError:
        return None


def _drawn(rvs: Sequence[Any], n: int, rng: np.random.Generator) -> list[Floats]:
    """Joint draws of PyMC: ``(n, *shape)`` each."""
    import pymc

    seed = int(rng.integers(2**31))
    return [np.reshape(x, (n, *np.shape(x)[n > 1 :])) for x in pymc.draw(list(rvs), n, random_seed=seed, mode=_QUICK)]


def _numbers(tensor: Any) -> NDArray[Any]:
    """The value of a graph without free variables."""
    return np.asarray(tensor.eval() if hasattr(tensor, "eval") else tensor)


def _printed(graph: Any) -> tuple[str, tuple[Any, ...]]:
    """A graph as text, and the arrays that it holds."""
    import pytensor
    from pytensor.graph import graph_inputs

    held = (node for node in graph_inputs([graph]) if hasattr(node, "data") or hasattr(node, "get_value"))
    arrays = (node.data if hasattr(node, "data") else node.get_value() for node in held)
    return pytensor.dprint(graph, file="str"), tuple(np.asarray(x) for x in arrays if np.asarray(x).dtype != object)


def _context(pymc: Any) -> Any:
    try:
        return pymc.modelcontext(None)
    except TypeError:
        msg = "`model` must be given outside of a `with pm.Model():` block, got None; write qbvi.from_pymc(model)"
        raise TypeError(msg) from None


def _chosen(model: Any, deterministics: bool | Sequence[str]) -> tuple[str, ...]:
    names = [one.name for one in model.deterministics]
    if isinstance(deterministics, bool):
        return tuple(names) if deterministics else ()
    for name in deterministics:
        pick("deterministics", name, {own: own for own in names})
    return tuple(deterministics)
