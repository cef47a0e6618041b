"""Gaussian process regression with a free constant, against dense linear algebra."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from qbvi.free.kernel import Kernel
from qbvi.free.process import Observations, Process, search
from qbvi.free.rules import ShapeSearch

SHAPE = np.array([0.4, -6.0, -0.5, 0.3])  # log length, log noise, log ratios of the parts
GUESS = 2.0  # variance to which the noise is compared


@pytest.fixture
def data(rng):
    z = rng.normal(size=(15, 3))
    t = 3 + np.sin(z[:, 0]) + 0.5 * z[:, 1] * z[:, 2]
    return Observations(z, t, rng.uniform(0, 0.01, 15))


def kernel_of(shape):
    one, two, joint = np.exp([shape[2], shape[3], 0.0])
    total = one + two + joint
    return Kernel(math.exp(shape[0]), one / total, two / total)


def dense(data):
    return kernel_of(SHAPE)(data.z, data.z) + np.diag(math.exp(SHAPE[1]) + data.noise / GUESS)


def universal(data, z):
    """Mean and relative covariance of a prediction with an unknown constant, from one bordered system.

    The weights w of the best linear unbiased prediction have sum one: the border is their multiplier.
    """
    n, kernel = len(data.t), kernel_of(SHAPE)
    border = np.ones((n, 1))
    A = np.block([[dense(data), border], [border.T, np.zeros((1, 1))]])
    k = np.vstack([kernel(data.z, z), np.ones((1, len(z)))])
    w = np.linalg.solve(A, k)
    return w[:n].T @ data.t, kernel(z, z) - k.T @ w


def test_mean_and_variance_are_those_of_the_best_unbiased_prediction(data, rng):
    z = rng.normal(size=(8, 3)) * 1.5
    process = Process(data, SHAPE, GUESS)
    mean, cov = universal(data, z)
    seen = process(z)
    assert_allclose(seen.mean, mean, rtol=1e-9)
    assert_allclose(seen.variance / process.variance, np.diagonal(cov), rtol=1e-7)
    assert_allclose(process.covariance(z, seen) / process.variance, cov, atol=1e-9)


def test_a_shifted_function_is_predicted_shifted(data, rng):
    z = rng.normal(size=(8, 3))
    before, after = (Process(data._replace(t=data.t + shift), SHAPE, GUESS) for shift in (0.0, 1e3))
    assert_allclose(after(z).mean, before(z).mean + 1e3, rtol=1e-12)
    assert_allclose(after.variance, before.variance, rtol=1e-9)


def test_variance_and_misfit_are_those_of_each_point_left_out(data):
    process = Process(data, SHAPE, GUESS)
    errors, scales = [], []
    for i in range(len(data.t)):
        keep = np.arange(len(data.t)) != i
        rest = Observations(data.z[keep], data.t[keep], data.noise[keep])
        mean, cov = universal(rest, data.z[i : i + 1])
        errors.append(data.t[i] - mean[0])
        scales.append(cov[0, 0] + math.exp(SHAPE[1]) + data.noise[i] / GUESS)
    errors, scales = np.array(errors), np.array(scales)
    counts = 1 / (1 + data.noise / 0.04)
    assert_allclose(process.variance, counts @ (errors**2 / scales) / counts.sum(), rtol=1e-7)
    assert_allclose(process.misfit, counts @ (np.log(process.variance) + np.log(scales)), rtol=1e-7)
    mean, variance = process.from_others()
    assert_allclose(mean, data.t - errors, rtol=1e-7)
    assert_allclose(variance, process.variance * scales, rtol=1e-7)


def test_far_from_all_points_only_the_constant_is_left(data):
    process = Process(data, SHAPE, GUESS)
    seen = process(np.full((1, 3), 1e3))
    V = np.linalg.inv(dense(data))
    assert_allclose(seen.mean, V.sum(axis=0) @ data.t / V.sum(), rtol=1e-9)
    assert_allclose(seen.variance, process.variance * (1 + 1 / V.sum()), rtol=1e-9)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_the_search_never_ends_worse_than_it_began(d, rng):
    z = rng.normal(size=(40, d))
    data = Observations(z, np.sin(2 * z).sum(axis=1), np.zeros(40))
    rules = ShapeSearch(tries=40)
    start = rules.start(d)
    found = search(data, start, rules)
    low, high = rules.bounds(d)
    assert np.all((low <= found) & (found <= high))
    bad, good = (Process(data, x, np.var(data.t)).misfit + rules.penalty(x, d) for x in (start, found))
    assert good <= bad


def test_the_search_finds_that_a_function_is_a_sum_of_functions_of_one_coordinate(rng):
    z = rng.normal(size=(60, 4))
    data = Observations(z, np.sum(np.cos(1.5 * z), axis=1), np.zeros(60))
    rules = ShapeSearch(tries=60)
    found = search(data, rules.start(4), rules)
    assert kernel_of(found).one > 2 * kernel_of(rules.start(4)).one


def test_the_search_finds_noise(rng):
    z = rng.normal(size=(80, 1))
    clean, noisy = (Observations(z, np.sin(z[:, 0]) + sd * rng.normal(size=80), np.zeros(80)) for sd in (0.0, 0.3))
    rules = ShapeSearch(tries=40)
    quiet, loud = (search(data, rules.start(1), rules)[1] for data in (clean, noisy))
    assert loud > quiet + 4  # a variance of 0.09 against one of zero


def test_with_noise_the_variance_of_the_function_has_the_highest_evidence(rng):
    """The restricted likelihood, in which the constant is integrated out, by dense linear algebra."""
    z = rng.normal(size=(60, 2))
    noise = rng.uniform(0.5, 2.0, 60)
    data = Observations(z, 5 + 3 * np.sin(2 * z[:, 0]) + np.sqrt(noise) * rng.standard_normal(60), noise)
    K = kernel_of(SHAPE)(z, z) + math.exp(SHAPE[1]) * np.eye(60)

    def log_evidence(a):
        C = a * K + np.diag(noise)
        ones = np.linalg.solve(C, np.ones(60))
        constant = ones @ data.t / ones.sum()
        rest = data.t - constant
        return -0.5 * (np.linalg.slogdet(C)[1] + math.log(ones.sum()) + rest @ np.linalg.solve(C, rest))

    sizes = np.exp(np.linspace(-4, 6, 401))
    best = sizes[np.argmax([log_evidence(a) for a in sizes])]
    found = Process(data, SHAPE, 1.0).variance
    # The iteration ends when the logarithm changes by less than 0.05 in a step.
    assert abs(math.log(found / best)) < 0.2


def test_with_noise_predictions_are_those_of_the_dense_system(rng):
    z, new = rng.normal(size=(40, 3)), rng.normal(size=(5, 3))
    data = Observations(z, np.sin(z[:, 0]) + rng.standard_normal(40), np.full(40, 1.0))
    process = Process(data, SHAPE, 1.0)
    kernel, a = kernel_of(SHAPE), process.variance
    A = np.ones((41, 41))
    A[:40, :40], A[40, 40] = a * (kernel(z, z) + math.exp(SHAPE[1]) * np.eye(40)) + np.eye(40), 0
    k = np.vstack([a * kernel(z, new), np.ones((1, 5))])
    w = np.linalg.solve(A, k)
    seen = process(new)
    assert_allclose(seen.mean, w[:40].T @ data.t, rtol=1e-8)
    assert_allclose(seen.variance, a - np.sum(k * w, axis=0), rtol=1e-6)
    assert_allclose(process.jitter, a * math.exp(SHAPE[1]))
