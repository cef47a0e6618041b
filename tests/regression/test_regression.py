"""The default method's parts against explicit polynomials, dense linear algebra and closed forms."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy
from scipy.special import expit

import qbvi
from oracles import LogisticRegression, gaussian_kl
from qbvi.families import DiagonalGaussian, Gaussian, GaussianProduct
from qbvi.protocol import Values
from qbvi.random import orthogonal_pairs
from qbvi.regression.correction import LeftOutDraws, corrected
from qbvi.regression.gaussian import longest_step
from qbvi.regression.hermite import Covariance, free_features, kernels, tail_variance
from qbvi.regression.line import Gradient, NaturalLine, repeated_share
from qbvi.regression.rules import (
    Effort,
    GapPrediction,
    LastStep,
    Rules,
    SearchPlan,
    Thinning,
    TrustRegion,
    VarianceSearch,
    Weighting,
)
from qbvi.regression.store import Store
from qbvi.regression.structure import Finding
from qbvi.regression.surrogate import HermiteRegression, Sample, Surrogate, Variances, leave_pairs_out


def powers(d, degree):
    """Exponents of all polynomials of one degree in d variables."""
    return [p for p in itertools.product(range(degree + 1), repeat=d) if sum(p) == degree]


def hermite(z, degree):
    """All orthonormal Hermite polynomials of one degree, written out: (n, d) -> (n, number)."""
    one = [np.polynomial.hermite_e.HermiteE.basis(k)(z) / math.sqrt(math.factorial(k)) for k in range(degree + 1)]
    return np.stack(
        [np.prod([one[k][:, i] for i, k in enumerate(p)], axis=0) for p in powers(z.shape[1], degree)], axis=1
    )


def of_one_direction(d, degree):
    """Covariance of the coefficients of he(u.z), with a direction u uniform on the sphere.

    A coefficient is homogeneous in u. So an expectation over the sphere is one over a standard normal, by quadrature,
    divided by the moment of its length.
    """
    node, weight = np.polynomial.hermite_e.hermegauss(degree + 1)
    u = np.array(list(itertools.product(node, repeat=d)))
    share = np.prod(list(itertools.product(weight / weight.sum(), repeat=d)), axis=1)
    size = [math.sqrt(math.factorial(degree) / math.prod(map(math.factorial, p))) for p in powers(d, degree)]
    coefficients = np.stack([np.prod(u**p, axis=1) for p in np.array(powers(d, degree))], axis=1) * size
    return (coefficients.T * share) @ coefficients / math.prod(d + 2 * k for k in range(degree))


@pytest.mark.parametrize("d", [1, 2, 4])
def test_kernels_are_the_covariances_of_polynomials_with_random_coefficients(rng, d):
    z, other = rng.standard_normal((6, d)), rng.standard_normal((5, d))
    n_second = d * (d + 1) // 2
    priors = np.eye(n_second) / n_second, of_one_direction(d, 3), of_one_direction(d, 4)
    for degree, kernel, prior in zip((2, 3, 4), kernels(z, other), priors, strict=True):
        np.testing.assert_allclose(kernel, hermite(z, degree) @ prior @ hermite(other, degree).T, atol=1e-10)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_equal_kernels_are_mean_products_of_hermite_polynomials(rng, d):
    z = rng.standard_normal((6, d))
    for degree, kernel in zip((2, 3, 4), kernels(z, equal=True), strict=True):
        explicit = hermite(z, degree)
        np.testing.assert_allclose(kernel, explicit @ explicit.T / explicit.shape[1], atol=1e-10)


@pytest.mark.parametrize("equal", [False, True])
def test_tail_variance_is_the_diagonal_of_the_tail_kernel(rng, equal):
    z = rng.standard_normal((5, 3))
    diagonal = np.diag(kernels(z, equal=equal).tail(0.3))
    variances = [tail_variance(float(r), 3, 0.3, equal=equal) for r in np.sum(z**2, axis=1)]
    np.testing.assert_allclose(variances, diagonal, rtol=1e-10)


@pytest.mark.parametrize(
    "family", [Gaussian(3), DiagonalGaussian(3), GaussianProduct((Gaussian(2), Gaussian(1)), ((0, 2), (1,)))], ids=["full", "diagonal", "blocks"]
)  # fmt: skip
def test_the_quadratic_kernel_holds_the_features_that_a_family_follows(rng, family):
    z = rng.standard_normal((5, 3))
    followed = family.restrict(np.ones((3, 3))) != 0
    features = [
        (z[:, i] ** 2 - 1) / math.sqrt(2) if i == j else z[:, i] * z[:, j]
        for i in range(3)
        for j in range(i + 1)
        if followed[i, j]
    ]
    explicit = np.stack(features, axis=1)
    assert explicit.shape[1] == family.n_quadratic
    np.testing.assert_allclose(family.quadratic_kernel(z), explicit @ explicit.T, atol=1e-12)


def dense_posterior(z, h, growth, variances, scale):
    """The same model as a Bayesian linear regression with every coefficient written out."""
    free, second, third, fourth = free_features(z), hermite(z, 2), hermite(z, 3), hermite(z, 4)
    design = np.concatenate([free, second, third, fourth], axis=1)
    d, omega = z.shape[1], variances.omega
    prior = scipy.linalg.block_diag(
        1e10 * np.eye(free.shape[1]),
        variances.quadratic / second.shape[1] * np.eye(second.shape[1]),
        of_one_direction(d, 3) / (1 + omega),
        of_one_direction(d, 4) * omega / (1 + omega),
    )
    noise = variances.noise * growth
    precision = design.T @ (design / noise[:, None]) + np.linalg.inv(prior)
    cov = np.linalg.inv(precision)
    return cov @ design.T @ (h / noise), scale * cov


def quartic(z):
    return (
        2.0
        + z @ [1.0, -0.5]
        - 0.7 * (z[:, 0] ** 2 - 1)
        + 0.3 * z[:, 0] * z[:, 1]
        + 0.1 * z[:, 1] ** 3
        + 0.02 * z[:, 0] ** 4
    )


@pytest.fixture
def case(rng):
    z = orthogonal_pairs(rng, 40, 2)
    growth = rng.uniform(1, 3, 40)
    return Sample(z, quartic(z), growth, np.arange(40) // 2, 1e-20)


def test_the_posterior_is_that_of_the_written_out_linear_model(case):
    """Bound, natural gradient and its variance: kernel algebra against explicit coefficients."""
    family, variances = Gaussian(2), Variances(0.3, 50.0, 0.05)
    surrogate = HermiteRegression(case).posterior(variances, family)
    mean, cov = dense_posterior(case.z, case.h, case.growth, variances, surrogate.scale)
    # columns: 1, z1, z2, radius, then degree two as (2, 0), (1, 1), (0, 2) in the order of itertools: (0,2), (1,1), (2,0)
    radius = mean[3] / math.sqrt(2)  # of the free radial feature, on each diagonal coefficient
    quadratic = mean[4:7]
    C = np.array([[quadratic[2] + radius, 0.0], [0.0, quadratic[0] + radius]]) * math.sqrt(2)
    C[0, 1] = C[1, 0] = quadratic[1]
    np.testing.assert_allclose(surrogate.bound, mean[0], rtol=1e-6)
    np.testing.assert_allclose(surrogate.b, mean[1:3], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(surrogate.C, C, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(surrogate.b_variance, np.diag(cov)[1:3], rtol=1e-5)
    combine = np.zeros((3, len(mean)))
    combine[0, [6, 3]] = combine[1, [4, 3]] = [1.0, 1 / math.sqrt(2)]
    combine[2, 5] = 1.0
    np.testing.assert_allclose(surrogate.quadratic_variance, np.trace(combine @ cov @ combine.T), rtol=1e-4)


def test_left_out_pairs_are_predicted_as_by_a_fit_without_them(case):
    variances = Variances(0.3, 50.0, 0.05)
    left_out = leave_pairs_out(HermiteRegression(case).solve(variances), case.pair)
    residuals = left_out.residuals
    keep = np.arange(40) // 2 != 7
    mean, _ = dense_posterior(case.z[keep], case.h[keep], case.growth[keep], variances, 1.0)
    design = np.concatenate([free_features(case.z), *(hermite(case.z, m) for m in (2, 3, 4))], axis=1)
    expected = (case.h - design @ mean)[~keep]
    np.testing.assert_allclose(residuals[~keep], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(left_out.even + left_out.odd, np.mean(residuals**2), rtol=1e-10)


@pytest.mark.parametrize("d", [1, 3, 8])
def test_a_quadratic_is_found_exactly_from_as_many_points_as_it_has_coefficients(rng, d):
    n = 2 * ((d + 1) * (d + 2) // 2 // 2 + 1)
    n += n % 2
    z = orthogonal_pairs(rng, n, d)
    b, root = rng.standard_normal(d), rng.standard_normal((d, d))
    C = root + root.T
    h = 7.0 + z @ b + 0.5 * (np.einsum("ni,ij,nj->n", z, C, z) - np.trace(C))
    system = HermiteRegression(Sample(z, h, np.ones(n), np.arange(n) // 2, 1e-24))
    surrogate = system.posterior(system.search(Variances(), SearchPlan()), Gaussian(d))
    np.testing.assert_allclose(surrogate.b, b, atol=1e-6)
    np.testing.assert_allclose(surrogate.bound, 7.0, atol=1e-2)


def surrogate_of(b, C, scale=0.0, sd=1e-6):
    d = len(b)
    return Surrogate(0.0, 0.0, b, C, np.zeros(d), 0.0, sd, 0.0, scale, Variances(), np.zeros(0))


def test_the_full_step_on_a_quadratic_leads_to_its_gaussian(rng):
    """log joint = -1/2 (z - m)' A (z - m): b = A m and C = I - A."""
    family, root = Gaussian(4), rng.standard_normal((4, 4))
    A, m = np.eye(4) + root @ root.T, rng.standard_normal(4)
    q = family.start(np.zeros(4), np.ones(4))
    step = longest_step(surrogate_of(A @ m, np.eye(4) - A), family, 1e9, TrustRegion())
    moved = step.apply(family, q)
    np.testing.assert_allclose(family.mean(moved), m, rtol=1e-9)
    np.testing.assert_allclose(family.cov(moved), np.linalg.inv(A), rtol=1e-9, atol=1e-12)
    exact = gaussian_kl(np.zeros(4), np.eye(4), m, np.linalg.inv(A))
    np.testing.assert_allclose(step.gain, exact, rtol=1e-9)
    np.testing.assert_allclose(step.kl, gaussian_kl(m, np.linalg.inv(A), np.zeros(4), np.eye(4)), rtol=1e-9)
    assert not step.is_restricted


def test_a_diagonal_family_takes_the_mean_of_the_quadratic_and_the_diagonal_of_its_precision(rng):
    family, root = DiagonalGaussian(4), rng.standard_normal((4, 4))
    A, m = np.eye(4) + root @ root.T, rng.standard_normal(4)
    step = longest_step(surrogate_of(A @ m, np.eye(4) - A), family, 1e9, TrustRegion())
    moved = step.apply(family, family.start(np.zeros(4), np.ones(4)))
    np.testing.assert_allclose(family.mean(moved), m, rtol=1e-9)
    np.testing.assert_allclose(family.sd(moved) ** -2, np.diag(A), rtol=1e-9)


@pytest.mark.parametrize("radius", [0.01, 1.0, 30.0])
def test_a_step_never_leaves_the_trust_region(rng, radius):
    family = Gaussian(3)
    for _ in range(20):
        root = 3 * rng.standard_normal((3, 3))
        step = longest_step(surrogate_of(5 * rng.standard_normal(3), root + root.T), family, radius, TrustRegion())
        assert step.kl <= radius * (1 + 1e-9)
        assert np.all(step.precision > 0)


def test_doubt_about_higher_degrees_shortens_a_step(rng):
    b, C, family = np.full(3, 10.0), np.zeros((3, 3)), Gaussian(3)
    sure, unsure = (longest_step(surrogate_of(b, C, scale), family, 1e9, TrustRegion()) for scale in (0.0, 100.0))
    assert sure.share == 1
    assert unsure.share < 0.9


def test_pairs_are_mirror_images_with_the_right_radii():
    z = np.concatenate([orthogonal_pairs(np.random.default_rng(s), 20, 5) for s in range(200)])
    np.testing.assert_array_equal(z[::2], -z[1::2])
    squares = np.sum(z**2, axis=1)
    assert abs(squares.mean() - 5) < 0.05
    np.testing.assert_allclose(np.cov(z.T), np.eye(5), atol=0.1)


def test_the_sample_of_earlier_points_keeps_the_tails_of_q(rng):
    """Points from a wide q, chosen for a narrow one: weighted, they have its second and fourth moments."""
    family = Gaussian(2)
    wide, narrow = family.start(np.zeros(2), np.full(2, 3.0)), family.start(np.zeros(2), np.ones(2))
    theta = family.transport(wide, orthogonal_pairs(rng, 8000, 2))
    store = Store.empty(2).add(family, wide, theta, np.zeros(8000), np.zeros(8000))
    chosen = store.choose(family, narrow, 600, Thinning())
    assert 500 < len(chosen.rows) <= 602  # pairs stay together
    ratio = np.exp(chosen.log_density)
    z = chosen.x
    for statistic, exact in ((z**2, 1.0), (z**4, 3.0)):
        estimate = np.sum(ratio[:, None] * statistic, axis=0) / np.sum(ratio)
        spread = np.sqrt(np.sum((ratio[:, None] * (statistic - exact)) ** 2, axis=0)) / np.sum(ratio)
        assert np.all(np.abs(estimate - exact) < 5 * spread)


def test_noise_alone_corrects_nothing_and_a_kink_is_corrected(rng):
    d, n = 3, 400
    z = orthogonal_pairs(rng, n, d)
    weights, pair = np.ones(n), np.arange(n) // 2
    flat = Surrogate(
        0.0, 0.1, np.zeros(d), np.zeros((d, d)), np.zeros(d), 0.0, 0.0, 0.0, 1.0, Variances(), rng.standard_normal(n)
    )
    assert np.abs(corrected(flat, LeftOutDraws(z, weights, pair)).b).max() < 0.1  # nearly always nothing at all
    kink = np.maximum(z[:, 0], 0.0)  # E[z max(z, 0)] = 1/2, E[(z^2 - 1) max(z, 0)] = phi(0)
    fixed = corrected(replace(flat, errors=kink), LeftOutDraws(z, weights, pair))
    np.testing.assert_allclose(fixed.b, [0.5, 0, 0], atol=0.1)
    np.testing.assert_allclose(np.diag(fixed.C), [1 / math.sqrt(2 * math.pi), 0, 0], atol=0.2)  # shrunk a little


def test_the_factor_is_that_of_the_whole_covariance(rng):
    """The covariance is made in blocks of rows, of which only the upper triangle is there."""
    z, variances = orthogonal_pairs(rng, 150, 3), Variances(0.3, 50.0, 0.05)
    growth = rng.uniform(1, 3, 150)
    factor = np.tril(
        HermiteRegression(Sample(z, quartic(z[:, :2]), growth, np.arange(150) // 2, 1e-20)).solve(variances).factor
    )
    kernel = kernels(z)
    covariance = 50.0 * kernel.second + kernel.tail(0.3) + np.diag(0.05 * growth)
    np.testing.assert_allclose(factor @ factor.T, covariance, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("d", [1, 2, 7])
def test_the_covariance_of_many_points_is_that_of_the_kernels(rng, d, equal):
    """Above 256 points it is a polynomial in the inner products, written in tiles of the upper triangle."""
    z = orthogonal_pairs(rng, 600, d) * rng.uniform(0.01, 5.0, (600, 1))
    found = np.full((600, 600), np.nan)
    Covariance(z, equal=equal).write(quadratic=20.0, omega=0.4, out=found)
    kernel = kernels(z, equal=equal)
    expected = 20.0 * kernel.second + kernel.tail(0.4)
    np.testing.assert_allclose(np.triu(found), np.triu(expected), rtol=1e-12, atol=1e-12 * np.abs(expected).max())


def test_what_is_known_of_left_out_pairs_needs_only_the_last_block_of_the_factor(rng):
    """Against the inverse of the whole covariance, with a pair of which one point is missing."""
    n, m, variances = 60, 21, Variances(0.3, 50.0, 0.05)
    z = orthogonal_pairs(rng, n, 2)
    pair = np.r_[np.arange(16) // 2, 50, np.arange(4) // 2 + 90]
    solved = HermiteRegression(Sample(z, quartic(z), np.ones(n), pair, 1e-20)).solve(variances)
    left_out = leave_pairs_out(solved, pair)
    factor = np.tril(solved.factor)
    inverse, X = np.linalg.inv(factor @ factor.T), free_features(z)
    P = inverse - inverse @ X @ np.linalg.solve(X.T @ inverse @ X, X.T @ inverse)
    alpha = P @ (quartic(z) - np.median(quartic(z)))
    np.testing.assert_allclose(solved.alpha, alpha, atol=1e-8)
    rows = [n - m + np.flatnonzero(pair == number) for number in dict.fromkeys(pair)]
    expected = np.concatenate([np.linalg.solve(P[np.ix_(S, S)], alpha[S]) for S in rows])
    np.testing.assert_allclose(left_out.residuals, expected, rtol=1e-6, atol=1e-9)
    log_det = -sum(np.linalg.slogdet(P[np.ix_(S, S)])[1] for S in rows)
    np.testing.assert_allclose(left_out.log_det, log_det, rtol=1e-8)


def test_the_boldest_variance_is_the_largest_that_is_not_refuted(rng):
    """A cubic function refutes a large variance of degree two; bisection finds the last good one."""
    n, d, variances = 100, 5, Variances(0.3, 0.01, 1.0)
    z = orthogonal_pairs(rng, n, d)
    h = np.sum(z**3, axis=1)
    rules = replace(VarianceSearch(), bolder=3.0, boldest=8)
    system = HermiteRegression(Sample(z, h, np.ones(n), np.arange(n) // 2, 1e-24), rules=rules)
    limit = system.misfit(variances) + rules.slack
    misfits = [system.misfit(variances._replace(quadratic=0.01 * 3.0**k)) for k in range(9)]
    last = next((k - 1 for k, misfit in enumerate(misfits) if misfit > limit), 8)
    assert 0 < last < 8
    assert system.boldest(variances).quadratic == pytest.approx(0.01 * 3.0**last)


def test_a_second_posterior_does_not_disturb_the_first(rng, case):
    """Factored regressions share memory; results do not."""
    system, family = HermiteRegression(case), Gaussian(2)
    variances = [Variances(0.3, 50.0, 0.05), Variances(0.3, 5.0, 0.5), Variances(0.1, 500.0, 0.01)]
    first = [system.posterior(each, family) for each in variances]
    for each, found in zip(variances, first, strict=True):
        alone = HermiteRegression(case).posterior(each, family)
        np.testing.assert_array_equal(found.C, alone.C)
        np.testing.assert_array_equal(system.posterior(each, family).C, alone.C)


def test_a_covariance_that_is_singular_gets_a_larger_nugget(rng):
    """Every point twice and next to no noise: rank n / 2."""
    z = np.repeat(orthogonal_pairs(rng, 40, 2), 2, axis=0)
    solved = HermiteRegression(Sample(z, quartic(z), np.full(80, 1e-12), np.arange(80) // 4, 1e-20)).solve(
        Variances(0.3, 50.0, 1e-10)
    )
    assert np.all(np.isfinite(solved.alpha))
    assert np.all(np.diag(solved.factor) > 0)


@pytest.mark.parametrize("quadratic", [1.0, 1e3, 1e8])
def test_random_signs_tell_the_variance_of_the_curvature(rng, monkeypatch, quadratic):
    """120 quadratic features, by 100 combinations of them and one by one; the larger the prior variance, the more the free radius would disturb."""
    d, n = 15, 300
    z, family, variances = orthogonal_pairs(rng, n, d), Gaussian(d), Variances(0.3, quadratic, 0.05)
    system = HermiteRegression(Sample(z, np.sum(z**3, axis=1), np.ones(n), np.arange(n) // 2, 1e-20))
    combined = system.posterior(variances, family).quadratic_variance
    monkeypatch.setattr("qbvi.regression.surrogate._SIGNS", 1000)
    exact = system.posterior(variances, family).quadratic_variance
    assert combined != exact
    np.testing.assert_allclose(combined, exact, rtol=0.15)  # sqrt(2 / 100), were all in one coefficient


def test_a_search_gets_far_in_a_few_tries(rng):
    """Of a quadratic nothing is left for degrees three and four: the variance of degree two has no limit but the bounds."""
    d, n = 3, 60
    z = orthogonal_pairs(rng, n, d)
    h = z[:, 0] - 2 * z[:, 1] * z[:, 2]
    system = HermiteRegression(Sample(z, h, np.ones(n), np.arange(n) // 2, 1e-24))
    assert system.search(Variances(0.3, 1e2, 1e-3), SearchPlan(tries=4, restart=False, leap=True)).quadratic > 1e8


def test_a_quadratic_in_many_dimensions_is_not_taken_for_noise(rng):
    """Fewer points than coefficients, at several distances: large noise is a local minimum, far above another one."""
    d, n = 40, 560
    scales = (3.0, 3.0, 2.0, 2.0, 1.0, 1.0, 1.0)
    z = np.concatenate([s * (orthogonal_pairs(rng, n // 7, d) + 0.5 * rng.standard_normal(d)) for s in scales])
    axes = np.linalg.qr(rng.standard_normal((d, d)))[0]
    h = -0.5 * (z @ axes) ** 2 @ np.geomspace(0.01, 100, d)
    far = Weighting().far(np.sum(z**2, axis=1), d)
    system = HermiteRegression(Sample(z, h, far, np.arange(n // 7) // 2, 1e-20))
    noisy = Variances(0.3, 1e4, 30.0)
    found = system.search(noisy, SearchPlan(tries=5, restart=True))
    assert found.quadratic / found.noise > 1e12
    assert system.misfit(found) < system.misfit(noisy) - 1000


def test_no_search_keeps_the_variances(rng):
    z = orthogonal_pairs(rng, 20, 2)
    system = HermiteRegression(Sample(z, quartic(z), np.ones(20), np.arange(20) // 2, 1e-20))
    np.testing.assert_allclose(system.search(Variances(0.5, 7.0, 0.1), SearchPlan(0, restart=False)), (0.5, 7.0, 0.1))


def test_more_points_than_are_allowed_are_thinned_and_not_forgotten(rng):
    """All drawn far from q: none is like its draws, and all that is known of the function is in them."""
    family = Gaussian(2)
    past, now = family.start(np.zeros(2), np.full(2, 1.0)), family.start(np.full(2, 4.0), np.full(2, 0.3))
    theta = family.transport(past, orthogonal_pairs(rng, 1000, 2))
    store = Store.empty(2).add(family, past, theta, np.zeros(1000), np.zeros(1000))
    assert 500 <= len(store.choose(family, now, 500, Thinning()).rows) <= 502  # pairs stay together


def test_a_start_that_fails_is_never_wider_than_the_prior():
    """Draws from a q as wide as the prior reach six standard deviations once in a hundred million."""
    seen = []

    def fails_at_first(x):
        if not any(point[0] > 5 for point in seen):  # then the start is over
            seen.append(x)
        return -((x[0] - 6) ** 2) / 0.02 if x[0] > 5 else np.nan

    fit = qbvi.fit(fails_at_first, qbvi.LogNormal(0, 1, shape=2), on_failure="exclude", seed=0)
    assert abs(fit.mean[0] - 6) < 0.05
    assert np.abs(np.log(seen)).max() < 6
    with pytest.raises(qbvi.EvaluationError, match="none of the points"):
        qbvi.fit(lambda x: seen.append(x) or np.nan, qbvi.LogNormal(0, 1, shape=2), on_failure="exclude", seed=0)
    assert np.abs(np.log(seen)).max() < 6


def test_a_rejected_step_is_not_repeated_however_far_away_it_was_tried():
    """Back at the same q, rounding must not be taken for a step: the next one would be of that length."""
    family = Gaussian(2)
    q = family.start(np.array([1e9, -0.3]), np.array([1.3, 0.01]))
    gradient = Gradient(np.array([3.0, -1.0]), np.zeros((2, 2)), *(np.float64(0.0),) * 3)
    line = NaturalLine(gradient, family, TrustRegion())
    step = line.step(line.at(np.float64(1.0)), np.float64(1.0))
    assert repeated_share(family, q, q.copy(), step) == 0.0


def logistic_regression(d, rows, seed):
    """A logistic regression with few rows for its coefficients: a skewed posterior."""
    rng = np.random.default_rng([seed, d, rows])
    design = np.column_stack([np.ones(rows), rng.standard_normal((rows, d - 1))])
    predictor = design @ (2 * rng.standard_normal(d) / math.sqrt(d))
    return LogisticRegression(design, (rng.random(rows) < expit(predictor)).astype(float), prior_variance=5.0)


def test_a_skewed_posterior_settles_near_the_best_gaussian():
    """With equal variances for all cubic terms it stays 0.02 nats away, and never predicts less than the tolerance."""
    problem = logistic_regression(15, 110, seed=1)
    prior = qbvi.Normal(0, math.sqrt(problem.prior_variance), shape=problem.d)
    options = {"vectorized": True, "seed": 1, "max_evals": 1300, "progress": False}
    fit = qbvi.fit(problem.log_likelihood, prior, method=qbvi.Regression(), **options)
    assert fit.converged
    # The default tolerance is 0.01 nats.
    assert problem.best_gaussian().elbo - problem.exact_elbo(*fit.unconstrained) < 0.01


def test_the_limit_on_points_grows_where_it_leaves_points_out():
    effort = Effort(most_points=1500)
    assert [effort.more(400, n) for n in (400, 401)] == [400, 800]
    assert effort.more(800, 5000) == effort.more(1500, 5000) == 1500
    assert effort.more(6000, 7000) == 6000


def test_more_points_than_can_be_factored_are_regressed_on_by_ridge_regression():
    """With 160 points at most for 135 coefficients, the errors of the regression would stay above the tolerance."""
    problem = logistic_regression(15, 110, seed=1)
    prior = qbvi.Normal(0, math.sqrt(problem.prior_variance), shape=problem.d)
    options = {"vectorized": True, "seed": 1, "max_evals": 3500, "progress": False}
    few = Effort(most_points=160, fewest_points=160, fewest_for_coefficient=1)
    fits = []
    for effort in (few, replace(few, fewest_for_coefficient=2)):
        method = qbvi.Regression(rules=Rules(effort=effort))
        fits.append(qbvi.fit(problem.log_likelihood, prior, method=method, **options))
    alone, handed_over = fits
    assert not alone.converged
    assert handed_over.converged
    assert problem.best_gaussian().elbo - problem.exact_elbo(*handed_over.unconstrained) < 0.01
    # Batches of two draws for each dimension, and then those of Ridge.
    sizes = np.diff(handed_over.trace.n_evals)
    n = int(np.argmax(sizes == 64))
    assert handed_over.trace.n_evals[n] > 160
    assert set(sizes[:n]) == {30}
    assert set(sizes[n:]) == {64}


def test_a_quadratic_with_more_coefficients_than_points_that_can_be_factored_is_found(rng):
    """A regression on 160 points never determines 230 coefficients; ridge regression takes all of the points."""
    d = 20
    axes = np.linalg.qr(rng.standard_normal((d, d)))[0]
    precision = (axes * np.geomspace(1, 100, d)) @ axes.T
    mean = rng.standard_normal(d)
    effort = Effort(most_points=160, fewest_points=160)
    fit = qbvi.fit(
        lambda x: -0.5 * np.sum((x - mean) @ precision * (x - mean), axis=1),
        qbvi.Flat(shape=d),
        method=qbvi.Regression(rules=Rules(effort=effort)),
        vectorized=True,
        seed=1,
        max_evals=2000,
        progress=False,
    )
    assert fit.converged
    # The default tolerance is 0.01 nats. Draws of all iterations count the same: with their density as
    # weight, 2,000 evaluations are too few.
    assert gaussian_kl(*fit.unconstrained, mean, np.linalg.inv(precision)) < 0.01


def test_the_time_for_ridge_regression():
    effort = Effort(most_points=160)
    quadratic, other = (0.3, 1e10, 1e-8), (0.3, 100.0, 1e-3)
    short, long = (LastStep(*np.array([0.0, 0.0, 0.1, 0.1, kl, 0.0])) for kl in (0.1, 10.0))
    # 54 coefficients: enough points for two each
    assert not effort.is_for_ridge(1000, 9, short, other)
    # 135: steps must be short, and a quadratic is found with fewer points than a regression can hold
    assert effort.is_for_ridge(100, 15, short, other)
    assert not effort.is_for_ridge(1000, 15, long, other)
    assert not effort.is_for_ridge(100, 15, short, quadratic)
    assert effort.is_for_ridge(1000, 15, short, quadratic)
    assert not effort.is_for_ridge(1000, 15, long, quadratic)
    # 230, more than points: a quadratic is not found by longer steps
    assert effort.is_for_ridge(1000, 20, long, quadratic)
    # A step that promises much is on the way, however short the trust region made it.
    limited = short._replace(gain=np.float64(5.0), is_restricted=np.float64(1.0))
    assert not effort.is_for_ridge(100, 15, limited, other)
    assert not effort.is_for_ridge(1000, 15, limited, quadratic)


@pytest.mark.parametrize("setting", [{"tol": 1e7}, {"initial_scale": 1e7}])
def test_a_tolerance_or_a_scale_that_is_a_slip_is_refused(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        qbvi.Regression(**setting)


def test_a_quick_function_of_many_parameters_gets_advice_and_no_other_method():
    family, method = Gaussian(50), qbvi.Regression()
    state = method.init(family, family.start(np.zeros(50), np.ones(50)))
    (advice,) = method.advice(family, state, 4.2, 0.1)
    assert "0.1 s" in advice
    assert 'method="ridge"' in advice
    structured = state._replace(finding=Finding(structure=object()))
    few = Gaussian(8)
    assert method.advice(family, state, 4.2, 1.0) == ()  # a slow function
    assert method.advice(family, state, 0.4, 0.0) == ()  # a quick fit
    assert method.advice(family, state, 9.0, np.nan) == ()  # a resumed fit, whose function's time is not known
    assert method.advice(family, structured, 4.2, 0.1) == ()
    assert method.advice(few, method.init(few, few.start(np.zeros(8), np.ones(8))), 4.2, 0.1) == ()


@pytest.mark.parametrize(("d", "tolerance"), [(50, 0.01), (200, 0.02)])
def test_a_full_regression_has_a_tolerance_in_proportion_to_many_dimensions(d, tolerance):
    """More draws would not help: they only take the place of others."""
    family, method = Gaussian(d), qbvi.Regression(tol=0.01, rules=Rules(effort=Effort(most_points=1000)))
    state = method.init(family, family.start(np.zeros(d), np.ones(d)))
    told = [method._with_finest(family, state._replace(n_effective=n)) for n in (950.0, 500.0)]
    assert [method.tolerance(state) for state in told] == [tolerance, 0.01]


def test_ridge_regression_remembers_the_newest_points_of_a_store(rng):
    family, method = Gaussian(2), qbvi.Ridge(n_samples=16, n_remembered=32)
    store, members = Store.empty(2), [family.start(np.full(2, x), np.full(2, 1 + x)) for x in (0.0, 0.5, 1.0)]
    for q in members:
        y = rng.standard_normal(14)
        y[3] = -np.inf
        store = store.add(family, q, rng.standard_normal((14, 2)), y, np.full(14, 0.25))
    state = method.starting(family, members[-1], store)
    np.testing.assert_array_equal(state.theta, store.theta[-32:])
    np.testing.assert_array_equal(state.log_joint, store.y[-32:])
    np.testing.assert_allclose(state.noise, store.noise[-32:])
    own = np.concatenate(
        [family.log_prob(q, store.theta[b.start : b.stop]) for q, b in zip(members, store.past, strict=True)]
    )
    np.testing.assert_allclose(state.own, own[-32:])


def test_further_steps_on_the_same_points_lead_to_the_optimum():
    """A quartic log joint, which the regression finds exactly: one step leaves 0.005 nats, five 1e-6 or fewer.

    By default the steps end before that, at a tenth of the tolerance.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    log_joint = lambda x: -0.5 * x**2 - 0.15 * x**3 - 0.1 * x**4
    bound = lambda mean, sd: weights @ log_joint(mean + sd * nodes) / weights.sum() + np.log(sd)
    best = -scipy.optimize.minimize(lambda p: -bound(p[0], np.exp(p[1])), [0.0, 0.0], tol=1e-12).fun
    family, gap = Gaussian(1), {}
    for more, negligible in ((0, 0.0), (4, 0.0), (4, 0.1)):
        rule = GapPrediction(more_steps=more, many=1, negligible=negligible)
        method = qbvi.Regression(n_samples=40, rules=Rules(gap=rule))
        state = method.init(family, family.start(np.array([0.2]), np.array([0.6])))
        theta = method.ask(family, state, np.random.default_rng(1))
        y = log_joint(theta[:, 0])
        values = Values(y, y, np.ones(len(y), dtype=bool), np.zeros(len(y)))
        state, info = method.tell(family, np.zeros(2), state, theta, values)
        gap[more, negligible] = best - bound(family.mean(state.q)[0], family.sd(state.q)[0])
        assert info.gap > gap[more, negligible]
    assert gap[0, 0.0] > 1e-3
    assert gap[4, 0.0] < 1e-6 < gap[4, 0.1] < 0.1 * method.tol
