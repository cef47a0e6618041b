"""Chains that start from a fit: exact whatever the fit, resumable, and used like a fit."""

import concurrent.futures
import math
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import qbvi
from qbvi import archive
from qbvi.families import Gaussian, Mixture, Sample
from qbvi.free.density import FreeDensity
from qbvi.model import Model
from qbvi.proposals import FromPosterior, _source
from qbvi.results import Fit, Report

pytest.importorskip("emcee", reason="emcee is not installed")


def quartic(x):
    return -(x**4)


def banana(u):
    return -0.5 * ((u[..., 0] / 1.5) ** 2 + ((u[..., 1] + 0.5 * u[..., 0] ** 2) / 0.5) ** 2)


@pytest.fixture(scope="module")
def fit():
    return qbvi.fit(quartic, qbvi.Normal(0, 1), family="full", seed=1)


@pytest.fixture(scope="module")
def chains(fit):
    return fit.mcmc(8000, seed=1)


def exact_moments(log_density, low=-8.0, high=8.0):
    t = np.linspace(low, high, 8001)
    w = np.exp(log_density(t) - log_density(t).max())
    mean = w @ t / w.sum()
    return mean, math.sqrt(w @ (t - mean) ** 2 / w.sum())


def test_moments_are_those_of_the_posterior(fit, chains):
    mean, sd = exact_moments(lambda t: quartic(t) - 0.5 * t**2)
    assert abs(fit.sd - sd) > 0.02  # the Gaussian that it starts from is too narrow
    ess = float(chains.ess[0])
    assert ess > 1000
    assert abs(chains.mean - mean) < 4 * sd / ess**0.5
    assert abs(chains.sd - sd) < 4 * sd / (2 * ess) ** 0.5
    assert chains.converged
    assert chains.rhat[0] < 1.05


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_a_wrong_fit_gives_the_same(scale):
    """The posterior is exactly N(1, 0.5); the fit is half or twice as wide, and in the wrong place."""
    model = Model(qbvi.Normal(0, 1))
    q = Gaussian(1).start(np.array([0.3]), np.array([scale * math.sqrt(0.5)]))
    wrong = Fit(model, Gaussian(1), q, Report(missing=0.1, missing_se=0.1, seed=1))
    chains = wrong.mcmc(8000, lambda x: -0.5 * (x - 2.0) ** 2)
    ess = float(chains.ess[0])
    assert abs(chains.mean - 1.0) < 4 * math.sqrt(0.5 / ess)
    assert abs(chains.sd / math.sqrt(0.5) - 1) < 4 / (2 * ess) ** 0.5


@pytest.fixture(scope="module")
def rough():
    """A posterior of free shape, that of another function than the chains have."""
    fit = qbvi.fit(banana, qbvi.Normal(0, 3, shape=2), seed=1)
    assert isinstance(fit.family, FreeDensity)
    return fit


class TestFreeShape:
    def test_the_candidates_have_the_density_that_is_computed(self, rough):
        """The mean over draws of any density over theirs is one: here of a Gaussian in the middle."""
        source = _source(rough.family, rough.q)
        u = source.draw(np.random.default_rng(1), 20_000)
        mean, cov = rough.unconstrained
        apart = np.linalg.solve(np.linalg.cholesky(cov / 4), (u - mean).T)
        log_p = -0.5 * np.sum(apart**2, axis=0) - math.log(2 * math.pi) - 0.5 * np.linalg.slogdet(cov / 4)[1]
        ratio = np.exp(log_p - source.log_prob(u))
        assert abs(ratio.mean() - 1) < 4 * ratio.std() / 20_000**0.5

    def test_the_inner_chain_leaves_the_surrogate_unchanged(self, rough):
        """Draws of q, moved: their log densities keep their mean, within four errors of 2,000 draws."""
        rng = np.random.default_rng(2)
        u = rough.draw_unconstrained(2000, rng)
        moved, factor = FromPosterior(rough.family, rough.q)(u, rng)
        log_q = [rough.family.log_prob(rough.q, x) for x in (u, moved)]
        assert_allclose(factor, log_q[0] - log_q[1])
        assert np.mean(np.any(moved != u, axis=1)) > 0.9
        assert abs(log_q[0].mean() - log_q[1].mean()) < 4 * math.hypot(log_q[0].std(), log_q[1].std()) / 2000**0.5

    def test_moments_of_the_posterior(self, rough):
        other = lambda u: banana(1.2 * u + 0.2)
        chains = rough.mcmc(12_000, other, vectorized=True, seed=3)
        t = np.linspace(-8, 8, 321)
        grid = np.stack(np.meshgrid(t, np.linspace(-20, 4, 481), indexing="ij"), axis=-1)
        w = np.exp(other(grid) - np.sum(grid**2, axis=-1) / 18)
        mean = np.tensordot(w, grid, 2) / w.sum()
        sd = np.sqrt(np.tensordot(w, (grid - mean) ** 2, 2) / w.sum())
        assert np.all(np.abs(chains.mean - mean) < 4 * sd / np.sqrt(chains.ess))
        # The second coordinate is skewed, with a kurtosis of about six more than a normal's.
        assert_allclose(chains.sd, sd, rtol=4 * math.sqrt(8 / 4 / chains.ess.min()))


def test_proposals_from_a_mixture_with_a_free_part(rough):
    mixture = Mixture((rough.family, Gaussian(2)))
    q = mixture.pack([0.7, 0.3], [rough.q, Gaussian(2).start(np.full(2, 2.0), np.ones(2))])
    source = _source(mixture, q)
    u = source.draw(np.random.default_rng(1), 4000)
    ratio = np.exp(Gaussian(2).log_prob(Gaussian(2).start(np.full(2, 2.0), 0.8 * np.ones(2)), u) - source.log_prob(u))
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / 4000**0.5
    assert FromPosterior(mixture, q)(u[:5], np.random.default_rng(1))[0].shape == (5, 2)


def test_supports_and_native_families():
    """A variance with a family of its own, on its own scale, and a switch that steps cannot cross."""
    y = np.random.default_rng(1).normal(2.0, 1.0, 20)

    def log_likelihood(p):
        return float(np.sum(-0.5 * (y - p["mu"]) ** 2 / p["s2"] - 0.5 * np.log(p["s2"])))

    prior = {"mu": qbvi.Normal(0, 5), "s2": qbvi.InverseGamma(2, 2)}
    fit = qbvi.fit(log_likelihood, prior, family={"s2": "inverse-gamma"}, seed=1)
    chains = fit.mcmc(6000, seed=1)
    assert np.all(chains.draws["s2"] > 0)
    s2 = np.linspace(0.05, 12, 4000)  # the mean integrated out
    v = 1 / (20 / s2 + 1 / 25)
    log_p = -10 * np.log(s2) + 0.5 * np.log(v) - 3 * np.log(s2) - 2 / s2
    log_p += -0.5 * np.sum(y**2) / s2 + 0.5 * v * (y.sum() / s2) ** 2
    w = np.exp(log_p - log_p.max())
    mean = w @ s2 / w.sum()
    sd = math.sqrt(w @ (s2 - mean) ** 2 / w.sum())
    assert abs(chains.mean["s2"] - mean) < 4 * sd / chains.ess[1] ** 0.5


def test_whole_numbers_of_a_family_of_their_own():
    prior = {"on": qbvi.Bernoulli(0.5), "x": qbvi.Normal(0, 1)}
    fit = qbvi.fit(lambda p: -0.5 * (p["x"] - p["on"]) ** 2 + 0.7 * p["on"], prior, seed=1)
    chains = fit.mcmc(4000, seed=1)
    on = chains.draws["on"]
    assert set(np.unique(on)) == {0.0, 1.0}
    exact = 1 / (1 + math.exp(-0.7) * math.exp(0.25))  # the normal integrated out: exp(0.7 - 1 / 4)
    assert abs(on.mean() - exact) < 4 * math.sqrt(exact * (1 - exact) / chains.ess[0])


def test_an_angle_stays_in_one_period():
    prior = {"phi": qbvi.Uniform(0, 2 * math.pi, periodic=True)}
    fit = qbvi.fit(lambda p: 4 * math.cos(p["phi"] - 3.0), prior, seed=1)
    chains = fit.mcmc(3000, seed=1)
    _, sd = exact_moments(lambda t: 4 * np.cos(t), -math.pi, math.pi)
    assert abs(chains.sd["phi"] - sd) < 5 * sd / math.sqrt(2 * chains.ess[0])
    assert np.ptp(chains._sample.draws(chains.q)) < 2 * math.pi


class TestRuns:
    def test_the_same_seed_and_executors_give_the_same(self, fit):
        first = fit.mcmc(320, seed=5)
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            second = fit.mcmc(320, quartic, executor=threads, seed=5)
        assert_array_equal(first.q, second.q)
        assert not np.array_equal(first.q, fit.mcmc(320, seed=6).q)

    def test_resumed_after_an_interruption(self, tmp_path, monkeypatch):
        calls, limit = [0], [10**9]

        def function(x):
            calls[0] += 1
            if calls[0] > limit[0]:
                raise KeyboardInterrupt
            return -(x**4)

        monkeypatch.setattr("qbvi.mcmc._SAVE_EVERY", 0.0)
        fit = qbvi.fit(function, qbvi.Normal(0, 1), family="full", seed=1)
        whole = fit.mcmc(640, seed=2)
        n = whole.n_evals
        limit[0] = calls[0] + n // 2
        path = tmp_path / "chains"
        with pytest.raises(KeyboardInterrupt):
            fit.mcmc(640, seed=2, checkpoint=path)
        limit[0], before = 10**9, calls[0]
        again = fit.mcmc(640, seed=2, checkpoint=path)
        assert_array_equal(again.q, whole.q)
        assert calls[0] - before < 0.6 * n
        assert again.n_evals >= n
        assert_array_equal(fit.mcmc(640, seed=2, checkpoint=path).q, whole.q)  # a run that is complete
        with pytest.raises(qbvi.CheckpointError, match="is of other chains"):
            fit.mcmc(640, seed=3, checkpoint=path)
        header, arrays = archive.read(path)
        archive.write(path, header, {name: array for name, array in arrays.items() if name != "place"})
        with pytest.raises(qbvi.CheckpointError, match="is damaged"):
            fit.mcmc(640, seed=2, checkpoint=path)
        path.write_text("x")
        with pytest.raises(qbvi.CheckpointError, match="not a checkpoint of `mcmc`"):
            fit.mcmc(640, seed=2, checkpoint=path)

    def test_failures_are_rejected_if_the_fit_excludes_them(self):
        def function(x):
            if x > 1.5:
                raise ArithmeticError("no root")
            return -0.5 * x**2

        fit = qbvi.fit(function, qbvi.Normal(0, 1), on_failure="exclude", seed=1)
        chains = fit.mcmc(2000, seed=1)
        assert chains.draws.max() <= 1.5
        assert chains.n_failed > 0
        with pytest.raises(qbvi.EvaluationError, match="no root"):
            fit.mcmc(2000, function, seed=1)

    def test_zero_likelihood_is_rejected(self, fit):
        chains = fit.mcmc(2000, lambda x: -(x**4) if x > 0 else -math.inf, seed=1)
        assert chains.draws.min() > 0


class TestLikeAFit:
    def test_draws_quantiles_and_predictions(self, chains):
        draws = chains.draws
        assert draws.shape == (8000,)
        assert chains.sample(100, seed=1).shape == (100,)
        assert set(chains.sample(100, seed=1)) <= set(draws)
        assert_allclose(chains.quantiles(0.9), np.quantile(draws, 0.9))
        assert_allclose(chains.interval(0.5), np.quantile(draws, [0.25, 0.75]))
        assert chains.predict(lambda x: x**2, n=50, seed=1).draws.shape == (50,)
        found = chains.expect(lambda x: x**2)
        assert_allclose(found.value, np.mean(draws**2))
        assert 8000 > found.ess > 500
        assert found.se == pytest.approx(np.std(draws**2) / found.ess**0.5)
        assert chains.expect(lambda x: np.stack([x, x], axis=-1), vectorized=True).value.shape == (2,)

    def test_the_table_shows_the_fit_beside_it(self, fit, chains):
        row = chains.summary().sampled[0]
        assert (row.q_mean, row.q_sd) == (fit.mean, fit.sd)
        text = repr(chains)
        assert "mean of q" in text
        assert "r-hat" in text
        assert "of 32 walkers" in text
        frame = chains.summary().to_pandas()
        assert list(frame.columns) == ["mean", "sd", "lower", "upper", "q_mean", "q_sd", "ess", "rhat"]
        assert "<th>r-hat</th>" in chains.summary()._repr_html_()

    def test_saved_and_loaded(self, chains, tmp_path):
        chains.save(tmp_path / "chains.qbvi")
        loaded = qbvi.load(tmp_path / "chains.qbvi")
        assert isinstance(loaded, qbvi.MCMC)
        assert_array_equal(loaded.q, chains.q)
        assert_array_equal(loaded.rhat, chains.rhat)
        assert loaded.start is None
        assert "mean of q" not in repr(loaded)

    def test_exported_as_chains(self, chains):
        data = chains.to_arviz()
        assert data.posterior["theta"].shape == (32, 250)
        assert_array_equal(data.sample_stats["lp"].values, chains.log_joint)
        assert_allclose(
            chains.log_joint[0], quartic(x := chains.draws[:250]) - 0.5 * x**2 - 0.5 * math.log(2 * math.pi)
        )

    def test_leave_one_out_of_chains(self):
        y = np.array([0.3, 1.1, 0.9, 1.7, 0.2])
        fit = qbvi.fit(lambda m: -0.5 * (y - m) ** 2, qbvi.Normal(0, 2), pointwise=True, seed=1)
        chains = fit.mcmc(8000, seed=1)
        assert abs(chains.loo(2000).elpd - fit.loo(2000).elpd) < 0.1
        data = chains.to_arviz(draws=640)
        assert data.log_likelihood["y"].shape == (32, 21, 5)

    def test_pictures(self, chains):
        assert chains.plot_marginals().axes

    def test_no_density(self, chains):
        with pytest.raises(TypeError, match="known by its draws"):
            chains.log_prob(0.0)
        with pytest.raises(TypeError, match="known by its draws alone: call it on"):
            chains.mcmc()
        with pytest.raises(TypeError, match="`check` judges a density"):
            chains.check(10)

    def test_starting_points_for_other_samplers(self):
        prior = {"a": qbvi.Normal(0, 1), "b": qbvi.LogNormal(0, 1, shape=2)}
        fit = Fit(Model(prior), Gaussian(3), Gaussian(3).start(np.zeros(3), np.ones(3)), Report())
        walkers = fit.walkers(10, seed=1)
        assert walkers.shape == (10, 3)
        assert_array_equal(walkers[:, 1:], fit.sample(10, seed=1)["b"])
        starts = fit.to_pymc_start(3, seed=1)
        assert len(starts) == 3
        assert starts[0]["b"].shape == (2,)
        assert_array_equal(starts[2]["a"], fit.sample(3, seed=1)["a"][2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 100}, "`n` must be at least 256, 8 draws of each of the 32 walkers"),
        ({"n_walkers": 7}, "`n_walkers` must be even and at least 2"),
        ({"warmup": -1}, "`warmup` must be at least 0"),
        ({"checkpoint": 3}, "`checkpoint` must be the path"),
        ({"progress": 3}, "`progress` must be True or False"),
        ({"log_likelihood": lambda x: (-(x**2), 0.5)}, "must have no noise for a Markov chain"),
    ],
)
def test_mistakes(fit, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fit.mcmc(**options)


def test_functions_that_are_not_known(fit):
    bare = Fit(fit.model, fit.family, fit.q, fit.record)
    with pytest.raises(ValueError, match="does not know its function"):
        bare.mcmc()
    y = np.ones(20)
    partial = qbvi.fit(
        lambda m, y: -0.5 * float(np.sum((y - m) ** 2)), qbvi.Normal(0, 1), data=y, batch_size=5, max_evals=200, seed=1
    )
    with pytest.raises(ValueError, match="mini-batches"):
        partial.mcmc()


def test_without_emcee(fit, monkeypatch):
    monkeypatch.setitem(sys.modules, "emcee", None)
    with pytest.raises(ImportError, match=r"pip install 'qbvi\[mcmc\]'"):
        fit.mcmc()


def test_few_draws_do_not_count_as_converged(fit):
    chains = fit.mcmc(256, warmup=0, seed=1)
    assert not chains.converged
    assert "more draws are needed, as in fit.mcmc(512)" in chains.stop_reason
    assert isinstance(chains.family, Sample)
