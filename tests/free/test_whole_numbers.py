"""Whole numbers of many values beside continuous parameters, against sums over all of their values."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import betaln, gammaln, logsumexp
from scipy.stats import binom, poisson

import qbvi
from qbvi.families import Gaussian, Mixture
from qbvi.free.cells import Cells
from qbvi.free.density import FreeDensity
from qbvi.free.kernel import Kernel
from qbvi.report import Report
from qbvi.results import Fit
from qbvi.supports import WholeNumbers

CAUGHT = np.array([31, 24, 27, 22, 29])
RECAPTURE = {"N": qbvi.Poisson(100.0), "p": qbvi.Beta(1, 1)}
Y = np.random.default_rng(3).poisson(np.where(np.arange(60) < 22, 4.0, 2.0))
SWITCH = {"t": qbvi.Categorical(np.full(60, 1 / 60)), "a": qbvi.Gamma(2, 1), "b": qbvi.Gamma(2, 1)}


def recapture(point):
    """How many animals there are, and how easily each is caught."""
    if point["N"] < CAUGHT.max():
        return -math.inf
    return float(binom.logpmf(CAUGHT, point["N"], point["p"]).sum())


def recapture_logs():
    """Log of the evidence with each number of animals, p integrated out: (400,)."""
    n, total = np.arange(400), CAUGHT.sum()
    logs = np.full(400, -math.inf)
    at = n[n >= CAUGHT.max()]
    ways = sum(gammaln(at + 1) - gammaln(y + 1) - gammaln(at - y + 1) for y in CAUGHT)
    logs[at] = poisson.logpmf(at, 100) + ways + betaln(1 + total, 1 + 5 * at - total)
    return logs


def switch(point):
    """Counts whose rate changes."""
    rate = np.where(np.arange(60) < point["t"], point["a"], point["b"])
    return float(np.sum(Y * np.log(rate) - rate - gammaln(Y + 1)))


def switch_logs():
    """Log of the evidence with each time of the change, both rates integrated out: (60,)."""
    t, before = np.arange(60), np.r_[0, np.cumsum(Y)][:60]
    sides = (before + 2.0, t + 1.0), (Y.sum() - before + 2.0, 61.0 - t)
    return sum(gammaln(a) - a * np.log(b) for a, b in sides) - math.log(60) - gammaln(Y + 1).sum()


CASES = {"recapture": (recapture, RECAPTURE, "N", recapture_logs), "switch": (switch, SWITCH, "t", switch_logs)}


@pytest.fixture(scope="module")
def recaptured():
    return qbvi.fit(recapture, RECAPTURE, seed=1)


@pytest.mark.parametrize("name", CASES)
def test_the_posterior_of_a_whole_number_is_that_of_the_sum(name, recaptured):
    """Tolerances leave room for a sample of 4,000; the switch takes up to 758 evaluations with other seeds."""
    f, prior, whole, logs_of = CASES[name]
    fit, logs = recaptured if name == "recapture" else qbvi.fit(f, prior, seed=0), logs_of()
    exact = np.exp(logs - logsumexp(logs))
    assert fit.converged, fit.stop_reason
    assert fit.n_evals < 500
    assert abs(fit.evidence - logsumexp(logs)) < 3 * fit.evidence_se + 0.02
    x = fit.sample(4_000, seed=1)[whole]
    assert_array_equal(x, np.round(x))
    shares = np.bincount(x.astype(int), minlength=len(exact)) / len(x)
    assert 0.5 * np.abs(shares - exact).sum() < 0.1  # two samples of this size are 0.04 apart
    value = np.arange(len(exact))
    mean, sd = exact @ value, math.sqrt(exact @ value**2 - (exact @ value) ** 2)
    assert abs(x.mean() - mean) < 0.1 * sd
    assert abs(x.std() / sd - 1) < 0.2  # a few values far out, of small mass, may be missing


def test_probabilities_of_a_whole_number_alone_sum_to_one():
    """Seventeen are seen, each with probability 0.4: the others are Poisson with rate 30."""
    f = lambda n: float(binom.logpmf(17, n, 0.4)) if n >= 17 else -math.inf
    fit = qbvi.fit(f, qbvi.Poisson(50.0), seed=0)
    assert fit.converged
    mass = np.exp(fit.log_prob(np.arange(400.0), batched=True))
    assert_allclose(mass.sum(), 1.0, atol=0.01)  # the integral is by 3,000 draws
    assert 0.5 * np.abs(mass - poisson.pmf(np.arange(400) - 17, 30)).sum() < 0.03
    assert abs(fit.mean - 47) < 0.5
    assert abs(fit.sd / math.sqrt(30) - 1) < 0.05
    assert fit.log_prob(20.5) == -math.inf
    assert fit.log_prob(-1.0) == -math.inf
    assert_array_equal(fit.quantiles([0.1, 0.9]), np.round(fit.quantiles([0.1, 0.9])))


def test_a_probability_times_a_density_sums_and_integrates_to_one(recaptured):
    n, p = np.arange(50.0, 180.0), np.linspace(0.1, 0.6, 60)
    grid = {"N": np.repeat(n, len(p)), "p": np.tile(p, len(n))}
    mass = np.exp(recaptured.log_prob(grid, batched=True)).reshape(len(n), -1) * (p[1] - p[0])
    assert_allclose(mass.sum(), 1.0, atol=0.02)
    x = recaptured.sample(4_000, seed=3)["N"]
    shares = np.array([np.mean(x == value) for value in n])
    assert 0.5 * np.abs(shares - mass.sum(axis=1)).sum() < 0.1  # a perfect sample of this size is 0.04 away


def test_the_density_is_the_same_all_over_a_cell_but_for_the_known_factor(recaptured):
    cells, family = recaptured.family.cells, recaptured.family
    low, high = WholeNumbers().cell(np.array([90.0]))
    u = np.column_stack([np.linspace(low[0] + 1e-9, high[0] - 1e-9, 7), np.full(7, -0.9)])
    log_q = family.log_prob(recaptured.q, u) - cells.slope(u)
    assert_allclose(log_q, log_q[0], rtol=0, atol=1e-9)


def test_such_a_fit_does_what_every_fit_does(recaptured, tmp_path):
    fit = recaptured
    assert isinstance(fit.family, FreeDensity)
    assert "free shape" in str(fit.summary())
    fit.save(tmp_path / "fit.qbvi")
    back = qbvi.load(tmp_path / "fit.qbvi")
    assert_array_equal(back.sample(50, seed=2)["N"], fit.sample(50, seed=2)["N"])
    assert back.log_prob({"N": 90, "p": 0.3}) == fit.log_prob({"N": 90, "p": 0.3})
    resumed = qbvi.fit(recapture, RECAPTURE, seed=1, checkpoint=tmp_path / "run.ckpt")
    assert_array_equal(qbvi.fit(recapture, RECAPTURE, seed=1, checkpoint=tmp_path / "run.ckpt").q, resumed.q)
    assert_array_equal(resumed.q, fit.q)
    checked = fit.check(300)
    assert checked.converged
    assert abs(checked.evidence - logsumexp(recapture_logs())) < 3 * checked.evidence_se + 0.02
    table = fit.evaluations
    assert_array_equal(table.points[:, 0], np.round(table.points[:, 0]))


def test_asked_for_one_by_one_the_posterior_is_the_same(recaptured):
    opt = qbvi.Ask(RECAPTURE, seed=1)
    while not opt.done:
        points = opt.ask()
        for point, number in zip(points, points.ids, strict=True):
            assert float(point["N"]).is_integer()
            opt.tell(number, recapture(point))
    assert_array_equal(opt.fit().q, recaptured.q)


@pytest.mark.parametrize(
    ("prior", "kwargs"),
    [
        ({"k": qbvi.Categorical([0.2, 0.3, 0.5]), "x": qbvi.Normal(0, 1)}, {}),
        ({"z": qbvi.Bernoulli(0.5), "n": qbvi.Poisson(9.0)}, {}),
        ({"n": qbvi.Poisson(9.0), "x": qbvi.Normal(0, 1, shape=12)}, {}),
        ({"n": qbvi.Poisson(9.0), "x": qbvi.Normal(0, 1)}, {"family": {"n": "poisson"}}),
        ({"n": qbvi.Poisson(9.0), "x": qbvi.Normal(0, 1)}, {"method": "mean-field"}),
    ],
    ids=["few values", "with a switch", "many dimensions", "by name", "by method"],
)
def test_whole_numbers_keep_a_family_of_their_own(prior, kwargs):
    fit = qbvi.fit(lambda point: 0.0 * sum(np.sum(x) for x in point.values()), prior, seed=0, max_evals=60, **kwargs)
    assert set(fit.factors) == {name for name in prior if name != "x"}


def posterior(prior, *gaussians):
    """A fit by hand: a Gaussian, or a mixture of two, in the coordinates of the prior."""
    model, family = qbvi.model.Model(prior), Gaussian(2)
    members = [family.from_moments(np.array(mean), np.array(cov)) for mean, cov in gaussians]
    if len(members) == 1:
        return Fit(model, family, members[0], Report())
    mixture = Mixture((family, family))
    return Fit(model, mixture, mixture.pack([0.4, 0.6], members), Report())


ONE = ([0.3, -0.2], [[0.5, 0.3], [0.3, 0.6]])
NARROW = ([1.0, 0.4], [[1e-4, 0.0], [0.0, 0.2]])


@pytest.mark.parametrize("gaussians", [[ONE], [NARROW], [ONE, NARROW]], ids=["wide", "narrow", "mixture"])
def test_the_probabilities_of_a_gaussian_are_those_of_its_cells(gaussians):
    """What a fit returns that ends before the posterior is free."""
    fit = posterior({"k": qbvi.Categorical(np.full(10, 0.1)), "x": qbvi.Normal(0, 1)}, *gaussians)
    x = np.linspace(-7, 7, 2001)
    grid = {"k": np.repeat(np.arange(10.0), len(x)), "x": np.tile(x, 10)}
    mass = np.exp(fit.log_prob(grid, batched=True)).reshape(10, -1).sum(axis=1) * (x[1] - x[0])
    assert_allclose(mass.sum(), 1.0, rtol=1e-9)
    drawn = np.bincount(fit.sample(40_000, seed=1)["k"].astype(int), minlength=10) / 40_000
    assert np.all(np.abs(drawn - mass) < 5 * np.sqrt(mass / 40_000) + 1e-9)


def test_two_whole_numbers_of_a_gaussian_sum_to_one():
    fit = posterior({"k": qbvi.Categorical(np.full(10, 0.1)), "n": qbvi.Poisson(2.0)}, ONE)
    k, n = np.meshgrid(np.arange(10.0), np.arange(60.0), indexing="ij")
    mass = np.exp(fit.log_prob({"k": k.ravel(), "n": n.ravel()}, batched=True))
    assert_allclose(mass.sum(), 1.0, atol=1e-4)


def test_a_rough_function_is_known_only_near_its_points():
    """A smooth kernel knows what is between two points, a rough one next to nothing more than at one of them."""
    a, b = np.array([[0.0]]), np.array([[0.2]])
    smooth, rough = (Kernel(1.0, 0.2, 0.3, (0,), share, 1.0)(a, b)[0, 0] for share in (0.0, 1.0))
    assert_allclose([smooth, rough], [math.exp(-0.02), math.exp(-0.2)])
    for columns in ((), (1,), (0, 2)):
        z = np.random.default_rng(0).standard_normal((30, 3))
        assert np.linalg.eigvalsh(Kernel(1.5, 0.2, 0.3, columns, 0.6, 2.0)(z, z)).min() > -1e-10


def test_a_search_starts_with_a_cell_at_least():
    cells = Cells((0,), (WholeNumbers(0, 9),))
    scale = cells.start_scale(np.zeros(2), np.full(2, 1e-3), np.ones(2))
    low, high = WholeNumbers(0, 9).cell(np.array([5.0]))
    assert_allclose(scale, [(high - low)[0], 1e-3], rtol=0.1)
