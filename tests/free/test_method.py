"""The free posterior from end to end: shapes against quadrature, and everything that a fit can do."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import qbvi
from comparison import assert_same
from qbvi.families import Gaussian
from qbvi.free.base import Base
from qbvi.free.check import Check, Shown
from qbvi.free.density import FreeDensity
from qbvi.free.method import Confirmed
from qbvi.free.rules import FreeRules, Rounds
from qbvi.free.search import Search, Trial
from qbvi.free.surface import Points
from qbvi.noise import Noise
from sweeps import sweep

WIDE = qbvi.Normal(0, 3, shape=2)
QUICK = {
    "seed": 2,
    "tol": 1e-5,
    "max_evals": 95,
}  # ends the fit of `skewed` in its rounds, long before it has this tolerance


class Exact:
    """Log evidence and marginal moments by quadrature on a grid over two coordinates."""

    def __init__(self, log_joint, x, y):
        u = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
        log_p = log_joint(u)
        w = np.exp(log_p - log_p.max())
        self.evidence = math.log(w.sum()) + log_p.max() + math.log((x[1] - x[0]) * (y[1] - y[0]))
        self.u, self.w = u, w / w.sum()
        self.mean, self.sd = self._moments(self.w)

    def _moments(self, w):
        mean = w @ self.u
        return mean, np.sqrt(w @ (self.u - mean) ** 2)

    def without_tail(self, share):
        """Mean and standard deviations without the largest values of the second coordinate."""
        order = np.argsort(self.u[:, 1])
        is_in = np.empty(len(order), dtype=bool)
        is_in[order] = np.cumsum(self.w[order]) < 1 - share
        return self._moments(self.w * is_in / (self.w @ is_in))


def log_normal(u, sd):
    return np.sum(-0.5 * (u / sd) ** 2 - math.log(sd) - 0.5 * math.log(2 * math.pi), axis=-1)


def banana(x):
    return -((x[..., 0] ** 2 - x[..., 1]) ** 2) - (x[..., 0] - 1) ** 2 / 100


def skewed(x):
    """A log-gamma in each coordinate, and a little dependence; log-concave."""
    return np.sum(2 * x - np.exp(x), axis=-1) - 0.3 * (x[..., 0] - x[..., 1]) ** 2


@pytest.fixture(scope="module")
def curved():
    return qbvi.fit(banana, WIDE, seed=2)


@pytest.fixture(scope="module")
def curved_exact():
    return Exact(lambda u: banana(u) + log_normal(u, 3), np.linspace(-8, 8, 800), np.linspace(-8, 35, 2000))


@pytest.fixture(scope="module")
def stopped():
    """A fit that the budget ends inside the rounds: quick, and of free shape."""
    return qbvi.fit(skewed, WIDE, **QUICK)


# --- shapes


def linear(theta):
    """Data with mean theta and variance 0.25: the posterior and its evidence have closed forms."""
    return -0.5 * np.sum((theta - 1) ** 2) / 0.25


LINEAR_EVIDENCE = 3 * (0.5 * math.log(0.25 / 4.25) - 0.5 / 4.25)


@pytest.mark.parametrize("seed", sweep([1, 2, 3], first=1))
def test_a_gaussian_posterior_stays_a_gaussian(seed):
    fit = qbvi.fit(linear, qbvi.Normal(0, 2, shape=3), seed=seed)
    assert fit.converged
    assert isinstance(fit.family, Gaussian)
    assert_allclose(fit.mean, 4 / 4.25, atol=0.05)
    assert_allclose(fit.sd, math.sqrt(1 / 4.25), rtol=0.05)
    assert abs(fit.evidence - LINEAR_EVIDENCE) < max(3 * fit.evidence_se, 0.01)
    # A regression on its own takes about 60: the survey and two rounds that confirm are all that may be added.
    plain = qbvi.fit(linear, qbvi.Normal(0, 2, shape=3), seed=seed, family="full")
    assert fit.n_evals <= plain.n_evals + 60


def test_a_banana_has_the_evidence_and_the_moments_of_quadrature(curved, curved_exact):
    assert curved.converged
    assert isinstance(curved.family, FreeDensity)
    assert abs(curved.evidence - curved_exact.evidence) < max(3 * curved.evidence_se, 0.05)
    # The tolerance of 0.05 nats permits a posterior without 5 % of the mass, and that is in the tails of both arms.
    # Without the highest 5 % it would be narrower by a tenth and by a fifth; the other 5 % are for sampling.
    least_mean, least_sd = curved_exact.without_tail(0.05)
    assert np.all(curved.sd > 0.95 * least_sd)
    assert np.all(curved.sd < 1.05 * curved_exact.sd)
    drawn_in = np.abs(least_mean - curved_exact.mean) + 0.1 * curved_exact.sd
    assert np.all(np.abs(curved.mean - curved_exact.mean) < drawn_in)


def test_draws_of_a_banana_are_draws_of_the_posterior(curved, curved_exact):
    draws = curved.sample(1500, seed=1)
    assert_allclose(draws.std(axis=0), curved_exact.sd, rtol=0.2)
    u = np.stack([draws[:, 0], draws[:, 1]], axis=1)
    r = banana(u) + log_normal(u, 3) - curved.log_prob(u, batched=True)
    # log p / q is the log evidence at every draw, apart from what is missing: about half its variance.
    assert abs(np.median(r) - curved_exact.evidence) < 0.1
    assert np.quantile(r, 0.9) - np.quantile(r, 0.1) < 0.8


def test_a_better_posterior_than_the_best_gaussian(curved):
    gaussian = qbvi.fit(banana, WIDE, seed=2, family="full")
    assert isinstance(gaussian.family, Gaussian)
    assert curved.elbo > gaussian.elbo + 0.3  # the Gaussian misses about 0.6 nats


def test_an_exact_gaussian_of_the_search_is_the_result():
    """In ten dimensions the surrogate's own moments are 0.01 nats off when it settles."""
    mean = np.linspace(-1, 1, 10)
    fit = qbvi.fit(lambda x: -0.5 * np.sum((x - mean) ** 2, axis=1), qbvi.Flat(shape=10), vectorized=True, seed=1)
    assert fit.converged
    assert isinstance(fit.family, Gaussian)
    assert_allclose(fit.mean, mean, atol=1e-6)
    assert_allclose(fit.cov, np.eye(10), atol=1e-6)


@pytest.mark.soak
def test_a_banana_from_ten_seeds(curved_exact):
    fits = [qbvi.fit(banana, WIDE, seed=seed) for seed in range(10)]
    claims = [fit for fit in fits if fit.converged]
    good = [abs(fit.evidence - curved_exact.evidence) < max(3 * fit.evidence_se, 0.05) for fit in claims]
    assert len(claims) >= 9
    assert sum(good) >= len(claims) - 1


def two_modes(x):
    left, right = -0.5 * np.sum((x + 4) ** 2), -0.5 * np.sum((x - 4) ** 2)
    return np.logaddexp(math.log(0.7) + left, math.log(0.3) + right) - math.log(2 * math.pi)


# A normal prior around zero leaves the weights as they are. The likelihood under it, per coordinate, is normal.
def two_modes_evidence(sd):
    return -math.log(2 * math.pi * (1 + sd**2)) - 16 / (1 + sd**2)


def test_two_modes_have_their_weights():
    fit = qbvi.fit(two_modes, qbvi.Normal(0, 5, shape=2), seed=1)
    assert fit.converged
    draws = fit.sample(1500, seed=1)
    assert abs(np.mean(draws[:, 0] < 0) - 0.7) < 0.08
    assert abs(fit.evidence - two_modes_evidence(5)) < 0.1
    right = draws[draws[:, 0] > 0]
    assert_allclose(right.mean(axis=0), 4 * 25 / 26, atol=0.25)
    assert_allclose(right.std(axis=0), math.sqrt(25 / 26), rtol=0.25)


@pytest.mark.parametrize("seed", sweep([1, 2, 3], first=1))
def test_two_modes_far_apart_are_found_or_not_called_converged(seed):
    fit = qbvi.fit(two_modes, qbvi.Normal(0, 20, shape=2), seed=seed)
    assert not fit.converged or abs(fit.evidence - two_modes_evidence(20)) < 0.1


def test_a_budget_that_is_too_small_for_a_survey_is_noted():
    def gaussian(x):
        return -0.5 * float(x @ x)

    fits = {n: qbvi.fit(gaussian, qbvi.Normal(0, 5, shape=2), seed=1, max_evals=n) for n in (60, 80, 1000)}
    assert fits[60].notes == (
        "the posterior of the known modes has settled, but the fit ended before it had looked everywhere for other modes",
    )
    assert [fit.converged for fit in fits.values()] == [False, True, True]
    assert abs(fits[60].evidence - fits[1000].evidence) < 0.02
    assert not fits[80].notes


def test_a_budget_for_one_mode_alone_is_not_converged():
    # Two modes take some 140 evaluations.
    assert not qbvi.fit(two_modes, qbvi.Normal(0, 5, shape=2), seed=1, max_evals=75).converged


@pytest.mark.parametrize("seed", sweep([1, 2, 3], first=1))
def test_a_budget_for_one_mode_and_a_survey_finds_two_modes(seed):
    # Half of it, so that there are draws left to check the result.
    fit = qbvi.fit(two_modes, qbvi.Normal(0, 5, shape=2), seed=seed, max_evals=140)
    assert abs(fit.evidence - two_modes_evidence(5)) < 0.15
    assert abs(np.mean(fit.sample(1500, seed=1)[:, 0] < 0) - 0.7) < 0.08


def test_a_search_that_takes_half_of_the_budget_goes_on_when_the_posterior_is_settled():
    fit = qbvi.fit(two_modes, qbvi.Normal(0, 5, shape=2), seed=1, max_evals=240)
    assert fit.converged
    assert fit.evaluations.stage[-1] == "search"
    # The standard error of the evidence is 0.02.
    assert abs(fit.evidence - two_modes_evidence(5)) < 0.06


def two_bananas(x):
    return banana(x[:2]) + banana(x[2:])


def test_long_rounds_are_followed_by_another_look_for_modes():
    fit = qbvi.fit(two_bananas, qbvi.Normal(0, 3, shape=4), seed=2)
    stages = np.asarray(fit.evaluations.stage)
    # The rounds end, another look for modes follows, and at last one for needles: b is free, as a^2 is.
    rows = np.flatnonzero(stages == "step")
    ended, began = int(rows[-1]) + 1, int(np.flatnonzero(stages[: rows[-1]] == "search")[-1]) + 1
    assert ended > 2 * began
    # Six points, three lines of three to the mode from the best of them, a climb of seven, a line from its end.
    assert fit.converged
    # A look for needles is a fifth of the evaluations at most where there are none.
    assert 6 <= len(stages) - ended <= 6 + 9 + 7 + 3 + ended / 5
    assert abs(fit.evidence + 2 * 2.2598) < 3 * fit.evidence_se < 0.1  # by quadrature


def test_a_fit_that_is_looked_at_while_it_searches_is_at_the_best_mode():
    def slope_below(x):  # a hill, and a lower one that leads far away
        return float(np.logaddexp(-0.5 * np.sum((x - 2) ** 2), -5 - 0.5 * np.sum(((x + 12) / 3) ** 2)))

    ask, found = qbvi.Ask(qbvi.Normal(0, 6, shape=3), seed=1), []
    while not ask.done:
        points = ask.ask()
        ask.tell(points, [slope_below(x) for x in points])
        found.append(float(np.mean(ask.fit().sample(200, seed=1)[:, 0] > -2)))
    first = next(i for i, share in enumerate(found) if share > 0.9)
    assert min(found[first:]) > 0.5


def test_hard_edges():
    def cut(x):
        return -0.5 * np.sum(x**2) if x[0] > 0 and x[1] < 0.5 else -np.inf

    fit = qbvi.fit(cut, qbvi.Normal(0, 10, shape=2), seed=1, init=np.array([0.5, -0.5]), on_failure="exclude")
    assert isinstance(fit.family, FreeDensity)
    draws = fit.sample(1000, seed=1)
    outside = (draws[:, 0] < 0) | (draws[:, 1] > 0.5)
    assert outside.mean() < 0.1
    # Half a normal (mean 0.798), and one that is cut half a standard deviation above its mean (mean -0.509).
    assert_allclose(draws.mean(axis=0), [0.798, -0.509], atol=0.15)


@pytest.mark.parametrize("seed", sweep([2, 0, 1, 3, 4, 5], first=1))
def test_a_small_box_of_possible_values(seed):
    """Two per cent of the prior are possible, away from its centre: eighty points may all miss them."""
    low, high = np.array([0.1, 0.7]), np.array([0.2, 0.9])

    def box(x):
        return np.where(np.all((x > low) & (x < high), axis=1), 0.0, -np.inf)

    fit = qbvi.fit(box, qbvi.Uniform(0, 1, shape=2), vectorized=True, seed=seed)
    assert fit.converged
    assert abs(fit.evidence - np.log(0.02)) < 0.15
    assert_allclose(fit.sample(4000, seed=1).mean(axis=0), [0.15, 0.8], atol=0.01)


@pytest.mark.soak
def test_the_structure_of_a_funnel_is_chosen_again():
    """With few points the log scale seems quadratic; held for ever, that took two thousand evaluations.

    One fit of ten does not settle with this budget, and which one depends on rounding.
    """

    def funnel(p):
        return -0.5 * np.sum(p["x"] ** 2) * np.exp(-p["v"]) - 4.5 * p["v"] - 4.5 * np.log(2 * np.pi)

    prior = {"v": qbvi.Normal(0, 3), "x": qbvi.Flat(shape=9)}
    fits = [qbvi.fit(funnel, prior, seed=seed, max_evals=1000) for seed in (1, 2, 3)]
    assert sum(fit.converged for fit in fits) >= 2
    assert all(abs(fit.evidence) < 0.1 for fit in fits)


def test_one_dimension():
    def log_gamma(x):
        return float(2 * x - np.exp(x))

    fit = qbvi.fit(log_gamma, qbvi.Normal(0, 3), seed=1)
    t = np.linspace(-15, 8, 20_000)
    w = np.exp(2 * t - np.exp(t) - t**2 / 18)
    z = w.sum() * (t[1] - t[0]) / (3 * math.sqrt(2 * math.pi))
    w /= w.sum()
    assert fit.converged
    assert abs(fit.evidence - math.log(z)) < 0.05
    assert_allclose(fit.mean, w @ t, atol=0.1)
    assert_allclose(fit.sd, np.sqrt(w @ (t - w @ t) ** 2), rtol=0.1)
    cdf = np.cumsum(w)
    for level in (0.025, 0.5, 0.975):
        assert abs(np.interp(fit.quantiles(level), t, cdf) - level) < 0.02


def test_student_t():
    def student(x):
        return -2.5 * np.sum(np.log1p(x**2 / 4))

    fit = qbvi.fit(student, qbvi.Normal(0, 10, shape=2), seed=1)
    t = np.linspace(-60, 60, 60_000)
    w = np.exp(-2.5 * np.log1p(t**2 / 4) - t**2 / 200)
    z = w.sum() * (t[1] - t[0]) / (10 * math.sqrt(2 * math.pi))
    assert fit.converged
    assert isinstance(fit.family, FreeDensity)
    assert abs(fit.evidence - 2 * math.log(z)) < max(3 * fit.evidence_se, 0.05)
    # The sd of heavy tails is hard to determine; the middle 90 % are not.
    cdf = np.cumsum(w) / w.sum()
    low, high = fit.quantiles(np.array([0.05, 0.95]))
    assert np.all(np.abs(np.interp(low, t, cdf) - 0.05) < 0.03)
    assert np.all(np.abs(np.interp(high, t, cdf) - 0.95) < 0.03)


# --- what is reported


def test_missing_is_below_the_tolerance_when_converged(curved):
    assert curved.converged
    assert curved.stop_kind is qbvi.ending.StopKind.MISSING
    assert 0 <= curved.missing < 0.05
    assert_allclose(curved.evidence - curved.elbo, curved.missing, atol=1e-12)


def test_a_smaller_tolerance_takes_no_fewer_evaluations(curved):
    strict = qbvi.fit(banana, WIDE, seed=2, tol=0.02)
    assert strict.n_evals >= curved.n_evals
    assert not strict.converged or strict.missing < 0.02


def test_the_tolerance_must_be_positive():
    with pytest.raises(ValueError, match="`tol` must be"):
        qbvi.Free(tol=0.0)


@pytest.fixture(scope="module")
def jump():
    """The time of a change of a mean, on a continuous scale: a step function of it, with its exact evidence."""
    t, rng = np.arange(60.0), np.random.default_rng(5)
    y = np.where(t < 31.5, 1.0, 0.0) + rng.normal(0, 0.8, 60)

    def log_likelihood(p):
        r = y - p["rise"] * (t < p["time"])
        return -0.5 * r @ r / 0.64

    # Given the time, the rise is N(0, 1) with a known likelihood; the time is anywhere between two observations.
    k = np.arange(1, 60)
    precision, total = 1 + k / 0.64, np.cumsum(y)[:-1] / 0.64
    given_time = 0.5 * total**2 / precision - 0.5 * np.log(precision) - 0.5 * y @ y / 0.64
    w = np.exp(given_time - given_time.max())
    evidence = given_time.max() + math.log(w.mean())
    mean = w @ (k - 0.5) / w.sum()
    sd = math.sqrt(w @ (k - 0.5 - mean) ** 2 / w.sum() + 1 / 12)
    prior = {"rise": qbvi.Normal(0, 1), "time": qbvi.Uniform(0, 59)}
    return qbvi.fit(log_likelihood, prior, seed=1, max_evals=600), evidence, mean, sd


def test_the_time_of_a_change_settles(jump):
    """The log joint jumps at each observation: a smooth surrogate did not settle within 2,000 evaluations."""
    fit, evidence, mean, sd = jump
    assert fit.converged
    assert fit.family.jumping == (1,)
    assert abs(fit.evidence - evidence) < 0.15
    assert abs(fit.mean["time"] - mean) < 0.15 * sd
    assert fit.sd["time"] == pytest.approx(sd, rel=0.15)


def test_a_posterior_with_jumps_is_loaded_to_the_same_bits(jump, tmp_path):
    fit = jump[0]
    fit.save(tmp_path / "fit.qbvi")
    again = qbvi.load(tmp_path / "fit.qbvi")
    assert again.family == fit.family
    assert_array_equal(again.draw_unconstrained(5, seed=1), fit.draw_unconstrained(5, seed=1))


def test_rounds_of_different_surrogates_give_one_evidence():
    """log Z differs between rounds: each round's ratios belong to its own."""
    method, family = qbvi.Free(), Gaussian(2)
    truth = -7.0
    # Each surrogate is exact up to its constant: log joint minus surrogate is truth - log_z at all draws.
    checks = [_check(np.full(8, truth - log_z), log_z) for log_z in (-9.0, -7.5, -7.1)]
    outcome = method.outcome(family, _judged(_state_in_rounds(method, family), checks, best=checks[-1]))
    assert_allclose(outcome.evidence, truth, atol=1e-9)
    assert outcome.missing < 1e-3  # the nearest Gaussian is not quite the surrogate


@pytest.mark.parametrize(("error", "share"), [(0.001, 1.0), (0.049, 0.0)])
def test_the_evidence_is_that_of_the_surer_one_of_surrogate_and_draws(error, share):
    method, family = qbvi.Free(), Gaussian(2)
    state = _state_in_rounds(method, family)
    current = _with(state.current, log_z=-3.0)
    state = state._replace(current=current._replace(error=error, change=0.0, hope=0.0, log_z_error=0.0))
    # The standard error of the draws is 0.018 with few of them, and 0.0018 with many.
    checks = [_check(np.tile([0.2, 0.0], 8 if share else 800), -2.5) for _ in range(2)]
    outcome = method.outcome(family, _judged(state, checks, best=checks[-1]))
    draws = -2.5 + math.log((1 + math.exp(0.2)) / 2)
    assert_allclose(outcome.evidence, share * -3.0 + (1 - share) * draws, atol=0.01)
    assert outcome.evidence_se > error


def test_draws_of_what_has_changed_since_say_nothing():
    method, family = qbvi.Free(), Gaussian(2)
    bad, good = _check(np.linspace(-8, 0, 8), 0.0), _check(np.zeros(8), 0.0)
    for change, is_settled in [(0.01, False), (1.0, True)]:
        state = _judged(_state_in_rounds(method, family), [bad, good._replace(change=change), good], best=good)
        state = state._replace(current=state.current._replace(change=0.0))
        assert (method._gap(state) < method.tol) == is_settled
        changed = state._replace(current=state.current._replace(change=1.0))
        assert method._gap(changed) == math.inf


def test_noise_in_the_values_does_not_raise_the_evidence(rng):
    """The mean of exp(noise) is above one."""
    method, family = qbvi.Free(), Gaussian(2)
    state = _state_in_rounds(method, family)
    # The surrogate knows little: it expects to be wrong by 0.04 nats, and the draws decide.
    state = state._replace(current=_with(state.current, log_z=-3.0)._replace(error=0.04))
    noise = Noise(np.full(10_000, 0.64))
    checks = [_check(0.8 * rng.standard_normal(10_000), -3.0)._replace(noise=noise) for _ in range(2)]
    outcome = method.outcome(family, _judged(state, checks, best=checks[-1]))
    # The standard error of the log of a mean of 20,000 such exponentials is 0.007; the tolerance is seven of them.
    assert_allclose(outcome.evidence, -3.0, atol=0.05)  # without the correction it is -2.68
    assert_allclose(outcome.elbo, -3.0, atol=0.05)


def test_rounds_that_did_not_settle_give_the_one_that_was_confirmed_best():
    method, family = qbvi.Free(), Gaussian(2)
    state = _state_in_rounds(method, family)
    good, bad = _check(np.full(8, 0.01), 3.0), _check(np.full(8, 2.0), 5.0)._replace(change=1.0)
    outcome = method.outcome(family, _judged(state, [good, bad], best=good))
    assert_allclose(outcome.evidence, 3.01, atol=1e-9)


def test_a_bound_that_its_error_explains_is_given_up_for_a_later_one():
    """One draw where the surrogate is far too low raises the mean of few draws, and its error."""
    method, family = qbvi.Free(), Gaussian(2)
    state = _state_in_rounds(method, family)
    theta = state.current.draws[: 2 * len(state.current.exploring.points)]
    y = -0.5 * np.sum(theta**2, axis=1)
    for bound_se, is_kept in [(0.01, True), (10.0, False)]:
        lucky = Confirmed(state.current, _check(np.zeros(8), 9.0), bound=9.0, bound_se=bound_se)
        after, _ = method._round(family, state._replace(best=lucky), theta, y)
        assert (after.best is lucky) == is_kept


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_lost_round_goes_back_to_what_draws_confirmed(is_confirmed):
    """A posterior that was confirmed for rounds is not given up for one draw far out."""
    method, family = qbvi.Free(), Gaussian(2)
    state = _state_in_rounds(method, family)
    other = np.asarray(state.current.density.unpack(state.current.member).shape) + 0.1
    current = _with(state.current, shape=other)
    check = _check(np.zeros(8) if is_confirmed else np.linspace(-50, 0, 8), 0.0)
    state = state._replace(best=Confirmed(current, check, bound=9.0, bound_se=0.01))
    theta = state.current.draws[: 2 * len(state.current.exploring.points)]
    y = -0.5 * np.sum(theta**2, axis=1)
    y[0] -= 1000.0
    after, _ = method._round(family, state, theta, y)
    shape = after.current.density.unpack(after.current.member).shape
    assert np.allclose(shape, other) == is_confirmed


def test_lost_rounds_send_the_search_further_along_its_path():
    """The Gaussian that rounds began with was too poor. They began anew with it, for as long as the budget lasted."""
    method, family = qbvi.Free(), Gaussian(2)
    state = _state_in_rounds(method, family)._replace(best=None)
    n_path = len(state.search.home.store.y)
    for n_lost in range(1, method.rules.rounds.lost_rounds + 1):
        assert state.current is not None
        theta = state.current.draws[: 2 * len(state.current.exploring.points)]
        y = -0.5 * np.sum(theta**2, axis=1) - np.linspace(0, 50, len(theta))
        state, info = method._round(family, state._replace(best=None), theta, y)
        assert state.n_lost == n_lost % method.rules.rounds.lost_rounds
    assert state.current is None
    # Draws of the lost round say nothing of the path's Gaussian: a fit that ended here had an evidence of -0.4 for -429.
    assert not len(info.h)
    assert not state.search.is_over
    assert not state.search.modes
    assert len(state.search.path.store.y) == n_path


@pytest.mark.parametrize(("below", "hope", "goes_on"), [(4.0, 3.0, True), (1.0, 3.0, False), (4.0, 0.1, False)])
def test_rounds_that_leave_their_mode_behind_send_the_search_after_them(below, hope, goes_on):
    """A search had ended early, and rounds climbed 25 nats by half a nat each. A path takes a few steps for that.

    It goes on where the rounds are, with their points, but not if they are about to end.
    """
    method, family = qbvi.Free(), Gaussian(2)
    state = _state_in_rounds(method, family)
    (mode,), current = state.search.modes, state.current._replace(hope=hope, error=0.0, change=0.0)
    search = state.search._replace(modes=(mode._replace(bound=math.log(2 * math.pi) - below),))
    theta = current.draws[: 2 * len(current.exploring.points)]
    y = -0.5 * np.sum(theta**2, axis=1)
    n_path = len(state.search.home.store.y)
    points = {"theta": np.concatenate([state.theta, theta]), "y": np.concatenate([state.y, y])}
    noise = np.zeros(len(points["y"]))
    after, _ = method._round(family, state._replace(search=search, current=current, noise=noise, **points), theta, y)
    assert (after.current is None) == goes_on
    assert after.search.is_thorough == goes_on
    assert len(after.search.path.store.y) == n_path + (len(theta) if goes_on else 0)
    if goes_on:  # what was confirmed is the result, unless the path is better
        assert method.outcome(family, after) is not None
        better = after.search._replace(bounds=(math.log(2 * math.pi) + 2.0,))
        assert method.outcome(family, after._replace(search=better)) is None
        # The rounds may have begun without a mode, behind walls that no Gaussian knows of.
        walled = after.settled._replace(n_modes=0)
        assert method.outcome(family, after._replace(search=better, settled=walled)) is not None


@pytest.mark.parametrize("n_given", [0, 1])
def test_a_structure_is_sought_before_a_path_goes_on(n_given):
    """In its coordinates rounds reached the posterior in three, where a path took hundreds of evaluations."""

    class Structured(qbvi.Free):
        def _outgrown(self, family, state, bound):
            return state._replace(current=None)

        def _renewed(self, family, state, base):
            assert state.current is None  # it is sought anew
            return state._replace(current=current._replace(density=replace(current.density, n_given=n_given)))

    method, family = Structured(), Gaussian(2)
    state = _state_in_rounds(qbvi.Free(), family)
    current = state.current
    after = method._advanced(family, state, (np.empty((0, 2)), np.empty(0)), 0.0, is_lost=True)
    assert (after.current is not None) == bool(n_given)


def test_a_surrogate_with_less_mass_than_a_mode_is_lost():
    """Draws that all miss the posterior by the same nats seem to miss nothing."""
    method, family = qbvi.Free(), Gaussian(2)
    state = _state_in_rounds(method, family)
    bound = state.search.modes[0].bound
    for log_z, is_lost in [(bound, False), (bound - 1e20, True)]:
        shown = Shown.by((_check(np.zeros(8), log_z),))
        assert method._is_lost(state, shown) == is_lost


@pytest.mark.parametrize("doubt", ["error", "change", "hope"])
def test_a_round_with_open_nats_does_not_settle(doubt):
    method, family = qbvi.Free(), Gaussian(2)
    state, sure = _state_in_rounds(method, family), _check(np.zeros(8), 0.0)
    for check, is_settled in [(sure, True), (sure._replace(**{doubt: 1.0}), False)]:
        assert (method._gap(_judged(state, [sure, check], best=sure)) < method.tol) == is_settled


@pytest.mark.parametrize(("n", "is_settled"), [(8, False), (400, True)])
def test_many_draws_outweigh_what_the_surrogates_expect(n, is_settled):
    """The surrogates expect an error and mass elsewhere of a tenth of a nat. The draws find neither."""
    method, family = qbvi.Free(), Gaussian(2)
    state = _state_in_rounds(method, family)
    state = state._replace(current=state.current._replace(error=0.1, hope=0.2, change=0.0))
    empty = np.where(np.arange(n) % 5 == 0, -np.inf, math.log(1.25)) - 3.0
    check = _check(np.zeros(n), -3.0)._replace(error=0.1, hope=0.2, hoped=empty)
    assert (method._gap(_judged(state, [check] * 3, best=check)) < method.tol) == is_settled
    # They do not outweigh a change of the posterior, nor mass that they found.
    for contrary in ({"change": 0.1}, {"hoped": empty + 0.2}):
        other = check._replace(**contrary)
        assert not method._gap(_judged(state, [other] * 3, best=other)) < method.tol


def test_mass_that_draws_find_counts_though_the_surrogate_does_not_expect_it():
    method, family = qbvi.Free(), Gaussian(2)
    state = _state_in_rounds(method, family)
    found = np.where(np.arange(400) % 5 == 0, -np.inf, math.log(1.25)) - 3.0
    for beyond, is_settled in [(0.0, True), (0.2, False)]:
        check = _check(np.zeros(400), -3.0)._replace(hoped=found + beyond)
        assert (method._gap(_judged(state, [check] * 3, best=check)) < method.tol) == is_settled


def test_of_full_surrogates_the_one_with_the_best_bound_is_kept_and_the_fit_ends():
    family = Gaussian(2)
    state = _state_in_rounds(qbvi.Free(), family)
    n = state.current.density.surface(state.current.member).n_near
    method = qbvi.Free(rules=FreeRules(rounds=Rounds(most_points=n)))
    state = state._replace(best=Confirmed(state.current, _check(np.zeros(8), 0.0), 0.0, 0.1), n_stuck=3)
    full = state.current._replace(rows=np.arange(n))
    worse = Confirmed(full, _check(np.zeros(8), 0.0), -0.05, 0.1)
    assert not method._is_full(state, state.current._replace(rows=np.arange(n - 1)))
    after = method._compared(state, worse)
    assert after.best is state.best
    assert after.n_stuck == 4
    # One that is not full has more points than the one before, and its bound may be lower by the errors.
    growing = worse._replace(current=full._replace(rows=np.arange(n - 1)))
    after = method._compared(state, growing)
    assert after.best is growing
    assert after.n_stuck == 0
    better = worse._replace(bound=1.0)
    after = method._compared(state, better)
    assert after.best is better
    assert after.n_stuck == 0


def test_a_surrogate_that_is_full_and_does_not_improve_ends_the_fit():
    rules = FreeRules(rounds=Rounds(most_points=24, stuck=3))
    fit = qbvi.fit(banana, WIDE, method=qbvi.Free(tol=1e-4, rules=rules), seed=2, max_evals=3000)
    assert fit.stop_kind is qbvi.ending.StopKind.FULL
    assert not fit.converged
    assert fit.n_evals < 1000
    assert "24 points are as many as can be used at once, and 3 rounds" in fit.stop_reason
    assert "surrogate" not in fit.stop_reason  # users do not know the word


def test_rounds_that_are_worse_than_the_gaussian_of_the_search_give_that_gaussian():
    method, family = qbvi.Free(), Gaussian(2)
    state = _state_in_rounds(method, family)
    worse = _check(np.zeros(8), -3.0)._replace(change=1.0)
    outcome = method.outcome(family, _judged(state, [worse], best=worse))
    assert outcome.density is family
    # The function is an unscaled normal density, and the search finds it exactly.
    assert_allclose(outcome.elbo, math.log(2 * math.pi), atol=1e-6)


def test_a_surrogate_without_mass_is_void_though_its_ratios_seem_exact():
    """With claims of minus 1e23 nats, log joint minus log density is zero by rounding."""
    method, family = qbvi.Free(), Gaussian(2)
    state = _state_in_rounds(method, family)
    nothing = _check(np.full(8, 1e23), -1e23)
    assert Shown.by((nothing,)).missing == 0
    assert method._is_void(state, nothing)
    assert not method._is_void(state, _check(np.zeros(8), math.log(2 * math.pi)))


@pytest.mark.parametrize("apart", [1.0, 8.0])
def test_two_gaussians_in_one_funnel_have_its_coordinates_and_two_modes_have_not(apart):
    """Paths that end early at both sides of a funnel look like two modes, until the rounds move them together."""
    rng, d = np.random.default_rng(1), 3
    s = 0.6 * rng.standard_normal(150)
    v = np.exp(s)[:, None] * rng.standard_normal((150, d - 1))
    theta = np.column_stack([s, v])
    y = -0.5 * (s / 0.6) ** 2 - 0.5 * np.sum((v / np.exp(s)[:, None]) ** 2, axis=1) - (d - 1) * s
    base = Base(np.array([0.3, 0.7]), np.array([[0.0, 0.0, 0.0], [0.0, apart, 0.0]]), np.stack([np.eye(d)] * 2))
    method = qbvi.Free()
    state = method.init(Gaussian(d), Gaussian(d).start(np.zeros(d), np.ones(d)))
    points = Points(theta, y, np.zeros(150), np.empty((0, d)))
    surface, _, n_warped = method._surface(state._replace(y=y), base, points, None)
    is_one = apart < method.rules.survey.apart
    assert ([which for which, _ in surface.warp.structure] == [0]) is is_one
    assert n_warped == (150 if is_one else 0)  # else the next search for a kernel looks again


def _check(r, log_z):
    """A round that leaves nothing open."""
    return Check(r, log_z, error=0.0, change=0.0, hope=0.0)


def _with(current, **parts):
    """A posterior with other parts."""
    member = current.density.unpack(current.member)._replace(**parts)
    return current._replace(member=current.density.pack(member))


def _judged(state, checks, best):
    """The state after some rounds, of which one was confirmed best."""
    return state._replace(checks=tuple(checks), best=Confirmed(state.current, best, bound=0.0, bound_se=0.0))


def _state_in_rounds(method, family):
    """A state with a posterior; the search for a Gaussian is over at the first step of a quadratic function."""
    rng = np.random.default_rng(1)
    state = method.init(family, family.start(np.zeros(2), np.ones(2)))
    while state.current is None:
        theta = np.asarray(method.ask(family, state, rng))
        y = -0.5 * np.sum(theta**2, axis=1)
        n = len(y)
        values = qbvi.protocol.Values(y, y, np.ones(n, dtype=bool), np.zeros(n), np.zeros(n, dtype=bool))
        state, _ = method.tell(family, np.zeros(family.size), state, theta, values)
    return state


def test_a_budget_that_ends_inside_the_rounds(stopped):
    assert isinstance(stopped.family, FreeDensity)
    assert not stopped.converged
    assert stopped.stop_kind is qbvi.ending.StopKind.EVALUATIONS
    assert "evaluations" in stopped.stop_reason
    assert stopped.n_evals <= QUICK["max_evals"]
    assert np.isfinite([stopped.elbo, stopped.evidence, stopped.evidence_se, stopped.missing]).all()


def test_a_budget_that_ends_before_the_rounds_gives_a_gaussian():
    fit = qbvi.fit(banana, WIDE, seed=2, max_evals=25)
    assert isinstance(fit.family, Gaussian)
    assert not fit.converged
    assert fit.n_evals <= 25


def test_a_family_by_name_is_one_gaussian_as_before():
    named = qbvi.fit(banana, WIDE, seed=2, family="full")
    method = qbvi.fit(banana, WIDE, seed=2, family="full", method=qbvi.Regression())
    assert_same(named, method)
    assert isinstance(named.family, Gaussian)


# --- noise


@pytest.mark.parametrize("is_known", [True, False])
def test_noise(is_known):
    noise = np.random.default_rng(8)

    def noisy(x):
        value = linear(x) + 0.3 * noise.standard_normal()
        return (value, 0.3) if is_known else value

    fit = qbvi.fit(noisy, qbvi.Normal(0, 2, shape=3), seed=1, max_evals=1500)
    assert abs(fit.evidence - LINEAR_EVIDENCE) < max(3 * fit.evidence_se, 0.15)
    assert_allclose(fit.mean, 4 / 4.25, atol=0.2)
    assert_allclose(fit.sd, math.sqrt(1 / 4.25), rtol=0.25)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("sd", sweep([0.5, 2.0], first=1))
def test_a_noisy_banana_has_the_evidence_and_the_moments_of_quadrature(sd, is_known, curved_exact):
    noise = np.random.default_rng(5)

    def noisy(x):
        value = banana(x) + sd * noise.standard_normal()
        return (value, sd) if is_known else value

    fit = qbvi.fit(noisy, WIDE, seed=1, max_evals=1500)
    assert fit.converged
    assert isinstance(fit.family, FreeDensity)
    assert abs(fit.evidence - curved_exact.evidence) < 3 * fit.evidence_se
    assert fit.evidence_se < 0.4
    # A tenth of a nat moves a mean by half a standard deviation at most (Pinsker), and the best Gaussian is 0.6 off.
    assert np.all(np.abs(fit.mean - curved_exact.mean) < 0.35 * curved_exact.sd)
    assert_allclose(fit.sd, curved_exact.sd, rtol=0.4)


def test_points_evaluated_twice_in_the_rounds_follow_the_noise():
    """The noise is far larger at the start than in the posterior, where the rounds are."""
    noise = np.random.default_rng(6)

    def noisy(x):
        return banana(x) + (1.0 + 0.3 * np.sum(x**2)) * noise.standard_normal()

    fit = qbvi.fit(noisy, WIDE, seed=1, max_evals=400)
    _, counts = np.unique(fit.evaluations.unconstrained, axis=0, return_counts=True)
    assert np.count_nonzero(counts > 1) > 20
    assert np.all(np.isfinite([fit.evidence, fit.evidence_se]))


# --- failures


def test_a_function_that_sometimes_fails():
    whole = qbvi.fit(skewed, WIDE, seed=2)

    def fragile(x):
        if math.sin(97 * x[0]) > 0.7:  # a quarter of all points, everywhere
            raise RuntimeError("no solution")
        return skewed(x)

    fit = qbvi.fit(fragile, WIDE, seed=2, on_failure="exclude")
    assert fit.n_failed > 10
    # A failure is not a likelihood of zero: the evidence does not fall by the share of failures, 0.29 nats.
    assert abs(fit.evidence - whole.evidence) < 0.1
    # They come everywhere alike, so they take nothing away from the posterior.
    assert fit.converged


# --- interruptions


def test_a_callback_that_ends_the_rounds_gives_the_free_posterior():
    fit = qbvi.fit(skewed, WIDE, **QUICK, callback=lambda now: now.n_evals > 70)
    assert isinstance(fit.family, FreeDensity)
    assert fit.stop_kind is qbvi.ending.StopKind.CALLBACK
    assert not fit.converged
    assert np.isfinite(fit.sample(10, seed=1)).all()


def test_ctrl_c_in_the_rounds_gives_the_free_posterior():
    left = [72]

    def interrupted(x):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return skewed(x)

    fit = qbvi.fit(interrupted, WIDE, **QUICK)
    assert isinstance(fit.family, FreeDensity)
    assert "Ctrl-C" in fit.stop_reason
    assert np.isfinite(fit.elbo)


# --- the same bits


def test_ask_and_tell_give_the_same_bits(stopped):
    opt = qbvi.Ask(WIDE, **QUICK)
    while not opt.done:
        points = opt.ask()
        opt.tell(points, [skewed(x) for x in points])
    assert_same(opt.fit(), stopped)


def test_two_processes_give_the_same_bits(stopped):
    assert_same(qbvi.fit(skewed, WIDE, **QUICK, executor=2), stopped)


def test_the_same_seed_gives_the_same_bits(stopped):
    again = qbvi.fit(skewed, WIDE, **QUICK)
    assert_same(again, stopped)
    assert_array_equal(again.sample(5, seed=1), stopped.sample(5, seed=1))


def test_a_vectorised_function_gives_the_same_bits(stopped):
    assert_same(qbvi.fit(skewed, WIDE, **QUICK, vectorized=True), stopped)


class Stopped(BaseException):
    """Ends a fit as nothing that qbvi handles."""


calls = 0
left = -1  # evaluations until the function ends the fit; never if negative


def mortal(x):
    global calls, left
    if left == 0:
        raise Stopped
    left -= 1
    calls += 1
    return skewed(x)


@pytest.mark.parametrize("evaluations", sweep([20, 75, 60], first=2))  # in the search, and in the rounds
def test_a_killed_fit_resumes_to_the_same_bits(evaluations, stopped, tmp_path):
    global calls, left
    calls, left = 0, evaluations
    with pytest.raises(Stopped):
        qbvi.fit(mortal, WIDE, **QUICK, checkpoint=tmp_path / "run")
    left = -1
    assert calls == evaluations
    assert_same(qbvi.fit(mortal, WIDE, **QUICK, checkpoint=tmp_path / "run"), stopped)
    assert calls == stopped.n_evals


def test_a_finished_fit_with_a_larger_budget_goes_on(stopped, tmp_path):
    qbvi.fit(skewed, WIDE, **QUICK, checkpoint=tmp_path / "run")
    larger = {**QUICK, "max_evals": 110}
    more = qbvi.fit(skewed, WIDE, **larger, checkpoint=tmp_path / "run")
    assert more.n_evals > stopped.n_evals
    assert_same(more, qbvi.fit(skewed, WIDE, **larger))


def test_a_saved_fit_is_loaded_to_the_same_bits(stopped, tmp_path):
    stopped.save(tmp_path / "fit.npz")
    again = qbvi.load(tmp_path / "fit.npz")
    assert_same(again, stopped)
    assert again.family == stopped.family
    u = stopped.sample(20, seed=3)
    assert_array_equal(again.sample(20, seed=3), u)
    assert_array_equal(again.log_prob(u, batched=True), stopped.log_prob(u, batched=True))
    assert (again.evidence, again.evidence_se) == (stopped.evidence, stopped.evidence_se)
    assert (again.missing, again.missing_se) == (stopped.missing, stopped.missing_se)


# --- everything that a fit can do


PRIOR = {"rate": qbvi.HalfNormal(3), "shift": qbvi.Normal(0, 3)}


@pytest.fixture(scope="module")
def constrained():
    def skewed(p):
        return 1.5 * np.log(p["rate"]) - 2 * p["rate"] - 0.5 * (p["shift"] - p["rate"] ** 2) ** 2

    fit = qbvi.fit(skewed, PRIOR, seed=2, max_evals=120)
    assert isinstance(fit.family, FreeDensity)
    return fit


def test_summary_and_quantiles(constrained):
    draws = constrained.sample(3000, seed=1)
    levels = np.array([0.1, 0.5, 0.9])
    got = constrained.quantiles(levels)
    for name in constrained.labels:
        # Five standard errors of a share among 3,000 draws, twice: the quantiles are from draws too.
        shares = [np.mean(draws[name] < x) for x in got[name]]
        assert_allclose(shares, levels, atol=0.07)
    for row in constrained.summary():
        assert row.lower < row.mean < row.upper
        assert_allclose(row.mean, draws[row.parameter].mean(), atol=0.2 * row.sd)
        assert_allclose(row.sd, draws[row.parameter].std(), rtol=0.2)
    assert "of free shape" in str(constrained.summary())
    assert "of free shape" in repr(constrained)


def test_the_density_of_constrained_values_has_the_jacobian(constrained):
    draws = constrained.sample(5, seed=2)
    log_p = constrained.log_prob(draws, batched=True)
    u = np.stack([np.log(draws["rate"]), draws["shift"]], axis=1)
    own = constrained.family.log_prob(constrained.q, constrained.model.unconstrain(draws, batched=True))
    jacobian = constrained.model.log_jacobian(constrained.model.unconstrain(draws, batched=True))
    assert_allclose(log_p, own - jacobian)
    assert u.shape == (5, 2)
    assert constrained.log_prob({"rate": -1.0, "shift": 0.0}) == -np.inf


def test_arviz(constrained):
    pytest.importorskip("arviz")
    data = constrained.to_arviz(draws=50, seed=1)
    assert data.posterior["rate"].shape == (1, 50)
    assert (data.posterior["rate"].values > 0).all()


def test_plots(constrained):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    for plot in (constrained.plot_marginals, constrained.plot_pairs, constrained.plot_trace):
        drawn = [ax for ax in plot().axes if ax.has_data()]
        assert len(drawn) >= 2  # one for each of two parameters, or of bound and gap
        pyplot.close("all")


def test_a_free_posterior_is_a_start_for_the_next_fit(stopped):
    fit = qbvi.fit(skewed, WIDE, seed=5, init=stopped, max_evals=60)
    assert np.isfinite(fit.elbo)


def test_its_evaluations_are_taken_by_the_next_fit(stopped):
    fit = qbvi.fit(skewed, WIDE, seed=5, evaluations=stopped, max_evals=60)
    assert fit.n_evals <= 60
    assert np.isfinite(fit.elbo)
    assert len(fit.evaluations) >= stopped.n_evals


def test_there_are_no_factors_of_a_free_posterior(stopped):
    assert stopped.factors == {}


def test_a_search_that_goes_on_in_vain_changes_nothing(monkeypatch):
    """The rounds are not made again if an exchange that was tested before the end is refuted."""

    def bent(p):
        a, b = np.log(p["a"]), np.log(p["b"])
        return -0.5 * ((a - 0.3) / 0.2) ** 2 - 0.5 * ((b + 0.5 - 0.4 * a**2) / 0.3) ** 2

    def once(self, family, state, mode, theta, y):
        if calls:
            return None
        calls.append(mode)
        refuted = Trial(0, float(np.nanmax(y)) + 100.0, 0)  # no image is so high
        survey = state.survey._replace(is_over=False)
        return state._replace(survey=survey, is_over=False, trials=(refuted,), n_reopened=1)

    calls = []
    prior = {"a": qbvi.LogNormal(0, 1), "b": qbvi.LogNormal(0, 1)}
    before = qbvi.fit(bent, prior, seed=1, progress=False)
    monkeypatch.setattr(Search, "reopened", once)
    after = qbvi.fit(bent, prior, seed=1, progress=False)
    assert len(calls) == 1
    assert before.n_evals < after.n_evals <= before.n_evals + 12  # the image, and the end of the search
    assert np.array_equal(after.q, before.q)
    assert (after.evidence, after.converged) == (before.evidence, True)
