"""From a function and a prior to a posterior, against answers known in closed form."""

import os
import signal
import threading

import numpy as np
import pytest
import scipy.stats
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qbvi
from oracles import GaussianTarget, gaussian_kl
from qbvi.stopping import MaxIterations
from sweeps import sweep

QUICK = qbvi.QBVI(n_samples=40, stop=(MaxIterations(60),), n_fresh=50, learning_rate=0.3)


def conjugate(rng, d=3, n=20):
    """Gaussian data with known noise: log-likelihood, and the exact posterior under N(1, 2^2)."""
    x, y = rng.standard_normal((n, d)), rng.standard_normal(n)
    cov = np.linalg.inv(x.T @ x + np.eye(d) / 4)
    mean = cov @ (x.T @ y + np.ones(d) / 4)
    return lambda theta: -0.5 * np.sum((y - theta @ x.T) ** 2, axis=-1), mean, cov


def gap(fit, mean, cov):
    """KL(q || exact posterior), the gap in nats."""
    return gaussian_kl(*fit.unconstrained, mean, cov)


# ---------------------------------------------------------------- ways to say the same


def as_vector(f):
    return f, qbvi.Normal(1, 2, shape=3), {}


def as_vectorized(f):
    return (lambda t: np.array([f(row) for row in t])), qbvi.Normal(1, 2, shape=3), {"vectorized": True}


def as_dict(f):
    def named(p):
        return f(np.array([p["a"], *p["b"]]))

    return named, {"a": qbvi.Normal(1, 2), "b": qbvi.Normal(1, 2, shape=2)}, {}


def as_vectorized_dict(f):
    def named(p):
        return np.array([f(np.array([a, *b])) for a, b in zip(p["a"], p["b"], strict=True)])

    return named, {"a": qbvi.Normal(1, 2), "b": qbvi.Normal(1, 2, shape=2)}, {"vectorized": True}


def as_scipy(f):
    return f, scipy.stats.norm(np.ones(3), 2), {}


def as_scipy_multivariate(f):
    return f, scipy.stats.multivariate_normal(np.ones(3), 4 * np.eye(3)), {}


def as_log_prior(f):
    return f, qbvi.LogPrior(lambda t: -0.125 * np.sum((t - 1) ** 2), shape=3), {}


def as_log_joint(f):
    return (lambda t: f(t) - 0.125 * np.sum((t - 1) ** 2)), qbvi.Flat(shape=3), {}


def as_data(f):
    return (lambda t, data: f(t) * (len(data) / 5)), qbvi.Normal(1, 2, shape=3), {"data": np.arange(5)}


WAYS = [
    as_vector,
    as_vectorized,
    as_dict,
    as_vectorized_dict,
    as_scipy,
    as_scipy_multivariate,
    as_log_prior,
    as_log_joint,
    as_data,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_to_say_it_gives_the_exact_posterior(way, rng):
    f, mean, cov = conjugate(rng)
    function, prior, options = way(f)
    fit = qbvi.fit(function, prior, seed=1, family="full", **options)
    assert gap(fit, mean, cov) < 0.01
    assert fit.converged


@pytest.mark.parametrize(
    "case",
    sweep([(1e6, 1), (1e6, 2), (1e6, 10), (1.0, 50), (1.0, 1), (1.0, 2), (1.0, 10), (1e6, 50)], first=4),
    ids=str,
)
def test_a_gaussian_log_likelihood_is_recovered(case):
    condition, d = case
    target = GaussianTarget.random(np.random.default_rng(d), d, condition)
    fit = qbvi.fit(target.log_density, qbvi.Flat(shape=d), vectorized=True, seed=1)
    assert fit.converged
    assert gap(fit, target.mean, target.cov) < 0.01
    assert abs(fit.elbo) < 5 * fit.elbo_se + 0.01  # the density is normalised: the best bound is zero


# ---------------------------------------------------------------- supports


def test_the_function_sees_constrained_concrete_numpy_values():
    seen = []

    def spy(p):
        seen.append(p)
        return -np.sum(p["w"] ** 2) - p["s"] - p["p"] - np.sum(p["o"] ** 2) - np.sum(p["m"] ** 2)

    prior = {
        "w": qbvi.Dirichlet(np.ones(3)),
        "s": qbvi.InverseGamma(3, 1),
        "p": qbvi.Uniform(2, 5),
        "o": qbvi.Flat(shape=2, support=qbvi.Ordered()),
        "m": qbvi.Normal(0, 1, shape=(2, 2)),
    }
    fit = qbvi.fit(spy, prior, method=QUICK, seed=1)
    for p in seen:
        assert all(isinstance(value, np.ndarray | np.float64) for value in p.values())
        assert p["s"] > 0
        assert 2 <= p["p"] <= 5
        assert np.isclose(p["w"].sum(), 1)
        assert p["o"][0] < p["o"][1]
        assert p["m"].shape == (2, 2)
    draws = fit.sample(10, seed=1)
    assert draws["m"].shape == (10, 2, 2)
    assert np.all(draws["s"] > 0)


def test_a_log_normal_posterior_is_exact_through_its_transform():
    """A log-normal prior with a log-normal likelihood: Gaussian on the log scale."""
    fit = qbvi.fit(lambda s: -0.5 * (np.log(s) - 1) ** 2 / 0.25, qbvi.LogNormal(0, 1), seed=1)
    mean, var = 0.8, 0.2
    np.testing.assert_allclose(fit.unconstrained[0], mean, atol=0.02)
    np.testing.assert_allclose(fit.mean, np.exp(mean + var / 2), rtol=0.02)


def test_the_papers_garch_transform_is_a_users_bijection(rng):
    """Gaussian prior on psi; the function sees omega, alpha, beta inside the stationary region."""

    def forward(psi):
        s = 1 / (1 + np.exp(-psi))
        return np.array([s[0], s[1] * (1 - s[2]), s[1] * s[2]])

    seen = []

    def log_likelihood(theta):
        seen.append(theta)
        omega, alpha, beta = theta
        persistence = alpha + beta
        psi = np.log([omega / (1 - omega), persistence / (1 - persistence), beta / alpha])
        return -0.5 * np.sum((psi - [-1, 2, 1]) ** 2)

    prior = qbvi.Transformed(qbvi.Normal(0, 1, shape=3), qbvi.Bijection(forward))
    fit = qbvi.fit(log_likelihood, prior, seed=1)
    np.testing.assert_allclose(fit.unconstrained[0], np.array([-1, 2, 1]) / 2, atol=0.03)
    assert all(theta[1] + theta[2] < 1 for theta in seen)


# ---------------------------------------------------------------- families and methods


def test_a_diagonal_posterior_is_the_best_of_its_family(rng):
    f, mean, cov = conjugate(rng)
    fit = qbvi.fit(f, qbvi.Normal(1, 2, shape=3), family="diagonal", seed=1)
    best = np.diag(1 / np.diag(np.linalg.inv(cov)))
    assert gaussian_kl(*fit.unconstrained, mean, cov) < gaussian_kl(mean, best, mean, cov) + 0.01


@pytest.mark.parametrize("groups", [[["a"], ["b"]], [["b"], ["a"]]])
def test_groups_of_named_parameters_are_independent_blocks(rng, groups):
    f, mean, cov = conjugate(rng)
    function, prior, _ = as_dict(f)
    fit = qbvi.fit(function, prior, family=groups, seed=1)
    precision = np.linalg.inv(cov)
    best = np.zeros((3, 3))
    best[0, 0], best[1:, 1:] = 1 / precision[0, 0], np.linalg.inv(precision[1:, 1:])
    assert np.all(fit.unconstrained[1][0, 1:] == 0)
    assert gap(fit, mean, cov) < gaussian_kl(mean, best, mean, cov) + 0.01


def test_groups_of_columns_serve_where_there_are_no_names(rng):
    f, _, _ = conjugate(rng)
    fit = qbvi.fit(f, qbvi.Normal(1, 2, shape=3), family=[[0, 2], [1]], method=QUICK, seed=1)
    cov = fit.unconstrained[1]
    assert cov[0, 1] == cov[1, 2] == 0 != cov[0, 2]


def triples_of_parts():
    """All 36, of which `make test` runs twelve: each pair of parts meets there."""
    estimators = ["leave-one-out", "residual", "control-variate-centred"]
    draws = ["independent", "antithetic", "sobol"]
    steps = ["bounded-rate", "exponential", "retraction", "cholesky-log"]
    for places in np.ndindex(3, 3, 4):
        parts = [names[place] for names, place in zip((estimators, draws, steps), places, strict=True)]
        yield pytest.param(*parts, marks=[pytest.mark.soak] * (sum(places) % 3 > 0))


@pytest.mark.parametrize(("estimator", "draws", "step"), list(triples_of_parts()))
def test_parts_go_together(rng, estimator, draws, step):
    f, mean, cov = conjugate(rng)
    method = qbvi.QBVI(
        estimator=estimator, draws=draws, step=step, n_samples=64, stop=(MaxIterations(120),), keep="last", n_fresh=50,
        learning_rate=qbvi.LearningRate(0.2, decay_after=40), initial_sd=0.5,
        updates=(qbvi.ClipByNorm(100.0, first_norm=1.0, first_steps=2),),  # control variates have no coefficients at first
    )  # fmt: skip
    fit = qbvi.fit(f, qbvi.Normal(1, 2, shape=3), method=method, vectorized=True, seed=1)
    assert gap(fit, mean, cov) < 0.1


def test_the_kept_iterate_has_the_best_smoothed_bound_mean_and_covariance(rng):
    f, _, _ = conjugate(rng)
    method = qbvi.QBVI(n_samples=10, stop=(MaxIterations(50),), window=5, learning_rate=0.9, n_fresh=50)
    fit = qbvi.fit(f, qbvi.Normal(1, 2, shape=3), method=method, seed=3)
    best = int(np.argmax(fit.trace.elbo_smooth))
    np.testing.assert_allclose(fit.mean, fit.trace.mean[best])
    np.testing.assert_allclose(fit.sd, fit.trace.sd[best])


def test_the_bound_is_a_fresh_estimate_with_an_honest_error(rng):
    """Known bound of the returned q, by closed form; the error bar covers it."""
    f, mean, cov = conjugate(rng)
    evidence = f(mean) - 0.125 * np.sum((mean - 1) ** 2) - 1.5 * np.log(4) + 0.5 * np.linalg.slogdet(cov)[1]
    z, n_seeds = [], 8
    for seed in range(n_seeds):
        fit = qbvi.fit(f, qbvi.Normal(1, 2, shape=3), method=QUICK, vectorized=True, seed=seed)
        z.append((fit.elbo - (evidence - gap(fit, mean, cov))) / fit.elbo_se)
    assert np.abs(z).max() < scipy.stats.t(49).isf(1e-6 / 2 / n_seeds)


def test_a_plain_step_that_leaves_the_domain_says_what_to_do(rng):
    f, _, _ = conjugate(rng)
    method = qbvi.QBVI(step="plain", n_samples=4, learning_rate=5.0)
    with pytest.raises(qbvi.DomainError, match='step="bounded-rate"') as caught:
        qbvi.fit(f, qbvi.Normal(1, 2, shape=3), method=method, seed=1)
    assert caught.value.fit is not None


def test_separate_rates_and_clipping_compose(rng):
    f, mean, cov = conjugate(rng)
    method = qbvi.QBVI(
        updates=(qbvi.ClipByNorm(1000, first_norm=10), qbvi.Momentum(0.4), qbvi.SeparateRates(0.2, 0.1)),
        learning_rate=None, stop=(MaxIterations(200),), n_fresh=50,
    )  # fmt: skip
    fit = qbvi.fit(f, qbvi.Normal(1, 2, shape=3), method=method, vectorized=True, seed=1)
    assert gap(fit, mean, cov) < 0.05


# ---------------------------------------------------------------- seeds, budgets, interruption


def test_same_seed_same_result_however_the_function_is_called(rng):
    f, _, _ = conjugate(rng)
    one = qbvi.fit(*as_vector(f)[:2], seed=5, family="full")
    two = qbvi.fit(*as_vectorized(f)[:2], vectorized=True, seed=5, family="full")
    other = qbvi.fit(*as_vector(f)[:2], seed=6, family="full")
    np.testing.assert_array_equal(one.cov, two.cov)
    np.testing.assert_array_equal(one.trace.elbo, two.trace.elbo)
    assert one.trace.elbo[0] != other.trace.elbo[0]  # both end in the exact posterior, by other draws


def test_without_a_seed_the_fit_says_which_one_it_took(rng):
    f, _, _ = conjugate(rng)
    first = qbvi.fit(f, qbvi.Normal(1, 2, shape=3), method=QUICK)
    again = qbvi.fit(f, qbvi.Normal(1, 2, shape=3), method=QUICK, seed=first.seed)
    np.testing.assert_array_equal(first.mean, again.mean)


@pytest.mark.parametrize(
    ("method", "max_evals"),
    [("auto", 12), ("auto", 30), ("auto", 333), ("paper", 100), ("paper", 333), ("paper", 1000)],
)
def test_the_budget_of_evaluations_is_kept_and_the_fit_so_far_returned(rng, max_evals, method):
    calls = []
    regression = scipy.stats.multivariate_t(np.ones(4), df=3)

    def count(theta):
        calls.append(1)
        return regression.logpdf(theta)

    fit = qbvi.fit(count, qbvi.Normal(0, 30, shape=4), method=method, max_evals=max_evals, seed=1)
    assert fit.n_evals == len(calls) <= max_evals
    assert fit.converged or f"{max_evals:,} evaluations" in fit.stop_reason
    assert np.isfinite(fit.elbo)


def test_a_budget_below_the_first_step_is_refused_before_any_evaluation():
    with pytest.raises(ValueError, match="`max_evals` must allow for the 100 evaluations of the first step, got 30"):
        qbvi.fit(pytest.fail, qbvi.Normal(0, 1), method="paper", max_evals=30, seed=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_evals": 1000.5}, "`max_evals` must be a whole number, got 1000.5"),
        ({"n_starts": 2.5}, "`n_starts` must be a whole number or 'auto', got 2.5"),
        ({"data": np.ones(3), "batch_size": 1.5}, "`batch_size` must be a whole number, got 1.5"),
        ({"tol": "small"}, "`tol` must be a number, got 'small'"),
        ({"max_time": "long"}, "`max_time` must be a number, got 'long'"),
        ({"seed": -1}, "`seed` must be a whole number from 0"),
        ({"seed": "one"}, "`seed` must be a whole number from 0"),
    ],
)
def test_what_is_not_a_number_is_refused_by_name(arguments, message):
    with pytest.raises(TypeError, match=message):
        qbvi.fit(pytest.fail, qbvi.Normal(0, 1), **arguments)


def test_a_generator_or_a_seed_sequence_is_a_seed():
    first, again, other = (
        qbvi.fit(lambda x: -(x**2), qbvi.Normal(0, 1), seed=seed, family="full")
        for seed in (np.random.default_rng(5), np.random.default_rng(5), np.random.SeedSequence(5))
    )
    assert first.seed == again.seed != other.seed
    assert first.elbo == again.elbo


def test_no_iterations_at_all_are_refused():
    with pytest.raises(ValueError, match="`iterations` must be at least 1, got 0"):
        qbvi.MaxIterations(0)


def test_a_callback_sees_every_step_and_may_end_the_fit(rng):
    f, _, _ = conjugate(rng)
    seen = []
    fit = qbvi.fit(f, qbvi.Normal(1, 2, shape=3), callback=lambda now: seen.append(now) or len(seen) == 2, seed=1)
    assert [now.n_evals for now in seen] == list(fit.trace.n_evals)
    assert "callback" in fit.stop_reason
    np.testing.assert_array_equal(fit.unconstrained[1], seen[-1].cov)


def test_seconds_end_a_fit_too(rng):
    f, _, _ = conjugate(rng)
    fit = qbvi.fit(f, qbvi.Normal(1, 2, shape=3), method=qbvi.QBVI(stop=()), max_time=0.3, seed=1)
    assert "seconds" in fit.stop_reason
    assert not fit.converged


def test_ctrl_c_gives_the_fit_so_far(rng):
    f, _, _ = conjugate(rng)
    calls = []

    def interrupted(theta):
        calls.append(1)
        if len(calls) == 500:
            raise KeyboardInterrupt
        return f(theta)

    fit = qbvi.fit(interrupted, qbvi.Normal(1, 2, shape=3), method=qbvi.QBVI(), seed=1)
    assert "Ctrl-C" in fit.stop_reason
    assert not fit.converged
    assert len(fit.trace) == 4
    assert np.isfinite(fit.elbo)


def test_a_real_signal_does_the_same(rng):
    f, _, _ = conjugate(rng)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    fit = qbvi.fit(f, qbvi.Normal(1, 2, shape=3), method=qbvi.QBVI(stop=()), seed=1)
    assert "Ctrl-C" in fit.stop_reason


def test_progress_tells_evaluations_bound_step_and_time_left(rng, capsys):
    f, _, _ = conjugate(rng)
    qbvi.fit(f, qbvi.Normal(1, 2, shape=3), method=QUICK, seed=1, progress=True)
    line = capsys.readouterr().err.split("\r")[-1]
    for part in ("evaluations", "bound", "step", "left", "60 iterations"):
        assert part in line
    qbvi.fit(f, qbvi.Normal(1, 2, shape=3), method=QUICK, seed=1)
    assert capsys.readouterr().err == ""


# ---------------------------------------------------------------- starts


def test_init_takes_a_point_or_an_earlier_fit(rng):
    f, mean, _ = conjugate(rng)
    function, prior, _ = as_dict(f)
    fit = qbvi.fit(function, prior, init={"a": mean[0], "b": mean[1:]}, method=QUICK, seed=1)
    np.testing.assert_allclose(fit.trace.mean[0], mean)
    again = qbvi.fit(function, prior, init=fit, method=QUICK, seed=1)
    np.testing.assert_allclose(again.trace.mean[0], fit.unconstrained[0])


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ({"a": np.nan, "b": [0, 0]}, "values of 'a' must be finite, got nan"),
        ({"a": 0.0, "b": [0, np.inf]}, "values of 'b' must be finite, got inf"),
        ({"a": 0.0, "c": [0, 0]}, "'b'"),
        ({"a": 0.0, "b": [0, 0, 0]}, "shape"),
    ],
)
def test_a_start_that_cannot_be_is_refused(rng, init, message):
    f, _, _ = conjugate(rng)
    function, prior, _ = as_dict(f)
    with pytest.raises(ValueError, match=message):
        qbvi.fit(function, prior, init=init, method=QUICK)


# ---------------------------------------------------------------- mini-batches


def test_mini_batches_are_scaled_and_shared_by_the_draws_of_a_step(rng):
    y, batches = rng.standard_normal(100) + 3, []

    def log_likelihood(m, batch):
        batches.append(batch)
        return -0.5 * np.sum((batch - m) ** 2)

    method = qbvi.QBVI(
        n_samples=20, stop=(MaxIterations(300),), keep="last", n_fresh=40,
        learning_rate=qbvi.LearningRate(0.3, decay_after=20), initial_sd=0.5,
    )  # fmt: skip
    fit = qbvi.fit(log_likelihood, qbvi.Normal(0, 10), data=y, batch_size=10, method=method, seed=1)
    assert all(b is batches[0] for b in batches[:20])
    assert batches[20] is not batches[0]
    assert {len(b) for b in batches} == {10}
    exact = 1 / (100 + 0.01)
    np.testing.assert_allclose(fit.sd, np.sqrt(exact), rtol=0.1)
    np.testing.assert_allclose(fit.mean, exact * y.sum(), atol=0.1)
    assert np.isnan(fit.khat)


# ---------------------------------------------------------------- failures


def test_an_evaluation_error_keeps_the_fit_so_far(rng):
    f, _, _ = conjugate(rng)
    calls = []

    def fails_late(theta):
        calls.append(1)
        return np.nan if len(calls) > 250 else f(theta)

    with pytest.raises(qbvi.EvaluationError, match="returned nan") as caught:
        qbvi.fit(fails_late, qbvi.Normal(1, 2, shape=3), method=qbvi.QBVI(), seed=1)
    assert len(caught.value.fit.trace) == 2


@pytest.mark.parametrize("method", ["auto", QUICK])
def test_a_function_that_is_finite_nowhere_is_given_up_with_the_way_out(method):
    with pytest.raises(qbvi.EvaluationError, match=r"none of the points of the last 10 steps .* `init`"):
        qbvi.fit(lambda t: -np.inf, qbvi.Normal(0, 1, shape=2), method=method, on_failure="exclude", seed=1)


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_points_that_fail_at_random_do_not_spoil_the_answer(rng, share):
    f, mean, cov = conjugate(rng)
    fails = np.random.default_rng(8)

    def flaky(theta):
        return np.nan if fails.random() < share else f(theta)

    fit = qbvi.fit(flaky, qbvi.Normal(1, 2, shape=3), on_failure="exclude", seed=1)
    assert gap(fit, mean, cov) < 0.05
    assert fit.n_failed == len(fit.failures) > 0
    assert fit.failures[0].kind == "nan"


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "papr"}, "did you mean 'paper'"),
        ({"family": "ful"}, "did you mean 'full'"),
        ({"family": [[0], [1]]}, r"each of the 3 coordinates in exactly one group"),
        ({"batch_size": 5}, "`batch_size` needs `data`"),
        ({"on_failure": "ignore"}, "`on_failure` must be one of"),
    ],
)
def test_bad_options_are_refused_with_the_way_out(rng, options, message):
    f, _, _ = conjugate(rng)
    with pytest.raises(ValueError, match=message):
        qbvi.fit(f, qbvi.Normal(1, 2, shape=3), **options)


@pytest.mark.parametrize(
    ("part", "name", "message"),
    [
        ("estimator", "residul", "did you mean 'residual'"),
        ("draws", "sobl", "did you mean 'sobol'"),
        ("step", "exponentail", "did you mean 'exponential'"),
        ("stop", ("patiense",), "did you mean 'patience'"),
        ("keep", "bets", "did you mean 'best'"),
    ],
)
def test_an_unknown_part_suggests_the_nearest(part, name, message):
    with pytest.raises(ValueError, match=message):
        qbvi.QBVI(**{part: name})


def test_priors_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="positive definite"):
        qbvi.fit(lambda t: 0.0, qbvi.MultivariateNormal(np.zeros(2), [[1, 2], [2, 1]]))
    with pytest.raises(ValueError, match="parameter"):
        qbvi.fit(lambda t: 0.0, {})
    with pytest.raises((TypeError, ValueError), match="LogPrior"):
        qbvi.fit(lambda t: 0.0, lambda t: 0.0)


# ---------------------------------------------------------------- nothing breaks


PROBLEMS = {
    "d": st.integers(1, 100),
    "prior_scale": st.floats(-3, 3).map(lambda x: 10.0**x),
    "start": st.floats(-100, 100),
    "family": st.sampled_from(["full", "diagonal"]),
    "curvature": st.floats(-4, 4).map(lambda x: 10.0**x),
}
PARTS = {
    "rate": st.floats(0.01, 1.0),
    "step": st.sampled_from(["bounded-rate", "exponential", "retraction", "cholesky-log"]),
    "estimator": st.sampled_from(
        ["score-function", "control-variate", "control-variate-centred", "leave-one-out", "residual"]
    ),
}


def tried(check, n_examples, **strategies):
    """Try a check on so many examples, the same ones in every run."""
    options = {"deadline": None, "derandomize": True, "suppress_health_check": [HealthCheck.too_slow]}
    settings(max_examples=n_examples, **options)(given(**strategies)(check))()


@pytest.mark.parametrize("n_examples", sweep([25, 100], first=1))
def test_no_decomposition_error_reaches_a_user(n_examples):
    tried(no_decomposition_error, n_examples, **PROBLEMS, **PARTS)


def no_decomposition_error(d, prior_scale, start, rate, step, estimator, family, curvature):
    """From any start, prior scale, dimension and parts: a posterior with finite mean and positive variances."""
    method = qbvi.QBVI(
        estimator=estimator, step=step, learning_rate=rate, n_samples=6, stop=(MaxIterations(12),), n_fresh=4
    )
    fit = qbvi.fit(
        lambda t: -curvature * np.sum(np.abs(t - 1) ** 1.5, axis=1), qbvi.Normal(0, prior_scale, shape=d), method=method,
        family=family, init=np.full(d, start), vectorized=True, seed=d,
    )  # fmt: skip
    assert np.all(np.isfinite(fit.mean))
    assert np.all(fit.sd > 0)
    assert np.all(np.isfinite(fit.sample(3, seed=1)))


@pytest.mark.parametrize("n_examples", sweep([15, 60], first=1))
def test_no_decomposition_error_reaches_a_user_of_the_default(n_examples):
    tried(no_decomposition_error_by_default, n_examples, **PROBLEMS, power=st.sampled_from([1.0, 1.5, 2.0, 4.0]))


def no_decomposition_error_by_default(d, prior_scale, start, power, family, curvature):
    """The same for the default method: kinks, flat and steep functions, starts far outside of the prior."""
    fit = qbvi.fit(
        lambda t: -curvature * np.sum(np.abs(t - 1) ** power, axis=1), qbvi.Normal(0, prior_scale, shape=d),
        family=family, init=np.full(d, start), vectorized=True, seed=d, max_evals=200 + 4 * d,
    )  # fmt: skip
    assert np.all(np.isfinite(fit.mean))
    assert np.all(fit.sd > 0)
    assert np.all(np.isfinite(fit.sample(3, seed=1)))


@pytest.mark.parametrize("phase", sweep([0.02, 6.25, 3.0], first=2))
def test_a_phase_at_the_wall_is_no_special_case(phase):
    """The posterior of a sinusoid's phase is the same wherever the period is cut."""
    t = np.linspace(0, 10, 40)
    noise = 0.5 * np.random.default_rng(0).standard_normal(40)
    y = 2 * np.sin(1.3 * t + phase) + noise

    def log_likelihood(p):
        return -2.0 * np.sum((y - p["a"] * np.sin(1.3 * t + p["phi"])) ** 2)

    fits = [
        qbvi.fit(log_likelihood, {"a": qbvi.HalfNormal(3), "phi": prior}, seed=0)
        for prior in (
            qbvi.Uniform(0, 2 * np.pi, periodic=True),
            qbvi.Uniform(phase - np.pi, phase + np.pi, periodic=True),
        )
    ]
    assert all(fit.converged for fit in fits)
    apart = (fits[0].mean["phi"] - fits[1].mean["phi"] + np.pi) % (2 * np.pi) - np.pi
    assert abs(apart) < 0.1 * fits[1].sd["phi"]
    assert fits[0].elbo == pytest.approx(fits[1].elbo, abs=0.05)
    assert 0 <= fits[0].mean["phi"] <= 2 * np.pi
    draws = fits[0].sample(500, seed=1)["phi"]
    assert draws.min() >= 0
    assert draws.max() <= 2 * np.pi
    # The log density is the same on both sides of the cut.
    point = {"a": fits[0].mean["a"]}
    ends = [fits[0].log_prob(point | {"phi": np.array(x)}) for x in (0.0, 2 * np.pi)]
    assert ends[0] == pytest.approx(ends[1], abs=1e-6)
    low, high = fits[0].quantiles(np.array([0.1, 0.9]))["phi"]
    assert 0 < high - low < 4 * fits[0].sd["phi"]


def test_a_phase_that_the_data_do_not_determine_is_not_called_converged():
    fit = qbvi.fit(lambda phi: 0.3 * np.cos(phi), qbvi.Uniform(0, 2 * np.pi, periodic=True), seed=0)
    assert not fit.converged
    assert "goes round the circle" in fit.stop_reason


def test_a_periodic_posterior_is_saved_with_its_support(tmp_path):
    prior = {"phi": qbvi.Uniform(0, 24, periodic=True), "mu": qbvi.Flat((), support=qbvi.Periodic(2.0, -1.0))}
    fit = qbvi.fit(lambda p: 30 * np.cos(p["phi"] * np.pi / 12) - 8 * p["mu"] ** 2, prior, seed=0)
    assert fit.converged
    fit.save(tmp_path / "phase.qbvi")
    again = qbvi.load(tmp_path / "phase.qbvi")
    assert again.mean == fit.mean
    assert repr(again.model) == repr(fit.model)


@pytest.mark.parametrize(
    ("name", "meant"), [("max_eval", "did you mean 'max_evals'"), ("sed", "did you mean 'seed'"), ("qqq", "`qqq`$")]
)
def test_an_argument_that_does_not_exist_is_named_with_the_one_that_was_meant(name, meant):
    with pytest.raises(TypeError, match=meant):
        qbvi.fit(lambda x: -(x**2), qbvi.Normal(0, 1), **{name: 1})
