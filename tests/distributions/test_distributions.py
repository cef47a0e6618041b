"""Every distribution obeys the same laws; adding one is adding a line to CASES."""

import json
import math
import re
import warnings

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import expit, logit

from libraries import on_eager_libraries
from qbvi.arrays import to_numpy
from qbvi.distributions import (
    DISTRIBUTIONS,
    Bernoulli,
    Beta,
    Categorical,
    Dirichlet,
    Distribution,
    Exponential,
    Flat,
    Gamma,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    InverseWishart,
    LogNormal,
    LogPrior,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    SciPyPrior,
    StudentT,
    Transformed,
    Uniform,
    Wishart,
    as_distribution,
    distribution_from_spec,
)
from qbvi.distributions.base import as_shape
from qbvi.families import LAWS
from qbvi.supports import (
    Bijection,
    Interval,
    Ordered,
    Positive,
    Real,
    Simplex,
    UserDefinedError,
)

COV = np.array([[2.0, 0.6, -0.3], [0.6, 1.0, 0.2], [-0.3, 0.2, 0.5]])
A = np.array([1.5, 3.0])
B = np.array([0.7, 2.0])

# ours, the same in SciPy
SCALAR = [
    (Normal(A, B), stats.norm(A, B)),
    (InverseGamma(A, B), stats.invgamma(A, scale=B)),
    (Gamma(A, B), stats.gamma(A, scale=1 / B)),
    (Beta(A, B), stats.beta(A, B)),
    (Exponential(B), stats.expon(scale=1 / B)),
    (LogNormal(A, B), stats.lognorm(B, scale=np.exp(A))),
    (HalfNormal(B), stats.halfnorm(scale=B)),
    (HalfCauchy(B), stats.halfcauchy(scale=B)),
    (StudentT(A + 3, A, B), stats.t(A + 3, A, B)),
    (StudentT(1.0, A, B), stats.cauchy(A, B)),
    (Uniform(-A, B), stats.uniform(-A, A + B)),
]


# whole numbers: ours, the same in SciPy, each with two entries
DISCRETE = [
    (Bernoulli([0.2, 0.7]), stats.bernoulli([0.2, 0.7])),
    (Poisson([0.4, 6.0]), stats.poisson([0.4, 6.0])),
    (NegativeBinomial([3, 5], [0.3, 0.8]), stats.nbinom([3, 5], [0.3, 0.8])),
]
CHOICE = Categorical([[0.1, 0.4, 0.5], [0.7, 0.3, 0.0]])
MATRICES = [
    (Wishart([4.0, 7.5], [COV, COV[::-1, ::-1]]), stats.wishart),
    (Wishart(2.5, COV, shape=(2, 3, 3)), stats.wishart),
    (InverseWishart([4.0, 7.5], [COV, COV[::-1, ::-1]]), stats.invwishart),
    (InverseWishart(9, COV), stats.invwishart),
]


def laplace(x):
    return -np.abs(x).sum()


def scaled_logistic(u):
    return 3 * expit(u)


def scaled_logit(x):
    return logit(x / 3)


# densities by Python functions of SciPy's or of the user's, which only the host can call
OF_SCIPY = [
    SciPyPrior(stats.weibull_min(1.5), shape=2),
    SciPyPrior(stats.gamma([2.0, 3.0], loc=1.0)),
    SciPyPrior(stats.beta(2.0, 3.0, loc=-1, scale=4)),
    SciPyPrior(stats.multivariate_t([1.0, 2.0], [[2.0, 0.3], [0.3, 1.0]], df=4)),
]
OF_USERS = [LogPrior(laplace, 2), LogPrior(laplace, 2, Positive())]
BY_A_USERS_MAP = Transformed(Normal(shape=2), Bijection(scaled_logistic, scaled_logit))
OF_OTHERS = [*OF_SCIPY, *OF_USERS, BY_A_USERS_MAP]
PROPER = [
    *(ours for ours, _ in SCALAR),
    *(SciPyPrior(scipys) for _, scipys in SCALAR),
    MultivariateNormal([1.0, 2.0, 3.0], COV),
    Dirichlet([1.0, 2.0, 3.0]),
    Dirichlet([0.5, 0.7], shape=(3, 2)),
    Transformed(Normal([0.0, 1.0], 1.0), Positive()),
    Transformed(Normal([0.0, 1.0], 1.0), Simplex()),
    Transformed(StudentT(5, shape=3), Ordered()),
    BY_A_USERS_MAP,
    *OF_SCIPY,
    SciPyPrior(stats.cauchy(0, 2)),
    SciPyPrior(stats.multivariate_normal([1.0, 2.0, 3.0], COV)),
    SciPyPrior(stats.dirichlet([1.0, 2.0, 3.0])),
    *(prior for prior, _ in MATRICES),
    SciPyPrior(stats.wishart(4, COV)),
    SciPyPrior(stats.invwishart(4, COV)),
    Normal(0.0, 2.0, shape=(2, 3)),
    Normal(),
]
IMPROPER = [
    Flat(3),
    Flat((2, 2), Positive()),
    Flat(3, Interval(0, 1)),
    Flat(3, Simplex()),
    *OF_USERS,
]
CASES = [*PROPER, *IMPROPER]
WHOLE = [*(prior for prior, _ in DISCRETE), *(SciPyPrior(frozen) for _, frozen in DISCRETE), CHOICE]


def name(case):
    """Name a case in a way that is the same in every test process."""
    return case.dist.name if hasattr(case, "dist") else repr(case)


def every(cases):
    return pytest.mark.parametrize("prior", cases, ids=repr)


def points(prior, n=7, scale=1.5):
    return scale * np.random.default_rng(3).standard_normal((n, prior.dim))


@pytest.mark.parametrize(("prior", "scipys"), SCALAR, ids=name)
def test_scalar_densities_are_scipys(prior, scipys, xp):
    x = scipys.rvs((50, 2), random_state=np.random.default_rng(0))
    np.testing.assert_allclose(
        to_numpy(prior.log_prob(xp.asarray(x))), scipys.logpdf(x).sum(-1), rtol=1e-11, atol=1e-11
    )


def test_joint_densities_are_scipys(xp):
    rng = np.random.default_rng(0)
    normal, frozen = MultivariateNormal([1.0, 2.0, 3.0], COV), stats.multivariate_normal([1.0, 2.0, 3.0], COV)
    x = frozen.rvs(20, random_state=rng)
    np.testing.assert_allclose(to_numpy(normal.log_prob(xp.asarray(x))), frozen.logpdf(x), rtol=1e-12)
    simplex = rng.dirichlet([2.0, 3.0, 4.0], 20)
    expected = [stats.dirichlet([1.0, 2.0, 3.0]).logpdf(row) for row in simplex]
    np.testing.assert_allclose(to_numpy(Dirichlet([1.0, 2.0, 3.0]).log_prob(xp.asarray(simplex))), expected, rtol=1e-12)


@every([prior for prior in CASES if prior not in OF_OTHERS])
def test_unconstrained_density_is_the_definition(prior, xp):
    """A closed form in u equals log p(constrain(u)) + log|J|."""
    check_unconstrained_density(prior, xp)


@on_eager_libraries
@every(OF_OTHERS)
def test_unconstrained_density_by_functions_of_others_is_the_definition(prior, xp):
    check_unconstrained_density(prior, xp)


def check_unconstrained_density(prior, xp):
    u = xp.asarray(points(prior))
    got = prior.log_prob_unconstrained(u)
    assert got.shape == (7,)
    np.testing.assert_allclose(
        to_numpy(got), to_numpy(Distribution.log_prob_unconstrained(prior, u)), rtol=1e-9, atol=1e-9
    )


@every(OF_OTHERS)
def test_functions_of_others_cannot_be_compiled_and_say_so_by_name(prior, jax):
    x = jax.numpy.asarray(prior.support.constrain(points(prior), prior.shape))
    who = repr(prior.support if prior is BY_A_USERS_MAP else prior)
    rule = "computed by SciPy on the host and cannot" if prior in OF_SCIPY else "must be written in jax.numpy to"
    for density in (
        prior.log_prob,
        lambda x: prior.support.constrain(x, prior.shape) + prior.log_prob_unconstrained(x),
    ):
        with pytest.raises(TypeError, match=rf"{re.escape(who)} .*{rule} be compiled by JAX.*backend='numpy'"):
            jax.jit(density)(x)


def test_a_users_density_in_the_language_of_jax_is_compiled(jax):
    for vectorized, function in [
        (False, lambda x: -jax.numpy.abs(x).sum()),
        (True, lambda x: -jax.numpy.abs(x).sum(-1)),
    ]:
        prior = LogPrior(function, 2, Positive(), vectorized=vectorized)
        u = points(prior)
        expected = LogPrior(laplace, 2, Positive()).log_prob_unconstrained(u)
        np.testing.assert_allclose(jax.jit(prior.log_prob_unconstrained)(u), expected, rtol=1e-14)
    with pytest.raises(ValueError, match=r"must return one number per value, got shape \(2,\)"):
        jax.jit(LogPrior(lambda x: -jax.numpy.abs(x), 2).log_prob)(u)


@pytest.mark.parametrize(
    "prior",
    [
        Normal(1.0, 2.0),
        InverseGamma(2.0, 3.0),
        Gamma(0.8, 2.0),
        Beta(0.5, 2.0),
        Exponential(3.0),
        LogNormal(0.5, 0.7),
        HalfNormal(2.0),
        HalfCauchy(2.0),
        StudentT(3.0, 1.0, 2.0),
        Uniform(-1.0, 3.0),
        Dirichlet([2.0, 0.5]),
        Transformed(Normal(), Positive()),
        SciPyPrior(stats.weibull_min(1.5)),
        SciPyPrior(stats.gamma(2.0, loc=1.0)),
        SciPyPrior(stats.truncnorm(-1, 2)),
        SciPyPrior(stats.logistic(1, 2)),
    ],
    ids=repr,
)
def test_scalar_densities_of_u_integrate_to_one(prior):
    def density(u):
        return math.exp(prior.log_prob_unconstrained(np.array([[u]]))[0])

    total = sum(quad(density, *ends, limit=200)[0] for ends in ((-math.inf, -3), (-3, 3), (3, math.inf)))
    assert total == pytest.approx(1.0, abs=1e-6)


@every([prior for prior in CASES if prior.quadratic() is not None])
def test_quadratic_reproduces_the_density_up_to_a_constant(prior):
    linear, precision = prior.quadratic()
    u = points(prior)
    matrix = np.diag(precision) if precision.ndim == 1 else precision
    formula = u @ linear - 0.5 * np.einsum("ni,ij,nj->n", u, matrix, u)
    difference = to_numpy(prior.log_prob_unconstrained(u)) - formula
    np.testing.assert_allclose(difference, difference[0], atol=1e-10)


def test_a_prior_without_a_shape_is_that_of_one_number():
    assert Flat().shape == Normal().shape == ()
    np.testing.assert_array_equal(Flat().log_prob(np.zeros(4)), np.zeros(4))


def test_which_priors_are_quadratic():
    assert Normal(shape=2).quadratic() is not None
    assert MultivariateNormal(0.0, COV).quadratic() is not None
    assert LogNormal().quadratic() is not None
    assert SciPyPrior(stats.norm(1, 2)).quadratic() is not None
    assert SciPyPrior(stats.lognorm(1.0)).quadratic() is not None
    assert SciPyPrior(stats.lognorm(1.0, loc=2.0)).quadratic() is None
    np.testing.assert_array_equal(Flat(3).quadratic(), np.zeros((2, 3)))
    assert StudentT(4.0).quadratic() is None
    assert Flat(3, Simplex()).quadratic() is None


@every(CASES)
def test_initial_is_finite_and_reproducible(prior):
    loc, scale = prior.initial()
    assert loc.shape == scale.shape == (prior.dim,)
    assert np.all(np.isfinite(loc))
    assert np.all(np.isfinite(scale) & (scale > 0))
    np.testing.assert_array_equal(prior.initial(), (loc, scale))


@pytest.mark.parametrize(
    ("prior", "middle"),
    [
        (Gamma(0.01, 0.01), 1.0),
        (InverseGamma(0.001, 0.001), 1.0),
        (stats.gamma(0.01), 1.0),
        (Beta(0.01, 0.01), 0.5),
    ],
    ids=["gamma", "inverse-gamma", "scipy", "beta"],
)
def test_a_prior_over_many_orders_of_magnitude_starts_in_the_middle(prior, middle):
    """The median of Gamma(0.01, 0.01) is 1e-29, where no likelihood says anything."""
    prior = as_distribution(prior)
    loc, scale = prior.initial()
    np.testing.assert_allclose(prior.support.constrain(loc[None], ()), middle)
    np.testing.assert_allclose(scale, math.log(1e4) / 1.349)


def test_a_prior_with_a_middle_starts_there():
    loc, scale = Gamma(2.0, 1e6).initial()
    exact = np.log(stats.gamma(2.0, scale=1e-6).ppf([0.25, 0.5, 0.75]))
    # Quartiles of a thousand draws have a standard error of about 0.04.
    np.testing.assert_allclose([loc[0], scale[0]], [exact[1], (exact[2] - exact[0]) / 1.349], atol=0.15)
    wide = LogNormal(3.0, 20.0)  # Gaussian on the log scale: its centre is known, however wide
    np.testing.assert_allclose(np.ravel(wide.initial()), [3.0, 20.0])


def test_initial_is_where_the_prior_is():
    np.testing.assert_array_equal(Normal([1.0, 2.0], 3.0).initial(), [[1.0, 2.0], [3.0, 3.0]])
    loc, scale = MultivariateNormal([1.0, 2.0, 3.0], COV).initial()
    np.testing.assert_allclose((loc, scale), ([1.0, 2.0, 3.0], np.sqrt(np.diag(COV))))
    loc, scale = Uniform(2.0, 5.0).initial()  # u is standard logistic: median 0, quartiles +-log 3
    assert abs(loc[0]) < 0.3
    assert scale[0] == pytest.approx(2 * math.log(3) / 1.349, rel=0.2)


@every(
    [
        Gamma(1e-3, 1e-3),
        InverseGamma(1e-3, 1e-3),
        Beta(1e-3, 1e-3),
        StudentT(0.01),
        HalfCauchy(1e-300),
        Dirichlet([1e-3] * 3),
    ]
)
def test_very_vague_priors_stay_finite(prior):
    draws = prior.sample(np.random.default_rng(0), 500)
    assert np.all(np.isfinite(draws))
    assert all(prior.support.contains(row) for row in draws)
    assert np.all(np.isfinite(prior.initial()))


MOMENTS = [
    (Normal(1.0, 2.0), 1.0, 2.0),
    (InverseGamma(9.0, 4.0), 4 / 8, 4 / (8 * math.sqrt(7))),
    (Gamma(0.4, 2.0), 0.2, math.sqrt(0.1)),
    (Beta(2.0, 3.0), 0.4, 0.2),
    (Exponential(4.0), 0.25, 0.25),
    (LogNormal(0.2, 0.3), math.exp(0.245), math.exp(0.245) * math.sqrt(math.expm1(0.09))),
    (HalfNormal(2.0), 2 * math.sqrt(2 / math.pi), 2 * math.sqrt(1 - 2 / math.pi)),
    (StudentT(9.0, 1.0, 2.0), 1.0, 2 * math.sqrt(9 / 7)),
    (Uniform(-1.0, 3.0), 1.0, 4 / math.sqrt(12)),
    (SciPyPrior(stats.gamma(3.0, loc=1.0)), 4.0, math.sqrt(3)),
    (SciPyPrior(stats.Normal(mu=1.0, sigma=2.0)) if hasattr(stats, "Normal") else Normal(1.0, 2.0), 1.0, 2.0),
]


@pytest.mark.parametrize(("prior", "mean", "sd"), MOMENTS, ids=repr)
def test_sample_moments(prior, mean, sd):
    n, bound = 40_000, stats.norm.isf(1e-7)
    x = prior.sample(np.random.default_rng(5), n)
    assert x.shape == (n,)
    assert abs(x.mean() - mean) < bound * sd / math.sqrt(n)
    spread = (x - mean) ** 2
    assert abs(spread.mean() - sd**2) < bound * spread.std() / math.sqrt(n)


@pytest.mark.parametrize(("prior", "scipys"), SCALAR, ids=name)
def test_draws_have_the_distribution(prior, scipys):
    x = prior.sample(np.random.default_rng(6), 5000)
    uniform = scipys.cdf(x)
    assert all(stats.kstest(column, "uniform").pvalue > 1e-6 for column in uniform.T)


def test_joint_draws_have_their_moments():
    n, bound = 40_000, stats.norm.isf(1e-7)
    x = MultivariateNormal([1.0, 2.0, 3.0], COV).sample(np.random.default_rng(0), n)
    outer = np.einsum("ni,nj->nij", x - [1.0, 2.0, 3.0], x - [1.0, 2.0, 3.0])
    assert np.all(np.abs(x.mean(0) - [1, 2, 3]) < bound * np.sqrt(np.diag(COV) / n))
    assert np.all(np.abs(outer.mean(0) - COV) < bound * outer.std(0) / math.sqrt(n))
    c = np.array([0.3, 2.0, 3.0])
    y = Dirichlet(c).sample(np.random.default_rng(0), n)
    assert np.all(np.abs(y.mean(0) - c / c.sum()) < bound * y.std(0) / math.sqrt(n))
    variance = c * (c.sum() - c) / (c.sum() ** 2 * (c.sum() + 1))
    spread = (y - c / c.sum()) ** 2
    assert np.all(np.abs(spread.mean(0) - variance) < bound * spread.std(0) / math.sqrt(n))


@every([*PROPER, *WHOLE])
def test_draws_have_the_shape_and_lie_in_the_support(prior):
    assert prior.can_sample
    x = prior.sample(np.random.default_rng(0), 11)
    assert x.shape == (11, *prior.shape)
    assert prior.support.contains(x)
    np.testing.assert_array_equal(x, prior.sample(np.random.default_rng(0), 11))


@every(IMPROPER)
def test_improper_priors_cannot_be_sampled(prior):
    assert not prior.can_sample
    with pytest.raises(ValueError, match="cannot be sampled"):
        prior.sample(np.random.default_rng(0), 3)


@every([prior for prior in CASES if not isinstance(prior.support, Bijection)])
@pytest.mark.parametrize("size", [30.0, 700.0, 2000.0])
def test_no_nan_and_no_warning_in_far_tails(prior, size):
    u = size * np.vstack([np.ones(prior.dim), -np.ones(prior.dim), np.where(np.arange(prior.dim) % 2, 1.0, -1.0)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = to_numpy(prior.log_prob_unconstrained(u))
    assert not np.any(np.isnan(values))
    assert np.all(values < np.inf)


def test_tails_decay_where_the_naive_formula_overflows():
    assert InverseGamma(3, 1).log_prob_unconstrained(np.array([[-700.0]]))[0] < -1e300
    assert Beta(2.0, 0.5).log_prob_unconstrained(np.array([[700.0]]))[0] == pytest.approx(-350.0, abs=1)
    assert SciPyPrior(stats.gamma(0.5, loc=1.0)).log_prob_unconstrained(np.array([[-700.0]]))[0] < -300


@pytest.mark.parametrize(
    ("prior", "x"),
    [
        (InverseGamma(3, 1), -1.0),
        (Beta(2, 2), 1.5),
        (Uniform(0, 1), -0.1),
        (Dirichlet([1.0, 1.0]), [0.7, 0.7]),
        (Dirichlet([2.0, 2.0]), [-0.2, 1.2]),
        (Gamma(2, 2, shape=2), [1.0, -1.0]),
        (Dirichlet([1.0, 1.0], shape=(2, 2)), [[0.5, 0.5], [0.7, 0.7]]),
        (SciPyPrior(stats.expon(loc=1.0)), 0.5),
        (Wishart(3, np.eye(2)), [[1.0, 2.0], [2.0, 1.0]]),
        (Wishart(3, np.eye(2)), [[1.0, 0.2], [0.0, 1.0]]),
        (InverseWishart(3, np.eye(2)), [[-1.0, 0.0], [0.0, 1.0]]),
        (Bernoulli(0.3), 0.5),
        (Bernoulli(0.3), 2.0),
        (Bernoulli(0.0), 1.0),
        (Poisson(3.0, shape=2), [1.0, -1.0]),
        (NegativeBinomial(3, 0.2), 1.5),
        (Categorical([0.5, 0.5]), 2.0),
        (CHOICE, [0.0, 2.0]),
    ],
    ids=repr,
)
def test_density_is_zero_outside_of_the_support(prior, x):
    assert prior.log_prob(np.array([x]))[0] == -np.inf


def test_nan_is_not_taken_for_zero_density():
    assert np.isnan(Poisson(2).log_prob(np.array([np.nan]))[0])
    assert np.isnan(Wishart(3, np.eye(2)).log_prob(np.full((1, 2, 2), np.nan))[0])
    assert np.isnan(Gamma(2, 2).log_prob(np.array([np.nan]))[0])


@every(CASES)
def test_spec_round_trip_through_json(prior):
    text = json.dumps(prior.to_spec(), allow_nan=False)
    if isinstance(prior.support, Bijection):
        assert prior.holds_code
        with pytest.raises(UserDefinedError):
            distribution_from_spec(json.loads(text))
        return
    back = distribution_from_spec(json.loads(text))
    assert (back.shape, back.support, back.dim) == (prior.shape, prior.support, prior.dim)
    assert json.dumps(back.to_spec()) == text
    u = points(prior)
    if prior.holds_code:
        with pytest.raises(UserDefinedError, match="pass `prior=` when loading"):
            back.log_prob_unconstrained(u)
    else:
        np.testing.assert_array_equal(back.log_prob_unconstrained(u), prior.log_prob_unconstrained(u))


@on_eager_libraries  # posteriors of whole numbers compute on the host
@pytest.mark.parametrize(("prior", "scipys"), DISCRETE, ids=name)
def test_probabilities_of_whole_numbers_are_scipys(prior, scipys, xp):
    x = scipys.rvs((50, 2), random_state=np.random.default_rng(0)).astype(float)
    np.testing.assert_allclose(to_numpy(prior.log_prob(xp.asarray(x))), scipys.logpmf(x).sum(-1), rtol=1e-11)


@every(WHOLE)
def test_whole_numbers_have_their_moments_and_round_trip(prior):
    n, bound = 40_000, stats.norm.isf(1e-7)
    x = prior.sample(np.random.default_rng(5), n)
    for j in range(2):  # the frequency of each value is its probability
        for value in np.unique(x[:, j]):
            grid = np.tile(x[:1], (1, 1))
            grid[0, j] = value
            others = np.array([prior.log_prob(np.where(np.arange(2) == j, k, grid))[0] for k in range(60)])
            share = np.exp(prior.log_prob(grid)[0] - np.logaddexp.reduce(others))
            assert abs(np.mean(x[:, j] == value) - share) < bound * math.sqrt(share / n) + 1e-9
    back = distribution_from_spec(json.loads(json.dumps(prior.to_spec(), allow_nan=False)))
    np.testing.assert_array_equal(back.log_prob(x[:20]), prior.log_prob(x[:20]))
    assert (back.shape, back.support) == (prior.shape, prior.support)
    assert prior.support.is_discrete
    assert not prior.holds_code
    u = prior.support.unconstrain(x[:20], prior.shape)  # in the middle of its cell, where dv = 1 du / jacobian
    density = prior.log_prob_unconstrained(u) - prior.support.log_jacobian(u, prior.shape)
    np.testing.assert_allclose(density, prior.log_prob(x[:20]), atol=1e-12)
    assert np.all(np.isfinite(prior.initial()))


def test_categorical_probabilities_sum_to_one_and_have_their_frequencies():
    grid = np.stack(np.meshgrid(range(3), range(3)), -1).reshape(-1, 2).astype(float)
    with np.errstate(divide="ignore"):
        expected = np.log(CHOICE.probs[0, grid[:, 0].astype(int)] * CHOICE.probs[1, grid[:, 1].astype(int)])
    np.testing.assert_allclose(CHOICE.log_prob(grid), expected, rtol=1e-12)
    x = CHOICE.sample(np.random.default_rng(0), 40_000)
    counts = np.array([[np.mean(x[:, i] == j) for j in range(3)] for i in range(2)])
    np.testing.assert_allclose(counts, CHOICE.probs, atol=stats.norm.isf(1e-7) * 0.5 / 200)


@pytest.mark.parametrize(("prior", "scipys"), MATRICES, ids=lambda case: getattr(case, "__name__", ""))
def test_densities_of_matrices_are_scipys(prior, scipys, xp):
    x = prior.sample(np.random.default_rng(0), 6)
    parameters = prior.parameters()
    copies = x.reshape(6, -1, 3, 3)
    frozen = [scipys(df, scale) for df, scale in zip(*parameters.values(), strict=True)]
    expected = [sum(law.logpdf(matrix) for law, matrix in zip(frozen, row, strict=True)) for row in copies]
    np.testing.assert_allclose(to_numpy(prior.log_prob(xp.asarray(x))), expected, rtol=1e-8)


@pytest.mark.parametrize(("prior", "scipys"), [case for case in MATRICES if np.all(case[0].df > 6)])
def test_draws_of_matrices_have_their_moments(prior, scipys):
    n, bound = 40_000, stats.norm.isf(1e-7)
    x = prior.sample(np.random.default_rng(0), n)
    law = scipys(float(prior.df), prior.scale)
    assert np.all(np.abs(x.mean(0) - law.mean()) < bound * np.sqrt(law.var() / n))
    spread = (x - law.mean()) ** 2
    assert np.all(np.abs(spread.mean(0) - law.var()) < bound * spread.std(0) / math.sqrt(n))


@pytest.mark.parametrize("prior", [Wishart(3, [[2.0]]), InverseWishart(3, [[2.0]])])
def test_densities_of_one_by_one_matrices_integrate_to_one(prior):
    total = quad(lambda u: math.exp(prior.log_prob_unconstrained(np.array([[u]]))[0]), -20, 20, limit=300)[0]
    assert total == pytest.approx(1.0, abs=1e-7)


LAWS_OF_PRIORS = [
    InverseGamma(A, B),
    Gamma(A, B),
    Beta(A, B),
    Exponential(B),
    Dirichlet([[1.0, 2.0, 3.0], [0.5, 0.7, 2.0]]),
    MATRICES[0][0],
    MATRICES[2][0],
    *(prior for prior, _ in DISCRETE[:2]),
    NegativeBinomial(3, [0.3, 0.8]),
    CHOICE,
    SciPyPrior(stats.gamma(A, scale=2.0)),
    SciPyPrior(stats.wishart(4, COV)),
    SciPyPrior(stats.poisson([1.0, 2.0])),
]


@every(LAWS_OF_PRIORS)
def test_a_prior_is_a_member_of_the_family_of_its_law(prior):
    """The family built from a prior's parameters has that density, to the constant."""
    parameters = prior.parameters()
    family = LAWS[prior.law].from_parameters(parameters)
    x = prior.sample(np.random.default_rng(0), 8)
    flat = x.reshape(8, -1)
    assert family.dim == flat.shape[1]
    np.testing.assert_allclose(family.log_prob(family.member(parameters), flat), prior.log_prob(x), rtol=1e-7)


def test_every_law_has_a_prior():
    assert {prior.law for prior in LAWS_OF_PRIORS} == set(LAWS)


@every([Normal(), MultivariateNormal(0.0, COV), LogNormal(), HalfNormal(), StudentT(3), Uniform(), Flat(2)])
def test_priors_without_a_law_of_their_own_say_so(prior):
    assert prior.parameters() is None
    assert prior.law is None


def test_registry_is_covered_and_closed():
    assert {type(prior).__name__ for prior in [*CASES, *WHOLE]} == set(DISTRIBUTIONS)
    with pytest.raises(ValueError, match=r"one of Normal.*got 'eval'"):
        distribution_from_spec({"kind": "eval"})
    with pytest.raises(ValueError, match="damaged"):
        distribution_from_spec({"kind": "Normal", "loc": 0.0, "breadth": 1.0})
    for name in ("poisson", "rv_continuous", "ks_2samp", "multivariate_normal", "__name__", "nothing"):
        with pytest.raises(ValueError, match=rf"continuous distribution of scipy.stats, got '{name}'"):
            distribution_from_spec({"kind": "SciPyPrior", "name": name, "parameters": {}, "shape": []})


def test_unknown_parts_of_a_users_distribution_are_marked():
    class Mine(Distribution):
        shape, support = (2,), Positive()

        def log_prob(self, x):
            return -x.sum(-1)

    assert Mine().to_spec()["kind"] == "LogPrior"
    assert distribution_from_spec(Mine().to_spec()).support == Positive()
    np.testing.assert_array_equal(Mine().initial(), [np.zeros(2), np.ones(2)])


class TestShapes:
    def test_parameters_broadcast(self):
        assert Normal(0, 1, shape=8).shape == (8,)
        assert Normal(0, 1, shape=(2, 3)).shape == (2, 3)
        assert Normal().shape == ()
        assert Normal(np.zeros((4, 1)), np.ones(3)).shape == (4, 3)
        np.testing.assert_array_equal(Normal([1.0, 2.0], 3.0).loc, [1.0, 2.0])
        assert as_shape(np.int64(3)) == (3,)
        assert as_shape([]) == ()

    def test_entries_use_their_own_parameters(self):
        x = np.arange(6.0).reshape(1, 2, 3)
        loc, scale = np.arange(3.0), np.array([[1.0], [2.0]])
        expected = stats.norm(loc, scale).logpdf(x).sum()
        assert Normal(loc, scale).log_prob(x)[0] == pytest.approx(expected)

    @pytest.mark.parametrize("shape", [0, (2, 0), -1, 2.5, "three", (2, None)])
    def test_bad_shapes(self, shape):
        with pytest.raises(ValueError, match="`shape` must be a whole number"):
            Normal(0, 1, shape=shape)
        with pytest.raises(ValueError, match="`shape` must be a whole number"):
            Flat(shape)

    def test_zero_parameters(self):
        with pytest.raises(ValueError, match="at least 1, got"):
            Normal(np.zeros(0), 1.0)

    def test_parameters_that_do_not_fit(self):
        with pytest.raises(ValueError, match=r"to one shape, got `loc` \(2,\), `scale` \(3,\)"):
            Normal(np.zeros(2), np.ones(3))
        with pytest.raises(ValueError, match=r"to `shape` 3, got `loc` \(2,\)"):
            Normal(np.zeros(2), 1.0, shape=3)
        with pytest.raises(ValueError, match=r"to `shape` \(\), got `loc` \(2,\)"):
            Normal(np.zeros(2), 1.0, shape=())


class TestValidation:
    @pytest.mark.parametrize(
        ("build", "name"),
        [
            (lambda: Normal(0, -1), "scale"),
            (lambda: Normal(0, [1.0, 0.0]), "scale"),
            (lambda: InverseGamma(0, 1), "alpha"),
            (lambda: Gamma(1, -2), "beta"),
            (lambda: Beta(1, 0), "beta"),
            (lambda: Exponential(0), "rate"),
            (lambda: LogNormal(0, 0), "sigma"),
            (lambda: HalfNormal(-1), "scale"),
            (lambda: HalfCauchy(-1), "scale"),
            (lambda: StudentT(-1), "df"),
            (lambda: Dirichlet([1.0, 0.0]), "concentration"),
        ],
    )
    def test_positive_parameters(self, build, name):
        with pytest.raises(ValueError, match=rf"`{name}` must be positive, got (-|0)"):
            build()

    def test_finite_numbers(self):
        with pytest.raises(ValueError, match="`loc` must be finite, got nan"):
            Normal(np.nan, 1)
        with pytest.raises(ValueError, match="`high` must be finite, got inf"):
            Uniform(0, np.inf)
        with pytest.raises(TypeError, match="`loc` must be a number or an array of numbers, got 'zero'"):
            Normal("zero", 1)

    def test_uniform_ends(self):
        with pytest.raises(ValueError, match="`low` must be below `high`"):
            Uniform(1, 1)

    def test_covariance(self):
        with pytest.raises(ValueError, match=r"`cov` must be positive definite, got a smallest eigenvalue of -1"):
            MultivariateNormal(0.0, [[1.0, 2.0], [2.0, 1.0]])
        with pytest.raises(ValueError, match=r"smallest eigenvalue of .*identity"):
            MultivariateNormal(0.0, np.ones((3, 3)))
        with pytest.raises(ValueError, match=r"`cov` must be symmetric, .* up to 0.5"):
            MultivariateNormal(0.0, [[1.0, 0.5], [0.0, 1.0]])
        with pytest.raises(ValueError, match=r"square matrix .* got shape \(3,\)"):
            MultivariateNormal(np.zeros(3), np.ones(3))
        with pytest.raises(ValueError, match=r"`mean` must .* shape \(2,\) to match `cov`, got shape \(3,\)"):
            MultivariateNormal(np.zeros(3), np.eye(2))
        with pytest.raises(ValueError, match="`cov` must be finite"):
            MultivariateNormal(np.zeros(2), np.full((2, 2), np.nan))

    @pytest.mark.parametrize(
        ("build", "message"),
        [
            (lambda: Bernoulli(1.5), r"`p` must lie in \[0, 1\], got 1.5"),
            (lambda: Bernoulli([0.2, -0.1]), r"`p` must lie in \[0, 1\], got -0.1"),
            (lambda: Poisson(-2.0), "`rate` must be positive, got -2.0"),
            (lambda: NegativeBinomial(2.5, 0.3), "`count` must be a whole number of at least 1, got 2.5"),
            (lambda: NegativeBinomial(0, 0.3), "`count` must be a whole number of at least 1, got 0"),
            (lambda: NegativeBinomial(2, 0.0), "`p` must be positive, got 0"),
            (lambda: NegativeBinomial(2, 1.1), r"`p` must lie in \[0, 1\], got 1.1"),
            (
                lambda: Categorical([0.5, 0.6]),
                "`probs` must sum to one along its last axis, got 1.1; divide by the sum",
            ),
            (lambda: Categorical([1.2, -0.2]), r"`probs` must lie in \[0, 1\], got 1.2"),
            (lambda: Categorical([1.0]), r"`probs` must have 2 or more categories .* got shape \(1,\)"),
            (lambda: Categorical([0.5, 0.5], shape=(2.5,)), "`shape` must be a whole number"),
            (lambda: Wishart(1.0, np.eye(2)), "`df` must be above 1, .* 2 x 2 scale, got 1.0"),
            (lambda: InverseWishart([5, 1.5], np.eye(3)), "`df` must be above 2, .* 3 x 3 scale, got 1.5"),
            (
                lambda: Wishart(5, [[1.0, 2.0], [2.0, 1.0]]),
                "`scale` must be positive definite, got a smallest eigenvalue",
            ),
            (lambda: Wishart(5, [[1.0, 0.5], [0.0, 1.0]]), "`scale` must be symmetric, .* up to 0.5"),
            (lambda: Wishart(5, [1.0, 2.0]), r"`scale` must be a square matrix .* got shape \(2,\)"),
            (
                lambda: Wishart(5, np.eye(2), shape=(3, 3)),
                r"`shape` must end in \(2, 2\), the size of `scale`, got \(3, 3\)",
            ),
            (lambda: Wishart([5, 6], np.eye(2), shape=(3, 2, 2)), r"to `shape` \(3,\), got `df` \(2,\)"),
        ],
    )
    def test_laws_of_whole_numbers_and_matrices(self, build, message):
        with pytest.raises(ValueError, match=message):
            build()

    def test_dirichlet_needs_two_categories(self):
        with pytest.raises(ValueError, match="2 or more categories"):
            Dirichlet([1.0])

    def test_parameters_cannot_be_changed_behind_our_back(self):
        loc = np.zeros(2)
        prior = Normal(loc, 1.0)
        loc += 1
        np.testing.assert_array_equal(prior.loc, [0.0, 0.0])
        with pytest.raises(ValueError, match="read-only"):
            prior.loc[0] = 3.0


class TestLogPrior:
    def test_vectorized_agrees_with_the_loop(self):
        x = np.random.default_rng(0).standard_normal((5, 3))
        loop = LogPrior(laplace, 3)
        batch = LogPrior(lambda x: -np.abs(x).sum(-1), 3, vectorized=True)
        np.testing.assert_allclose(loop.log_prob(x), batch.log_prob(x))

    def test_function_may_write_into_its_argument(self):
        def rude(x):
            x[:] = 0.0
            return 1.0

        x = np.ones((2, 3))
        LogPrior(rude, 3).log_prob(x)
        np.testing.assert_array_equal(x, np.ones((2, 3)))

    def test_errors(self):
        x = np.ones((4, 3))
        with pytest.raises(TypeError, match="`log_prob` must be a function"):
            LogPrior(3.0, 2)
        with pytest.raises(TypeError, match="`support` must be a support such as"):
            LogPrior(laplace, 2, Positive)
        with pytest.raises(ValueError, match=r"one number per value, got shape \(3,\)"):
            LogPrior(lambda x: x, 3).log_prob(x)
        with pytest.raises(ValueError, match=r"shape \(4,\) for 4 values, got shape \(\)"):
            LogPrior(lambda x: 0.0, 3, vectorized=True).log_prob(x)
        with pytest.raises(ValueError, match=r"a number or -inf, got nan at \[1.0, 1.0, 1.0\]"):
            LogPrior(lambda x: np.nan, 3).log_prob(x)

    def test_minus_infinity_is_allowed(self):
        assert LogPrior(lambda x: -np.inf, 3).log_prob(np.ones((1, 3)))[0] == -np.inf


class TestTransformed:
    def test_density_of_u_is_the_base(self):
        prior = Transformed(Normal([0.0, 1.0], 2.0), Interval(0, 1))
        u = points(prior)
        np.testing.assert_allclose(prior.log_prob_unconstrained(u), stats.norm([0.0, 1.0], 2.0).logpdf(u).sum(-1))

    def test_lognormal_is_a_transformed_normal(self):
        x = np.array([0.3, 2.0])
        got = Transformed(Normal(0.5, 0.7), Positive()).log_prob(x)
        np.testing.assert_allclose(got, stats.lognorm(0.7, scale=math.exp(0.5)).logpdf(x))

    def test_shapes(self):
        assert Transformed(Normal(shape=(2, 3)), Simplex()).shape == (2, 4)
        assert Transformed(Normal(), Simplex()).shape == (2,)
        pairs = Bijection(lambda u: np.array([u, -u]), unconstrained_size=3)
        prior = Transformed(Normal(shape=3), pairs)
        assert prior.shape == (2, 3)
        assert prior.dim == 3
        assert prior.sample(np.random.default_rng(0), 4).shape == (4, 2, 3)

    def test_errors(self):
        with pytest.raises(TypeError, match=r"`base` must be .* real line, got Gamma"):
            Transformed(Gamma(1, 1), Positive())
        with pytest.raises(TypeError, match="`base` must be"):
            Transformed(stats.norm(), Positive())
        with pytest.raises(TypeError, match="`support` must be a support"):
            Transformed(Normal(), np.exp)
        with pytest.raises(ValueError, match=r"`base` must have 3 entries .* got 2"):
            Transformed(Normal(shape=2), Simplex(), shape=4)


class TestSciPy:
    @pytest.mark.parametrize(
        ("frozen", "support"),
        [
            (stats.norm(), Real()),
            (stats.weibull_min(2.0), Positive()),
            (stats.weibull_min(2.0, loc=1.0), Interval(1.0, math.inf)),
            (stats.gumbel_l(), Real()),
            (stats.truncnorm(-1, 2), Interval(-1.0, 2.0)),
            (stats.uniform([0.0, 1.0], 2.0), Interval([0.0, 1.0], [2.0, 3.0])),
            (stats.weibull_max(2.0), Interval(-math.inf, 0.0)),
        ],
        ids=lambda case: case.dist.name if hasattr(case, "dist") else "",
    )
    def test_support(self, frozen, support):
        assert SciPyPrior(frozen).support == support

    def test_positional_and_named_parameters_are_the_same(self):
        specs = [SciPyPrior(f).to_spec() for f in (stats.gamma(2, 0, 3), stats.gamma(a=2, scale=3))]
        assert specs[0]["parameters"] == {"a": 2, "loc": 0, "scale": 3}
        u = np.array([[0.3]])
        np.testing.assert_allclose(*[distribution_from_spec(spec).log_prob_unconstrained(u) for spec in specs])

    def test_shape_of_array_parameters(self):
        assert SciPyPrior(stats.weibull_min([1.0, 2.0, 3.0])).shape == (3,)
        assert SciPyPrior(stats.weibull_min([1.0, 2.0]), shape=(4, 2)).sample(np.random.default_rng(0), 3).shape == (
            3,
            4,
            2,
        )
        with pytest.raises(ValueError, match=r"to `shape` \(3,\), got `c` \(2,\)"):
            SciPyPrior(stats.weibull_min([1.0, 2.0]), shape=3)
        with pytest.raises(ValueError, match=r"`shape` must be \(3,\)"):
            SciPyPrior(stats.multivariate_normal(np.zeros(3)), shape=2)
        with pytest.raises(ValueError, match=r"`shape` must be \(2,\), the shape of a draw"):
            SciPyPrior(stats.multivariate_t(np.zeros(2)), shape=3)

    def test_custom_subclass_is_kept_apart_from_scipys_distribution_of_that_name(self):
        class Odd(stats.rv_continuous):
            def _pdf(self, x):
                return 2 * x

        prior = SciPyPrior(Odd(a=0.0, b=1.0, name="norm")())
        assert prior.quadratic() is None
        assert prior.support == Interval(0.0, 1.0)
        assert prior.to_spec()["kind"] == "LogPrior"
        assert prior.log_prob(np.array([0.5]))[0] == pytest.approx(0.0)

    def test_any_object_with_logpdf_and_rvs(self):
        class Mine:
            def logpdf(self, x):
                return -np.sum(x**2)

            def rvs(self, size=None, random_state=None):
                return random_state.standard_normal((2, 3) if size is None else (size, 2, 3))

        prior = as_distribution(Mine())
        assert (prior.shape, prior.support) == ((2, 3), Real())
        np.testing.assert_allclose(prior.log_prob(np.ones((4, 2, 3))), np.full(4, -6.0))
        assert prior.to_spec()["kind"] == "LogPrior"

    @pytest.mark.skipif(not hasattr(stats, "Normal"), reason="the newer distribution objects came with SciPy 1.15")
    def test_newer_objects(self):
        normal = SciPyPrior(stats.Normal(mu=[0.0, 1.0], sigma=2.0))
        np.testing.assert_allclose(normal.quadratic(), ([0.0, 0.25], [0.25, 0.25]))
        gamma = SciPyPrior(stats.make_distribution(stats.gamma)(a=[2.0, 3.0]))
        assert (gamma.shape, gamma.support) == ((2,), Positive())
        assert gamma.sample(np.random.default_rng(0), 5).shape == (5, 2)
        x = np.array([[0.5, 1.5]])
        np.testing.assert_allclose(gamma.log_prob(x), stats.gamma([2.0, 3.0]).logpdf(x).sum(-1))

    def test_errors(self):
        with pytest.raises(
            TypeError, match=r"continuous distribution .* or an unshifted bernoulli, .* got rv_discrete_frozen"
        ):
            as_distribution(stats.geom(0.2))
        with pytest.raises(TypeError, match="or an unshifted bernoulli, poisson, nbinom"):
            as_distribution(stats.poisson(2, loc=1))
        with pytest.raises(TypeError, match="continuous distribution"):
            as_distribution(stats.multinomial(3, [0.5, 0.5]))
        with pytest.raises(TypeError, match="must be frozen, got norm_gen"):
            as_distribution(stats.norm)
        with pytest.raises(TypeError, match="must be frozen, got multivariate_normal_gen"):
            as_distribution(stats.multivariate_normal)
        with pytest.raises(TypeError, match="curved set"):
            as_distribution(stats.vonmises_fisher([1.0, 0.0], 2.0))
        with pytest.raises(TypeError, match="must have `rvs`"):
            as_distribution(stats.gaussian_kde([1.0, 2.0, 3.0]))
        with pytest.raises(ValueError, match="outside of their domain"):
            as_distribution(stats.weibull_min(-1.0))
        with pytest.raises(ValueError, match="`scale` must be positive"):
            as_distribution(stats.norm(0, -1))


class TestAsDistribution:
    def test_ours_pass_through(self):
        prior = Normal()
        assert as_distribution(prior) is prior

    def test_errors(self):
        with pytest.raises(TypeError, match=r"write qbvi.LogPrior\(f, shape=...\)"):
            as_distribution(laplace)
        with pytest.raises(TypeError, match=r"got the class Normal; write Normal\(...\)"):
            as_distribution(Normal)
        with pytest.raises(TypeError, match=r"got None; for none write qbvi.Flat"):
            as_distribution(None)


def test_reprs_read_like_the_call():
    assert repr(Normal(0, 5, shape=4)) == "Normal(loc=0.0, scale=5.0, shape=(4,))"
    assert repr(Dirichlet([1, 1])) == "Dirichlet(concentration=[1.0, 1.0])"
    assert repr(SciPyPrior(stats.gamma(2.0))) == "SciPyPrior(gamma(a=2.0, loc=0.0, scale=1.0), shape=())"
    assert repr(Categorical([0.5, 0.5], shape=3)) == "Categorical(probs=[0.5, 0.5], shape=(3,))"
    assert repr(NegativeBinomial(3, 0.5)) == "NegativeBinomial(count=3.0, p=0.5)"
    assert repr(Wishart(3, [[2.0]])) == "Wishart(df=3.0, scale=[[2.0]])"
    assert repr(SciPyPrior(stats.nbinom(3, 0.5))) == "SciPyPrior(nbinom(n=3, p=0.5, loc=0.0), shape=())"
    assert repr(Normal(np.zeros(50))) == "Normal(loc=<array of shape (50,)>, scale=1.0)"
