"""evaluations= from samplers of other packages: what they paid for is not paid for again."""

import emcee
import numpy as np
import pytest

import qbvi

MEAN, SD = np.array([1.0, -2.0]), np.array([0.5, 2.0])


def log_prob(theta):
    return -0.5 * float(np.sum(((theta - MEAN) / SD) ** 2))


def stacked(theta):
    return -0.5 * np.sum(((theta - MEAN) / SD) ** 2, axis=1)


def sampled(backend=None, steps=60):
    sampler = emcee.EnsembleSampler(16, 2, stacked, vectorize=True, backend=backend)
    sampler.random_state = np.random.RandomState(1).get_state()
    sampler.run_mcmc(MEAN + SD * np.random.default_rng(1).standard_normal((16, 2)), steps)
    return sampler


def check(fit, without):
    # 0.05 nats may be missing: an error of 0.2 in the log of both sds, or of 0.2 sds in both means.
    assert fit.converged
    assert np.max(np.abs(fit.mean - MEAN) / SD) < 0.2
    np.testing.assert_allclose(np.log(fit.sd / SD), 0.0, atol=0.2)
    assert fit.n_evals < without.n_evals
    assert len(fit.evaluations) > fit.n_evals


@pytest.fixture(scope="module")
def problem():
    return qbvi.from_log_prob(log_prob, init=[0.0, 0.0])


@pytest.fixture(scope="module")
def without(problem):
    return problem.fit(seed=1)


def test_a_sampler_of_emcee_and_its_backend(problem, without):
    sampler = sampled()
    fit = problem.fit(evaluations=sampler, seed=1)
    check(fit, without)
    assert problem.fit(evaluations=sampler.backend, seed=1).q.tobytes() == fit.q.tobytes()


def test_a_chain_without_its_beginning(problem, without):
    table = qbvi.Evaluations.from_sampler(sampled().backend)
    assert len(table) == 960
    check(problem.fit(evaluations=table[320:], seed=1), without)


def test_a_file_of_emcee(problem, without, tmp_path):
    pytest.importorskip("h5py", reason="h5py is not installed")
    path = tmp_path / "chain.h5"
    sampled(emcee.backends.HDFBackend(str(path)))
    check(problem.fit(evaluations=emcee.backends.HDFBackend(str(path), read_only=True), seed=1), without)


def test_values_of_another_function_are_noticed(problem):
    other = qbvi.from_log_prob(lambda t: 2 * log_prob(t), init=[0.0, 0.0])
    with pytest.raises(qbvi.EvaluationError, match="evaluations"):
        other.fit(evaluations=sampled(), seed=1)


def test_a_sampler_that_has_not_run_is_refused(problem):
    with pytest.raises(ValueError, match="must be a sampler that has run, got a EnsembleSampler"):
        problem.fit(evaluations=emcee.EnsembleSampler(16, 2, log_prob), seed=1)


def test_what_is_no_sampler_is_refused():
    with pytest.raises(TypeError, match=r"`sampler` must be a sampler or backend of emcee, .* got float"):
        qbvi.Evaluations.from_sampler(3.0)


@pytest.mark.integrations
def test_results_of_dynesty_keep_their_place_in_the_cube():
    dynesty = pytest.importorskip("dynesty", reason="dynesty is not installed")
    calls = []

    def prior_transform(u):
        calls.append(u)
        return 20.0 * u - 10.0

    sampler = dynesty.NestedSampler(log_prob, prior_transform, 2, nlive=60, rstate=np.random.default_rng(1))
    sampler.run_nested(print_progress=False, dlogz=0.5)
    problem = qbvi.from_cube(prior_transform, log_prob, 2)
    without = problem.fit(seed=1)
    n = len(sampler.results.logl)
    calls.clear()
    fit = problem.fit(evaluations=sampler.results, seed=1)
    # A call or two for each point, and those of the fit: no solving for coordinates, which takes twenty.
    assert len(calls) < 3 * n + 400
    check(fit, without)
    assert problem.fit(evaluations=sampler, seed=1).q.tobytes() == fit.q.tobytes()
    by_bounds = qbvi.fit(log_prob, [(-10, 10), (-10, 10)], evaluations=sampler.results, seed=1)
    check(by_bounds, without)


@pytest.mark.integrations
def test_a_sampler_of_nautilus():
    nautilus = pytest.importorskip("nautilus", reason="nautilus is not installed")
    sampler = nautilus.Sampler(
        lambda u: 20.0 * u - 10.0, log_prob, n_dim=2, n_live=100, n_networks=1, seed=1, pass_dict=False
    )
    sampler.run(n_eff=100)
    problem = qbvi.from_cube(lambda u: 20.0 * u - 10.0, log_prob, 2)
    check(problem.fit(evaluations=sampler, seed=1), problem.fit(seed=1))
