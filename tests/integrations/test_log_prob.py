"""from_log_prob: the function and the walkers of an ensemble sampler."""

import numpy as np
import pytest

import qbvi

RNG = np.random.default_rng(7)
# A line with error bars that are too small by an unknown factor: the problem of emcee's tutorial, with data of our own.
X = np.sort(10 * RNG.random(40))
SD = 0.1 + 0.4 * RNG.random(40)
Y = -0.9 * X + 4.2 + np.abs(0.5 * (4.2 - 0.9 * X)) * RNG.standard_normal(40) + SD * RNG.standard_normal(40)


def log_prob(theta, x, y, sd):
    slope, intercept, log_f = theta
    if not (-5.0 < slope < 0.5 and 0.0 < intercept < 10.0 and -10.0 < log_f < 1.0):
        return -np.inf
    line = slope * x + intercept
    variance = sd**2 + line**2 * np.exp(2 * log_f)
    return -0.5 * float(np.sum((y - line) ** 2 / variance + np.log(variance)))


def stacked_log_prob(theta, x, y, sd):
    slope, intercept, log_f = theta.T[..., None]
    line = slope * x + intercept
    variance = sd**2 + line**2 * np.exp(2 * log_f)
    values = -0.5 * np.sum((y - line) ** 2 / variance + np.log(variance), axis=1)
    inside = np.all((theta > [-5.0, 0.0, -10.0]) & (theta < [0.5, 10.0, 1.0]), axis=1)
    return np.where(inside, values, -np.inf)


NAMES = ["m", "b", "log f"]
WALKERS = np.array([-1.0, 4.5, -0.7]) + 1e-4 * RNG.standard_normal((32, 3))


@pytest.fixture(scope="module")
def problem():
    return qbvi.from_log_prob(log_prob, WALKERS, args=(X, Y, SD), names=NAMES)


@pytest.fixture(scope="module")
def fit(problem):
    return problem.fit(seed=1)


def test_agrees_with_emcee_on_its_tutorial_problem(fit):
    import emcee  # not above: the processes of another test import this module

    sampler = emcee.EnsembleSampler(32, 3, stacked_log_prob, args=(X, Y, SD), vectorize=True)
    sampler.random_state = np.random.RandomState(1).get_state()
    sampler.run_mcmc(WALKERS, 2500)
    chain = sampler.get_chain(discard=500, flat=True)
    n = len(chain) / np.max(sampler.get_autocorr_time(discard=500, quiet=True))
    assert fit.converged
    assert fit.labels == tuple(NAMES)
    # Four standard errors of the chain, and a shift of q within the 0.05 nats that may be missing.
    allowed = 4 / np.sqrt(n) + 0.1
    assert np.max(np.abs(fit.mean - chain.mean(0)) / chain.std(0)) < allowed
    np.testing.assert_allclose(fit.sd, chain.std(0), rtol=allowed)


def test_finds_the_scale_by_itself():
    scale = np.array([1e-6, 1.0, 1e5])
    f = lambda t: -0.5 * float(np.sum(((t - 3 * scale) / scale) ** 2))
    fit = qbvi.from_log_prob(f, init=2 * scale).fit(seed=1)
    assert fit.converged
    np.testing.assert_allclose(fit.sd / scale, 1.0, rtol=0.1)
    assert fit.evidence == pytest.approx(1.5 * np.log(2 * np.pi) + np.sum(np.log(scale)), abs=0.1)


def test_walkers_give_the_scale_of_the_first_iteration_and_its_centre():
    seen = []
    f = lambda t: seen.append(t) or -0.5 * float(np.sum((t - 1e6) ** 2 / 1e8))
    walkers = 1e6 + 1e4 * RNG.standard_normal((20, 2))
    problem = qbvi.from_log_prob(f, walkers)
    assert any(np.array_equal(problem.init, walker) for walker in walkers)
    problem.fit(seed=1)
    assert 1e2 < np.std(seen[:8], axis=0).max() < 1e5


def test_blobs_are_left_out():
    alone = qbvi.from_log_prob(lambda t: -float(t @ t), [0.0, 1.0]).fit(seed=1)
    with_blobs = qbvi.from_log_prob(lambda t: (-float(t @ t), "blob", t[0]), [0.0, 1.0]).fit(seed=1)
    as_list = qbvi.from_log_prob(lambda t: [-float(t @ t), 3.0], [0.0, 1.0]).fit(seed=1)
    assert alone.q.tobytes() == with_blobs.q.tobytes() == as_list.q.tobytes()


def test_a_forgotten_sum_is_refused():
    with pytest.raises(TypeError, match="got an array of shape \\(2,\\); was a sum forgotten"):
        qbvi.from_log_prob(lambda t: -(t**2), [0.0, 1.0]).fit(seed=1)


def test_many_points_in_one_call(fit):
    stacked = qbvi.from_log_prob(stacked_log_prob, WALKERS, args=(X, Y, SD), vectorized=True).fit(seed=1)
    np.testing.assert_allclose(stacked.mean, fit.mean, rtol=1e-6)


def test_further_arguments_by_name(fit):
    named = qbvi.from_log_prob(log_prob, WALKERS, kwargs={"x": X, "y": Y, "sd": SD}).fit(seed=1)
    assert named.q.tobytes() == fit.q.tobytes()


def test_same_seed_same_bits_in_processes_files_and_checkpoints(problem, fit, tmp_path):
    assert problem.fit(seed=1, executor=2, checkpoint=tmp_path / "run").q.tobytes() == fit.q.tobytes()
    resumed = problem.fit(seed=1, checkpoint=tmp_path / "run")
    assert resumed.q.tobytes() == fit.q.tobytes()
    fit.save(tmp_path / "fit")
    loaded = qbvi.load(tmp_path / "fit")
    assert loaded.mean.tobytes() == fit.mean.tobytes()
    assert loaded.log_prob(fit.mean) == fit.log_prob(fit.mean)


def test_a_start_outside_of_the_bounds_says_so():
    with pytest.raises(qbvi.EvaluationError, match="use `init` to start where it is finite"):
        qbvi.from_log_prob(log_prob, [3.0, 4.0, 0.0], args=(X, Y, SD)).fit(seed=1)


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (3.0, r"`init` must be one point \(d,\) or walkers \(n, d\), got shape \(\)"),
        (np.zeros((2, 3, 4)), r"got shape \(2, 3, 4\)"),
        ([], r"got shape \(0,\)"),
        ([0.0, np.nan], "`init` must be finite, got nan"),
        (["a", "b"], "`init` must"),
    ],
)
def test_wrong_starts_are_refused(init, message):
    with pytest.raises((TypeError, ValueError), match=message):
        qbvi.from_log_prob(log_prob, init)
