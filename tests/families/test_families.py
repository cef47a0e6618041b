"""Laws of exponential families, each over the registry; Gaussian ones also on every array library."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from scipy.special import digamma, multigammaln, ndtr

from laws import (
    BY_CLASS,
    CASES,
    FAMILIES,
    GAUSSIAN,
    LAW_NAMES,
    NAMES,
    factors,
    from_textbook,
    is_inside,
    one_law,
    textbook,
)
from libraries import BACKENDS
from qbvi.arrays import pack_symmetric, to_numpy, unpack_symmetric
from qbvi.families import (
    LAWS,
    Bernoulli,
    Beta,
    Categorical,
    DiagonalGaussian,
    Dirichlet,
    Exponential,
    Gamma,
    Gaussian,
    GaussianFamily,
    GaussianProduct,
    InverseGamma,
    InverseWishart,
    NegativeBinomial,
    Poisson,
    Product,
    Wishart,
    diagonal,
)
from qbvi.families.gamma import gamma_quantile, log_gamma_quantile
from qbvi.families.one_gaussian import OneGaussian
from qbvi.steps import BoundedRate, CholeskyLog, ExponentialMap, InParameters, Plain, Retraction
from sweeps import sweep

STEPS = [BoundedRate(), ExponentialMap(), Retraction(), CholeskyLog(), InParameters()]
ONE_IN_A_MILLION = 1e-6
DRAWS = 5000  # the bounds of `assert_mean` follow from their spread and number


# Gaussian families on every array library, the others on NumPy: they compute on the host with SciPy's functions.
PAIRS = [(name, library) for name in NAMES for library in BACKENDS if name in GAUSSIAN or library == "numpy"]
every_case = pytest.mark.parametrize(("case", "xp"), PAIRS, indirect=True)


@pytest.fixture
def case(request, xp, rng):
    """One family with a generic member: (family, q)."""
    return CASES[request.param].family, CASES[request.param].member(xp, rng)


@pytest.fixture(params=NAMES)
def host_case(request, rng):
    """The same on NumPy, for laws that take more than array functions to state."""
    return CASES[request.param].family, CASES[request.param].member(np, rng)


@pytest.fixture(params=GAUSSIAN)
def gaussian(request, xp, rng):
    """One Gaussian family with a generic member."""
    return CASES[request.param].family, CASES[request.param].member(xp, rng)


@pytest.fixture(params=LAW_NAMES)
def law(request, rng):
    """One law that is not Gaussian, with a generic member."""
    return CASES[request.param].family, CASES[request.param].member(np, rng)


def draws(family, q, rng, xp, n):
    return family.transport(q, xp.asarray(rng.standard_normal((n, family.dim))))


def assert_mean(terms, expected):
    """The mean of ``terms (n, ...)`` is within noise of one chance in a million that any of its entries exceeds."""
    error = (np.mean(terms, axis=0) - expected) / (np.std(terms, axis=0, ddof=1) / np.sqrt(len(terms)))
    assert np.abs(error).max() < scipy.stats.norm.isf(ONE_IN_A_MILLION / 2 / error.size)


def numerical_gradient(function, at, step=1e-5):
    eye = np.eye(at.size)
    return np.stack([(function(at + step * e) - function(at - step * e)) / (2 * step) for e in eye])


def fisher(family, q, rng):
    """Cov phi from the features, which are a linear map of the centred statistics and orthonormal (as tests below show)."""
    theta = draws(family, q, rng, np, 4 * family.size + 50)
    centred = family.statistics(theta) - family.mean_parameter(q)
    root = np.linalg.lstsq(family.features(q, theta), centred, rcond=None)[0]
    return root.T @ root


def gradient_of(family, q, w, rng):
    """Coefficients of the statistics in ``features . w``: its natural gradient."""
    theta = draws(family, q, rng, np, 4 * family.size + 50)
    phi = np.column_stack([family.statistics(theta), np.ones(len(theta))])
    return np.linalg.lstsq(phi, family.features(q, theta) @ w, rcond=None)[0][:-1]


def copies(family, q):
    """Every copy of a law as a law of its own: [(family, q)]."""
    return [(replace(family, copies=1), lam) for lam in family._open(q)]


def expectation(family, q, function):
    """The mean under one scalar variable, exact: a sum over whole numbers, or the trapezoidal rule in the normal draw."""
    if family.is_discrete:
        theta = np.arange(500.0)[:, None]
        theta = theta[: getattr(family, "k", 2 if isinstance(family, Bernoulli) else 500)]
        weight = np.exp(family.log_prob(q, theta))
    else:
        z = np.arange(-12.0, 12.0, 0.005)[:, None]
        theta, weight = family.transport(q, z), 0.005 * scipy.stats.norm.pdf(z[:, 0])
    return np.tensordot(weight, function(theta), axes=1)


def scalar_laws():
    """Copies of all laws of one coordinate."""
    members = [(CASES[name].family, CASES[name].member(np, None)) for name in LAW_NAMES]
    return [copy for family, q in members if family.n_coordinates == 1 for copy in copies(family, q)]


scalar = pytest.mark.parametrize(
    ("family", "q"), scalar_laws(), ids=lambda value: "" if isinstance(value, np.ndarray) else repr(value)
)


def test_every_law_is_in_the_registry():
    assert set(LAWS) == set(BY_CLASS)


@every_case
def test_gradient_of_the_log_normaliser_is_the_mean_parameter(case):
    family, q = case
    gradient = numerical_gradient(family.log_normaliser, to_numpy(family.natural(q)))
    np.testing.assert_allclose(gradient, to_numpy(family.mean_parameter(q)), rtol=1e-6, atol=1e-7)


def test_hessian_of_the_log_normaliser_is_the_fisher_information(host_case, rng):
    family, q = host_case
    expected = fisher(family, q, rng)
    hessian = numerical_gradient(
        lambda at: numerical_gradient(family.log_normaliser, at, 1e-4), family.natural(q), 1e-4
    )
    np.testing.assert_allclose(hessian, expected, rtol=1e-3, atol=1e-4 * np.abs(hessian).max())
    mean_at = lambda change: family.mean_parameter(Plain()(family, q, change)[0])
    slope = numerical_gradient(mean_at, np.zeros(family.size), 1e-6)
    np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-7 * np.abs(expected).max())


def test_fisher_of_one_copy_is_the_covariance_of_its_statistics(law, rng):
    family, q = law
    for one, lam in copies(family, q):
        np.testing.assert_allclose(one.one_fisher(lam), fisher(one, lam, rng), rtol=1e-8, atol=1e-10)


@every_case
def test_score_is_the_inverse_fisher_information_times_the_centred_statistics(case, rng, xp):
    family, q = case
    theta = draws(family, q, rng, xp, 7)
    centred = to_numpy(family.statistics(theta)) - to_numpy(family.mean_parameter(q))
    expected = np.linalg.solve(fisher(family, to_numpy(q), rng), centred.T).T
    np.testing.assert_allclose(
        to_numpy(family.score(q, theta)), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max()
    )


@every_case
def test_score_variance_is_its_definition(case, rng):
    """The variance of I^-1 (phi - m) is the diagonal of I^-1 I I^-1."""
    family, q = case
    expected = np.diag(np.linalg.inv(fisher(family, to_numpy(q), rng)))
    np.testing.assert_allclose(to_numpy(family.score_variance(q)), expected, rtol=1e-7)


@every_case
def test_score_has_mean_zero_and_the_inverse_fisher_information_as_its_covariance(case, rng, xp):
    family, q = case
    score = to_numpy(family.score(q, draws(family, q, rng, xp, DRAWS)))
    assert_mean(score, 0.0)
    covariance = np.linalg.inv(fisher(family, to_numpy(q), rng))
    related = (
        np.abs(covariance) > 1e-9 * np.abs(covariance).max()
    )  # entries of independent factors have no noise to speak of
    assert_mean((score[:, :, None] * score[:, None, :])[:, related], covariance[related])


@every_case
def test_mean_score_is_the_mean_of_the_weighted_scores(case, rng, xp):
    family, q = case
    theta, weights = draws(family, q, rng, xp, 7), xp.asarray(rng.standard_normal(7) + 3.0)
    expected = np.mean(to_numpy(weights)[:, None] * to_numpy(family.score(q, theta)), axis=0)
    np.testing.assert_allclose(
        to_numpy(family.mean_score(q, theta, weights)), expected, rtol=1e-10, atol=1e-12 * np.abs(expected).max()
    )


@every_case
def test_mirror_images_need_not_be_read(case, rng, xp):
    family, q = case
    if not isinstance(family, GaussianFamily):
        pytest.skip("only Gaussians are symmetric about their mean")
    theta = draws(family, q, rng, xp, 7)
    weights, mirrored = (xp.asarray(rng.standard_normal(7) + 3.0) for _ in range(2))
    both = xp.concat([theta, 2 * family.mean(q) - theta])
    expected = to_numpy(family.mean_score(q, both, xp.concat([weights, mirrored])))
    found = to_numpy(family.mirrored_mean_score(q, theta, weights, mirrored))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11 * np.abs(expected).max())


def test_long_rows_have_the_same_sums(rng, monkeypatch):
    family = DiagonalGaussian(5)
    q = family.start(np.zeros(5), np.ones(5))
    theta, weights = rng.standard_normal((19, 5)), rng.standard_normal(19)
    short = family.mean_score(q, theta, weights)
    monkeypatch.setattr(diagonal, "_WIDE", 0)
    np.testing.assert_allclose(family.mean_score(q, theta, weights), short, rtol=1e-12)


@every_case
def test_score_times_a_function_of_the_statistics_gives_its_coefficients(case, rng, xp):
    family, q = case
    theta = draws(family, q, rng, xp, DRAWS)
    exact = rng.standard_normal(family.size)
    f = to_numpy(family.statistics(theta) - family.mean_parameter(q)) @ exact
    assert_mean(to_numpy(family.score(q, theta)) * f[:, None], exact)


def test_least_squares_on_the_statistics_gives_the_coefficients_exactly(host_case, rng):
    family, q = host_case
    exact = rng.standard_normal(family.size)
    theta = draws(family, q, rng, np, 4 * family.size + 50)
    f = (family.statistics(theta) - family.mean_parameter(q)) @ exact
    psi = np.column_stack([family.features(q, theta), np.ones(len(f))])
    w = np.linalg.lstsq(psi, f, rcond=None)[0][:-1]
    np.testing.assert_allclose(gradient_of(family, q, w, rng), exact, rtol=1e-7, atol=1e-7)


def test_gaussian_density_and_entropy_are_scipys(gaussian, rng, xp):
    family, q = gaussian
    law = scipy.stats.multivariate_normal(to_numpy(family.mean(q)), to_numpy(family.cov(q)))
    theta = draws(family, q, rng, xp, 5)
    np.testing.assert_allclose(to_numpy(family.log_prob(q, theta)), law.logpdf(to_numpy(theta)), rtol=1e-10)
    np.testing.assert_allclose(float(family.entropy(q)), law.entropy(), rtol=1e-12)


def test_density_entropy_and_moments_are_scipys(law, rng):
    family, q = law
    theta = draws(family, q, rng, np, 5)
    for i, ((one, lam), scipys) in enumerate(zip(copies(family, q), one_law(family, q), strict=True)):
        x = theta.reshape(5, family.copies, -1)[:, i]
        np.testing.assert_allclose(one.log_prob(lam, x), scipy_log_density(one, scipys, x), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(one.entropy(lam), scipy_entropy(one, scipys), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(one.mean(lam), np.ravel(scipys.mean()), rtol=1e-9)
        np.testing.assert_allclose(one.sd(lam) ** 2, np.ravel(scipys.var()), rtol=1e-9)
    total = sum(float(one.entropy(lam)) for one, lam in copies(family, q))
    np.testing.assert_allclose(family.entropy(q), total, rtol=1e-12)


def scipy_log_density(family, scipys, x):
    density = scipys.logpmf if family.is_discrete else scipys.logpdf
    if family.n_coordinates == 1 and not hasattr(family, "p"):
        return density(x[:, 0])
    shape = (family.p, family.p) if hasattr(family, "p") else (-1,)
    return np.array([density(row.reshape(shape)) for row in x])


def scipy_entropy(family, scipys):
    """SciPy's; of an inverse Wishart law the textbook formula, since SciPy's is not minus the mean of its own log-density."""
    if not isinstance(family, InverseWishart):
        return scipys.entropy()
    a, p = scipys.df / 2, family.p
    log_det = np.linalg.slogdet(scipys.scale / 2)[1]
    mean_log_det = digamma(a - np.arange(p) / 2).sum()
    return multigammaln(a, p) + a * p + (p + 1) / 2 * log_det - (a + (p + 1) / 2) * mean_log_det


@every_case
def test_moments_agree_with_draws(case, rng, xp):
    family, q = case
    theta = to_numpy(draws(family, q, rng, xp, DRAWS))
    mean, cov = to_numpy(family.mean(q)), to_numpy(family.cov(q))
    np.testing.assert_allclose(to_numpy(family.sd(q)) ** 2, np.diag(cov), rtol=1e-12)
    assert_mean(theta, mean)
    centred = theta - mean
    related = np.abs(cov) > 0
    assert_mean((centred[:, :, None] * centred[:, None, :])[:, related], cov[related])


@every_case
def test_draws_agree_with_the_mean_parameter(case, rng, xp):
    family, q = case
    assert_mean(to_numpy(family.statistics(draws(family, q, rng, xp, DRAWS))), to_numpy(family.mean_parameter(q)))


@scalar
def test_draws_follow_the_distribution_function(family, q):
    """x(z) is the quantile at Phi(z): exact, and hence monotone."""
    z = np.linspace(-6, 6, 81)[:, None]
    theta, cdf = family.transport(q, z)[:, 0], distribution_function(family, q)
    assert np.all(np.diff(theta) >= 0)
    if family.is_discrete:
        assert np.all(cdf(theta - 1) < ndtr(z[:, 0]) + 1e-13)
        assert np.all(cdf(theta) > ndtr(z[:, 0]) - 1e-13)
    else:
        np.testing.assert_allclose(cdf(theta), ndtr(z[:, 0]), rtol=1e-8)


def distribution_function(family, q):
    """SciPy's; of a one by one matrix, that of a gamma or inverse gamma variable."""
    if not hasattr(family, "p"):
        return one_law(family, q)[0].cdf
    df, scale = (np.ravel(value)[0] for value in family.parameters(q).values())
    gamma = scipy.stats.gamma(df / 2, scale=2 * scale) if isinstance(family, Wishart) else None
    return gamma.cdf if gamma else scipy.stats.invgamma(df / 2, scale=scale / 2).cdf


@every_case
def test_density_is_the_exponential_family_form(case, rng, xp):
    family, q = case
    theta = draws(family, q, rng, xp, 5)
    lam = family.natural(q)
    form = family.statistics(theta) @ lam + family.log_base(theta) - family.log_normaliser(lam)
    gaussian_dims = sum(f.dim for f, _ in factors(family, q) if isinstance(f, OneGaussian))
    form = to_numpy(form) - gaussian_dims / 2 * np.log(2 * np.pi)
    np.testing.assert_allclose(to_numpy(family.log_prob(q, theta)), form, rtol=1e-9, atol=1e-9)


@every_case
def test_entropy_agrees_with_draws(case, rng, xp):
    family, q = case
    assert_mean(-to_numpy(family.log_prob(q, draws(family, q, rng, xp, DRAWS))), float(family.entropy(q)))


def another(family, q):
    """A member not far away: a tenth of the way to the boundary, or of the natural parameter."""
    q = to_numpy(q)
    return BoundedRate(0.2)(family, q, np.where(np.arange(family.size) % 2, 0.3, -0.2) * to_numpy(family.natural(q)))[0]


def test_kl_agrees_with_draws_and_vanishes_at_itself(host_case, rng):
    family, q = host_case
    other = another(family, q)
    theta = draws(family, q, rng, np, DRAWS)
    assert_mean(family.log_prob(q, theta) - family.log_prob(other, theta), float(family.kl(q, other)))
    assert float(family.kl(q, other)) > 1e-4
    assert abs(float(family.kl(q, q))) < 1e-10


@scalar
def test_kl_of_scalar_laws_is_its_integral(family, q):
    other = another(family, q)
    exact = expectation(family, q, lambda x: family.log_prob(q, x) - family.log_prob(other, x))
    np.testing.assert_allclose(family.kl(q, other), exact, rtol=1e-8)


@scalar
def test_features_of_scalar_laws_are_orthonormal(family, q):
    products = lambda x: np.einsum("ni,nj->nij", *2 * [np.column_stack([np.ones(len(x)), family.features(q, x)])])
    np.testing.assert_allclose(expectation(family, q, products), np.eye(family.size + 1), atol=1e-8)


@every_case
def test_features_are_orthonormal(case, rng, xp):
    family, q = case
    psi = to_numpy(family.features(q, draws(family, q, rng, xp, DRAWS)))
    assert_mean(psi, 0.0)
    assert_mean((psi[:, :, None] * psi[:, None, :]).reshape(len(psi), -1), np.eye(family.size).reshape(-1))


def test_textbook_parameters_and_back(law):
    family, q = law
    np.testing.assert_allclose(family.member(family.parameters(q)), q, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(from_textbook(family, textbook(family, q)), q, rtol=1e-10, atol=1e-12)
    given = BY_CLASS[type(family).__name__].parameters
    assert set(given) == set(family.parameter_names)
    rebuilt = type(family).from_parameters(family.parameters(q) | {"count": np.full(2, getattr(family, "count", 1))})
    assert rebuilt == family


def test_mean_parameter_and_back(host_case, rng):
    """Newton's method with the Fisher information finds the member that has a given mean parameter."""
    family, q = host_case
    target, at = family.mean_parameter(q), another(family, q)
    for _ in range(60):
        update = np.linalg.solve(fisher(family, at, rng), target - family.mean_parameter(at))
        at, _ = BoundedRate(0.5)(family, at, update)
    np.testing.assert_allclose(family.natural(at), family.natural(q), rtol=1e-7, atol=1e-7)


def test_advance_reaches_the_natural_gradient_and_knows_its_worth(law, rng):
    family, q = law
    w = 0.1 * rng.standard_normal(family.size) / np.sqrt(family.size)
    change = gradient_of(family, q, w, rng)
    for beta in (1.0, 0.3):
        new, kl, gain, is_inside_ = family.advance(q, w, beta)
        assert is_inside_
        np.testing.assert_allclose(family.natural(new), family.natural(q) + beta * change, rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(kl, family.kl(new, q), rtol=1e-7, atol=1e-12)
        rise = change @ (family.mean_parameter(new) - family.mean_parameter(q))
        np.testing.assert_allclose(gain, rise - kl, rtol=1e-7, atol=1e-12)
    full = family.advance(q, w, 1.0)
    assert full.kl == pytest.approx(0.5 * w @ w, rel=0.3)  # to second order


def test_an_advance_out_of_the_domain_is_told_and_not_taken(law):
    """Sent out by its boundary: the features' coefficients of minus its natural parameter, many times over."""
    family, q = law
    rng = np.random.default_rng(0)
    theta = draws(family, q, rng, np, 4 * family.size + 50)
    psi = np.column_stack([family.features(q, theta), np.ones(len(theta))])
    f = family.statistics(theta) @ (-1e4 * np.where(family.natural(q) == 0, 1.0, family.natural(q)))
    w = np.linalg.lstsq(psi, f, rcond=None)[0][:-1]
    moves = [family.advance(q, sign * w, 1.0) for sign in (1, -1)]
    outside = [move for move in moves if not move.is_inside]
    if isinstance(family, Bernoulli | Categorical):  # these saturate instead
        assert not outside
        assert max(np.abs(family.natural(move.q)).max() for move in moves) == pytest.approx(25.0)
        return
    assert outside
    for move in outside:
        np.testing.assert_array_equal(move.q, q)
        assert move.kl == np.inf
        assert move.gain == -np.inf


def test_euclidean_is_the_gradient_in_the_textbook_parameters(host_case, rng):
    """Taken as a direction of the natural parameter: J grad_xi E[phi . c], with J = d lam / d xi."""
    family, q = host_case
    c, xi = rng.standard_normal(family.size), textbook(family, q)
    steps = lambda function: np.stack(
        [
            (function(xi + h * e) - function(xi - h * e)) / (2 * h)
            for h, e in zip(1e-5 * np.abs(xi) + 1e-7, np.eye(xi.size), strict=True)
        ]
    )
    gradient = steps(lambda at: c @ family.mean_parameter(from_textbook(family, at)))
    jacobian = steps(lambda at: family.natural(from_textbook(family, at)))  # (xi, lam)
    expected = gradient @ jacobian
    np.testing.assert_allclose(family.euclidean(q, c), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_jacobian_is_the_derivative_of_the_natural_by_the_textbook_parameters(law):
    family, q = law
    for one, lam in copies(family, q):
        xi = one.one_textbook(lam)
        numerical = numerical_gradient(one.one_from_textbook, xi, 1e-6)
        np.testing.assert_allclose(one.one_jacobian(lam), numerical.T, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["gamma", "inverse-gamma", "beta", "dirichlet", "exponential", "inverse-wishart-2"])
def test_moving_textbook_parameters_is_the_natural_move_where_one_is_affine_in_the_other(name, rng):
    family, q = FAMILIES[name], CASES[name].member(np, rng)
    update = 0.01 * rng.standard_normal(family.size)
    np.testing.assert_allclose(family.move_parameters(q, update, 0.5), q + update, rtol=1e-10, atol=1e-12)


def test_embed_carries_a_quadratic_form(gaussian, rng, xp):
    family, _ = gaussian
    linear, precision = rng.standard_normal(family.dim), rng.uniform(0.5, 2, family.dim)
    eta = family.embed(xp.asarray(linear), xp.asarray(precision))
    theta = rng.standard_normal((5, family.dim))
    expected = theta @ linear - 0.5 * theta**2 @ precision
    np.testing.assert_allclose(to_numpy(family.statistics(xp.asarray(theta)) @ eta), expected, rtol=1e-10)


@pytest.mark.parametrize("family", [DiagonalGaussian(2), GaussianProduct((Gaussian(1), Gaussian(1)), ((0,), (1,)))])
def test_embed_says_when_a_family_cannot_carry_a_coupling(family):
    coupled = np.array([[2.0, 1.0], [1.0, 2.0]])
    assert family.embed(np.zeros(2), coupled) is None
    assert family.embed(np.zeros(2), np.diag(np.diag(coupled))) is not None


def small_update(family, rng, xp, size=0.02):
    return xp.asarray(size * rng.standard_normal(family.size))


@every_case
def test_a_plain_step_adds_to_the_natural_parameter(case, rng, xp):
    family, q = case
    update = small_update(family, rng, xp)
    moved, inside = Plain()(family, q, update)
    assert bool(inside)
    np.testing.assert_allclose(
        to_numpy(family.natural(moved)), to_numpy(family.natural(q) + update), rtol=1e-9, atol=1e-9
    )


@every_case
@pytest.mark.parametrize("step", STEPS, ids=lambda s: type(s).__name__)
def test_every_step_agrees_with_the_plain_one_to_first_order(case, step, rng, xp):
    family, q = case
    update = small_update(family, rng, xp, size=1e-6)
    moved, _ = step(family, q, update)
    change = to_numpy(family.natural(moved) - family.natural(q))
    np.testing.assert_allclose(change, to_numpy(update), atol=2e-9)


@every_case
@pytest.mark.parametrize("step", STEPS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("size", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("times", sweep([5, 20], first=1))
def test_every_step_but_the_plain_one_stays_inside_for_any_update(case, step, size, times, rng, xp):
    family, q = case
    for _ in range(times):
        moved, inside = step(family, q, small_update(family, rng, xp, size))
        assert bool(inside)
        assert is_inside(family, moved)
        theta = draws(family, moved, rng, xp, 3)
        assert np.all(np.isfinite(to_numpy(theta)))
        if isinstance(family, GaussianFamily):  # the factor is regular
            z = family.whiten(moved, family.transport(moved, xp.eye(family.dim)))
            np.testing.assert_allclose(to_numpy(z), np.eye(family.dim), atol=1e-8)


def test_a_plain_step_out_of_the_domain_is_told_and_not_taken(gaussian):
    family, q = gaussian
    _, inside = Plain()(family, q, 3.0 * family.natural(q))  # the precision grows fourfold
    assert bool(inside)
    moved, inside = Plain()(family, q, -3.0 * family.natural(q))  # it would turn negative
    assert not bool(inside)
    np.testing.assert_allclose(to_numpy(family.natural(moved)), to_numpy(family.natural(q)), atol=1e-10)


def test_a_plain_step_of_a_law_out_of_its_domain_is_told_and_not_taken(law):
    family, q = law
    steps = [Plain()(family, q, sign * np.full(family.size, 1e6)) for sign in (1, -1)]
    outside = [moved for moved, inside in steps if not inside]
    assert outside
    for moved in outside:
        np.testing.assert_array_equal(moved, q)


@pytest.mark.parametrize("step", [BoundedRate(), ExponentialMap(), InParameters()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("times", sweep([60, 200], first=1))
def test_a_member_survives_many_noisy_steps(law, step, times, rng):
    """Pulled to where it came from and shaken by single scores, which for heavy tails are wild."""
    family, home = law
    q = home
    for _ in range(times):
        noise = family.score(q, draws(family, q, rng, np, 1))[0]
        q, _ = step(family, q, 0.1 * (home - q + noise))
        assert is_inside(family, q)
    assert np.all(np.isfinite(family.features(q, draws(family, q, rng, np, 5))))


@every_case
def test_bounded_rate_is_the_plain_step_where_that_is_well_inside(case, rng, xp):
    family, q = case
    update = small_update(family, rng, xp)
    plain, bounded = Plain()(family, q, update)[0], BoundedRate(0.9)(family, q, update)[0]
    np.testing.assert_allclose(to_numpy(bounded), to_numpy(plain), rtol=1e-12, atol=1e-12)


def test_the_factor_and_its_inverse_stay_inverse_over_many_noisy_steps(rng):
    """Scales from 1e-6 to 1e6 and 3000 steps, each pulled to a target and shaken."""
    family, target = Gaussian(6), Gaussian(6).start(np.ones(6), 10.0 ** np.arange(-6.0, 6.0, 2.0))
    q = family.start(np.zeros(6), 10.0 ** np.arange(-6.0, 6.0, 2.0))
    for _ in range(3000):
        noise = family.score(q, family.transport(q, rng.standard_normal((1, 6))))[0]
        q, _ = ExponentialMap()(family, q, 0.1 * (family.natural(target) - family.natural(q) + noise))
    z = rng.standard_normal((5, 6))
    np.testing.assert_allclose(family.whiten(q, family.transport(q, z)), z, atol=1e-10)
    assert 0.01 < (family.sd(q) / family.sd(target)).min() < (family.sd(q) / family.sd(target)).max() < 100


def test_separate_rates_scale_about_the_present_mean(gaussian, rng, xp):
    family, q = gaussian
    direction = small_update(family, rng, xp)
    same = family.scale_parts(q, direction, 0.3, 0.3)
    np.testing.assert_allclose(to_numpy(same), 0.3 * to_numpy(direction), atol=1e-14)
    only_scale = Plain()(family, q, family.scale_parts(q, direction, 0.0, 0.5))[0]
    np.testing.assert_allclose(to_numpy(family.mean(only_scale)), to_numpy(family.mean(q)), atol=1e-12)
    only_mean = Plain()(family, q, family.scale_parts(q, direction, 0.5, 0.0))[0]
    np.testing.assert_allclose(to_numpy(family.cov(only_mean)), to_numpy(family.cov(q)), atol=1e-12)


def test_numbers_are_those_of_numpy(gaussian, rng, xp):
    """Everything a family can be asked, here and on the host."""
    family, q = gaussian
    theta, other = rng.standard_normal((3, family.dim)), another(family, q)
    w, square = rng.standard_normal(family.size), np.cov(rng.standard_normal((family.dim, 9))).reshape(family.dim, -1)
    asked = {
        "start": (theta[0], np.exp(theta[1])),
        "from_moments": (theta[0], square),
        **{name: (q, theta) for name in ("transport", "whiten", "log_prob", "score", "features", "coordinates")},
        **{name: (q,) for name in ("entropy", "mean", "cov", "sd", "natural", "mean_parameter", "score_variance")},
        **{name: (q, other) for name in ("kl", "divergence")},
        **{name: (theta,) for name in ("statistics", "log_base", "quadratic_kernel")},
        "log_normaliser": (family.natural(to_numpy(q)),),
        "residual": (q, theta, theta[:, 0]),
        "restrict": (square,),
        "coefficients": (w,),
        "euclidean": (q, w),
        "deform": (q, theta[0], square, np.linalg.inv(square)),
    }
    for name, arguments in asked.items():
        expected = getattr(family, name)(*map(to_numpy, arguments))
        got = getattr(family, name)(*(xp.asarray(to_numpy(part)) for part in arguments))
        for ours, numpys in zip(_several(got), _several(expected), strict=True):
            np.testing.assert_allclose(to_numpy(ours), numpys, rtol=1e-9, atol=1e-10, err_msg=name)


def _several(result):
    return result if isinstance(result, tuple) else (result,)


def test_packing_keeps_inner_products(rng, xp):
    a, b = (m + m.swapaxes(-1, -2) for m in rng.standard_normal((2, 3, 5, 5)))
    packed = pack_symmetric(xp.asarray(a)), pack_symmetric(xp.asarray(b))
    np.testing.assert_allclose(to_numpy(packed[0] * packed[1]).sum(-1), (a * b).sum((-2, -1)), rtol=1e-12)
    np.testing.assert_allclose(to_numpy(unpack_symmetric(packed[0], 5)), a, rtol=1e-14)


def test_a_product_of_one_block_is_that_block(rng):
    one, product_ = Gaussian(3), GaussianProduct((Gaussian(3),), ((0, 1, 2),))
    cov = np.cov(rng.standard_normal((3, 9)))
    np.testing.assert_allclose(product_.cov(product_.from_moments(np.ones(3), cov)), cov, rtol=1e-12)
    update = 0.01 * rng.standard_normal(one.size)
    moves = [ExponentialMap()(family, family.from_moments(np.ones(3), cov), update)[0] for family in (one, product_)]
    np.testing.assert_array_equal(*moves)


def test_a_product_keeps_its_blocks_of_a_covariance_in_the_order_of_theta(rng):
    family = FAMILIES["blocks"]
    cov = np.cov(rng.standard_normal((5, 12)))
    kept = family.cov(family.from_moments(np.arange(5.0), cov))
    owner = np.array([0, 2, 2, 0, 1])
    np.testing.assert_allclose(kept, np.where(owner[:, None] == owner[None, :], cov, 0), atol=1e-12)


EXTREME = [
    *((Gamma(), {"alpha": a, "beta": b}) for a in (1e-3, 1e8, 1e17) for b in (1e-6, 1e8)),
    *((InverseGamma(), {"alpha": a, "beta": b}) for a in (1e-3, 1e8) for b in (1e-6, 1e8)),
    *((Exponential(), {"rate": rate}) for rate in (1e-8, 1e8)),
    *((Beta(), {"alpha": a, "beta": b}) for a in (1e-3, 2.0, 1e8) for b in (1e-3, 1e8)),
    *((Dirichlet(k=3), {"concentration": c}) for c in ([1e-3] * 3, [1e8] * 3, [1e16] * 3, [1e-3, 1.0, 1e8])),
    *((Wishart(p=2), {"df": df, "scale": [[1e6, 0.5], [0.5, 1e-6]]}) for df in (1.001, 1e8)),
    *((InverseWishart(p=2), {"df": df, "scale": [[1e6, 0.5], [0.5, 1e-6]]}) for df in (1.001, 1e8)),
    *((Bernoulli(), {"p": p}) for p in (0.0, 1e-12, 1 - 1e-12, 1.0)),
    *((Categorical(k=3), {"probs": p}) for p in ([1e-12, 1e-12, 1 - 2e-12], [1 - 2e-12, 1e-12, 1e-12], [0, 1, 0])),
    *((Poisson(), {"rate": rate}) for rate in (0.0, 1e-12, 1e8, 1e15)),
    *((NegativeBinomial(count=count), {"p": p}) for count in (1, 7, 10**6) for p in (1e-9, 1 - 1e-12, 1.0)),
]


@pytest.mark.parametrize(("family", "parameters"), EXTREME, ids=repr)
def test_members_near_the_boundary_give_finite_numbers(family, parameters):
    """Also at draws in the far tails, where values underflow; and no warning on the way."""
    q = family.member(parameters)
    z = np.vstack([np.zeros(family.dim), np.full(family.dim, 6.0), np.full(family.dim, -6.0)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theta = family.transport(q, z)
        parts = [theta, family.statistics(theta), family.features(q, theta), family.score(q, theta)]
        parts += [family.log_prob(q, theta), family.mean_parameter(q), family.score_variance(q), family.entropy(q)]
        moves = [family.advance(q, np.full(family.size, w), 1.0) for w in (1e-12, 1.0, -1.0)]
    assert all(np.all(np.isfinite(part)) for part in parts)
    assert all(np.isfinite(move.kl) if move.is_inside else np.array_equal(move.q, q) for move in moves)
    assert all(is_inside(family, move.q) for move in moves)


@pytest.mark.parametrize(
    ("family", "parameters", "tolerance"),
    [
        *((Gamma(), {"alpha": a, "beta": 3.0}, 1e-8 + 1e-13 * a) for a in (1e4, 1e6, 1e8)),
        *((InverseGamma(), {"alpha": a, "beta": 3.0}, 1e-8 + 1e-13 * a) for a in (1e4, 1e6, 1e8)),
        *((Beta(), {"alpha": a, "beta": 2 * a}, 1e-8 + 1e-13 * a) for a in (1e4, 1e6, 1e8)),
        *((Wishart(p=1), {"df": a, "scale": [[2.0]]}, 1e-8 + 1e-13 * a) for a in (1e4, 1e6, 1e8)),
    ],
    ids=repr,
)
def test_features_stay_orthonormal_where_the_fisher_information_is_nearly_singular(family, parameters, tolerance):
    """One minus the squared correlation of the statistics is about 1 / (2 alpha): digits are lost in that measure and no faster."""
    q = family.member(parameters)
    x = family.mean(q) + family.sd(q) * np.arange(-10, 10, 0.002)[:, None]
    weight = np.exp(family.log_prob(q, x) - family.log_prob(q, x).max())
    psi = np.column_stack([np.ones(len(x)), family.features(q, x)])
    np.testing.assert_allclose(np.einsum("n,ni,nj->ij", weight / weight.sum(), psi, psi), np.eye(3), atol=tolerance)


@pytest.mark.parametrize("p", [1e-12, 1e-6, 0.3])
def test_features_of_a_nearly_certain_choice_keep_their_digits(p):
    """Under probabilities known by their small parts: sqrt((1 - p) / p) at the rare value, minus its inverse at the other."""
    q = np.array([np.log1p(-p) - np.log(p)])  # log-odds of one
    rare = np.sqrt((1 - p) / p)
    np.testing.assert_allclose(Bernoulli().features(q, np.array([[0.0], [1.0]]))[:, 0], [-rare, 1 / rare], rtol=1e-12)
    three = Categorical(k=3)
    psi = three.features(np.array([0.0, q[0]]), np.arange(3.0)[:, None])  # probabilities p, p, 1 - p up to a factor
    probs = np.array([p, p, 1 - p]) / (1 + p)
    np.testing.assert_allclose(np.einsum("n,ni,nj->ij", probs, psi, psi), np.eye(2), atol=1e-12)
    np.testing.assert_allclose(probs @ psi, 0.0, atol=1e-12)


@pytest.mark.parametrize("rate", [1e-9, 1e-3, 0.4, 7.0, 300.0, 999.0, 1001.0, 5e4])
def test_entropy_of_a_poisson_law_is_its_sum(rate):
    x = np.arange(max(0, np.floor(rate - 15 * rate**0.5)), rate + 15 * rate**0.5 + 40)
    log_p = scipy.stats.poisson.logpmf(x, rate)
    exact = -np.sum(np.exp(log_p) * log_p)
    np.testing.assert_allclose(Poisson().entropy(Poisson().member({"rate": rate})), exact, rtol=1e-10)


@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize("p", [0.01, 0.4, 0.999])
def test_entropy_of_a_negative_binomial_law_is_its_sum(count, p):
    family = NegativeBinomial(count=count)
    x = np.arange(0.0, scipy.stats.nbinom.isf(1e-18, count, p) + 100)
    log_p = scipy.stats.nbinom.logpmf(x, count, p)
    np.testing.assert_allclose(family.entropy(family.member({"p": p})), -np.sum(np.exp(log_p) * log_p), rtol=1e-10)


def test_quantiles_of_small_gamma_variables_are_known_by_their_logarithm():
    alpha, z = np.array([1e-3, 0.05, 3.0]), np.array([-1.0, 0.5, 2.0])[:, None]
    exact = np.log(scipy.stats.gamma.ppf(ndtr(z), alpha[1:]))
    np.testing.assert_allclose(log_gamma_quantile(alpha, z)[:, 1:], exact, rtol=1e-9)
    assert log_gamma_quantile(alpha, z)[0, 0] < -1500
    assert np.all(gamma_quantile(alpha, z) > 0)


@pytest.mark.parametrize(
    ("family", "parameters"),
    [
        (Gamma(), {"alpha": -1.0, "beta": 1.0}),
        (InverseGamma(), {"alpha": 1.0, "beta": -2.0}),
        (Exponential(), {"rate": -1.0}),
        (Dirichlet(k=3), {"concentration": [1.0, 0.0, 2.0]}),
        (Wishart(p=2), {"df": 1.0, "scale": np.eye(2)}),
        (InverseWishart(p=2), {"df": 3.0, "scale": [[1.0, 2.0], [2.0, 1.0]]}),
        (Bernoulli(), {"p": 1.2}),
        (Categorical(k=2), {"probs": [-0.2, 1.2]}),
        (Poisson(), {"rate": -1.0}),
        (NegativeBinomial(), {"p": 1.5}),
        (NegativeBinomial(), {"p": 0.0}),
    ],
    ids=repr,
)
def test_parameters_outside_of_their_domain_are_refused(family, parameters):
    with pytest.raises(
        ValueError, match=rf"parameters of {type(family).__name__} must lie inside of their domain, got"
    ):
        family.member(parameters)


def test_copies_of_a_negative_binomial_share_their_count():
    with pytest.raises(ValueError, match="`count` must be the same for all copies"):
        NegativeBinomial.from_parameters({"p": [0.2, 0.3], "count": [2, 3]})


def test_a_start_has_about_the_moments_asked_for(law):
    """Exactly the mean; the standard deviations too where the law has a parameter for them."""
    family, q = law
    started = family.start(family.mean(q), family.sd(q))
    assert is_inside(family, started)
    if not isinstance(family, Categorical):
        np.testing.assert_allclose(family.mean(started), family.mean(q), rtol=1e-8)
    if not isinstance(family, Categorical | Exponential):
        np.testing.assert_allclose(family.sd(started), family.sd(q), rtol=1e-8)
    np.testing.assert_allclose(family.from_moments(family.mean(q), family.cov(q)), started, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("family", "mean", "sd"),
    [
        (Gamma(2), [1.0, -1.0], [1.0, 1.0]),
        (InverseGamma(), [-0.5], [1.0]),
        (InverseGamma(), [0.5], [0.0]),
        (Exponential(), [-1.0], [1.0]),
        (Beta(), [1.5], [0.1]),
        (Dirichlet(k=2), [1.5, -0.5], [0.1, 0.1]),
        (Bernoulli(), [1.5], [0.1]),
        (Poisson(), [-1.0], [1.0]),
        (NegativeBinomial(), [-1.0], [1.0]),
        (Wishart(p=2), [1.0, 0.0, 0.0, -1.0], [1.0] * 4),
        (InverseWishart(p=2), [-1.0, 0.0, 0.0, 1.0], [1.0] * 4),
    ],
    ids=repr,
)
def test_a_start_outside_of_the_support_is_refused(family, mean, sd):
    with pytest.raises(ValueError, match=f"a start of {type(family).__name__} must be a mean inside of its support"):
        family.start(np.array(mean), np.array(sd))


@pytest.mark.parametrize("law_class", [Wishart, InverseWishart])
def test_a_start_from_a_matrix_that_is_not_definite_is_definite(law_class):
    family = law_class(p=2)
    assert is_inside(family, family.start(np.array([1.0, 2.0, 2.0, 1.0]), np.ones(4)))


def test_moments_of_heavy_tails_are_not_numbers():
    family = InverseWishart(p=2)
    q = family.member({"df": 3.0, "scale": np.eye(2)})
    assert np.all(family.mean(q)[[0, 3]] == np.inf)
    assert np.all(np.isnan(family.mean(q)[[1, 2]]))
    q = family.member({"df": 4.0, "scale": np.eye(2)})
    np.testing.assert_allclose(family.mean(q), [1, 0, 0, 1])
    assert np.all(family.sd(q) == np.inf)


def test_log_densities_of_the_independent_parts_add_up(host_case, rng):
    family, q = host_case
    parts, members = family.independent_parts, family.members(q)
    theta = draws(family, q, rng, np, 20)
    total = sum(
        part.family.log_prob(member, theta[:, list(part.columns)]) for part, member in zip(parts, members, strict=True)
    )
    np.testing.assert_allclose(total, family.log_prob(q, theta), rtol=1e-12, atol=1e-12)  # rounding of a sum
    assert sorted(c for part in parts for c in part.columns) == list(range(family.dim))


def test_a_product_of_gaussians_is_one_part_and_any_other_product_is_its_factors():
    blocks = GaussianProduct((Gaussian(1), Gaussian(1)), ((0,), (1,)))
    mixed = Product((Gaussian(2), Gamma()), ((0, 2), (1,)))
    assert blocks.independent_parts == ((blocks, (0, 1)),)
    assert mixed.independent_parts == ((Gaussian(2), (0, 2)), (Gamma(), (1,)))
