"""Log-posteriors of PINTS: the toy problems of its own examples, with its priors and its sampler."""

import pickle

import numpy as np
import pytest
import scipy
from scipy import stats

import qbvi

pints = pytest.importorskip("pints", reason="pints is not installed")
pytest.importorskip("pints.toy")
pytestmark = pytest.mark.integrations

TIMES = np.linspace(0, 1000, 60)
NOISE = 12.0


@pytest.fixture(scope="module")
def likelihood():
    """Logistic growth with noise of unknown size: PINTS's first example."""
    import pints.toy

    model = pints.toy.LogisticModel()
    values = model.simulate([0.015, 500.0], TIMES) + NOISE * np.random.default_rng(3).standard_normal(len(TIMES))
    return pints.GaussianLogLikelihood(pints.SingleOutputProblem(model, TIMES, values))


@pytest.fixture(scope="module")
def posterior(likelihood):
    return pints.LogPosterior(likelihood, pints.UniformLogPrior([0.01, 400.0, 5.0], [0.02, 600.0, 50.0]))


@pytest.fixture(scope="module")
def fit(posterior):
    return qbvi.from_pints(posterior, names=["rate", "capacity", "sigma"]).fit(seed=1)


def test_agrees_with_pints_on_its_first_example(posterior, fit):
    np.random.seed(1)  # noqa: NPY002 - the only source of PINTS
    starts = [np.array([0.015, 500.0, 12.0]) * f for f in (0.99, 1.0, 1.01)]
    controller = pints.MCMCController(posterior, 3, starts, method=pints.HaarioBardenetACMC)
    controller.set_max_iterations(4000)
    controller.set_log_to_screen(False)
    chains = controller.run()[:, 1000:]
    pooled = chains.reshape(-1, 3)
    n = sum(min(pints.effective_sample_size(chain)) for chain in chains)
    assert fit.converged
    assert fit.labels == ("rate", "capacity", "sigma")
    # Four standard errors of the chains, and a shift of q within the 0.05 nats that may be missing.
    allowed = 4 / np.sqrt(n) + 0.1
    assert np.max(np.abs(fit.mean - pooled.mean(0)) / pooled.std(0)) < allowed
    np.testing.assert_allclose(fit.sd, pooled.std(0), rtol=allowed)


def test_evidence_is_the_marginal_likelihood(likelihood):
    """Rate and capacity known: the evidence of sigma alone is a one-dimensional integral."""

    class Fixed(pints.LogLikelihood):
        def n_parameters(self):
            return 1

        def __call__(self, x):
            return likelihood([0.015, 500.0, x[0]])

    fit = qbvi.from_pints(pints.LogPosterior(Fixed(), pints.UniformLogPrior([5.0], [50.0]))).fit(seed=1)
    sigma = np.linspace(5.0, 50.0, 4001)
    values = np.array([Fixed()([s]) for s in sigma])
    exact = values.max() + np.log(scipy.integrate.simpson(np.exp(values - values.max()), x=sigma) / 45)
    assert fit.evidence == pytest.approx(exact, abs=0.02 + 4 * fit.evidence_se)


PRIORS = {
    "Beta": (lambda: pints.BetaLogPrior(2, 3), stats.beta(2, 3)),
    "Cauchy": (lambda: pints.CauchyLogPrior(1, 2), stats.cauchy(1, 2)),
    "Exponential": (lambda: pints.ExponentialLogPrior(0.5), stats.expon(scale=2)),
    "Gamma": (lambda: pints.GammaLogPrior(2, 3), stats.gamma(2, scale=1 / 3)),
    "Gaussian": (lambda: pints.GaussianLogPrior(1, 2), stats.norm(1, 2)),
    "HalfCauchy": (lambda: pints.HalfCauchyLogPrior(0, 2), stats.halfcauchy(scale=2)),
    "InverseGamma": (lambda: pints.InverseGammaLogPrior(3, 2), stats.invgamma(3, scale=2)),
    "LogNormal": (lambda: pints.LogNormalLogPrior(0.5, 0.7), stats.lognorm(0.7, scale=np.exp(0.5))),
    "StudentT": (lambda: pints.StudentTLogPrior(1, 4, 2), stats.t(4, 1, 2)),
    "TruncatedGaussian": (lambda: pints.TruncatedGaussianLogPrior(0, 1, -1, 2), stats.truncnorm(-1, 2)),
    "Uniform": (lambda: pints.UniformLogPrior(2, 5), stats.uniform(2, 3)),
}


class NoData(pints.LogLikelihood):
    """A likelihood that says nothing, so that the posterior is the prior."""

    def __init__(self, d):
        self.d = d

    def n_parameters(self):
        return self.d

    def __call__(self, x):
        return 0.0


@pytest.mark.parametrize("name", PRIORS)
def test_every_prior_of_one_parameter_is_reached(name):
    make, exact = PRIORS[name]
    problem = qbvi.from_pints(pints.LogPosterior(NoData(1), make()))
    z = np.linspace(-2.5, 2.5, 7)[:, None]
    theta = problem.prior.support.constrain(z, (1,))
    np.testing.assert_allclose(theta[:, 0], exact.ppf(scipy.special.ndtr(z[:, 0])), rtol=1e-6)


def test_composed_priors_with_parts_of_several_parameters():
    cov = np.array([[1.0, 0.6], [0.6, 2.0]])
    prior = pints.ComposedLogPrior(
        pints.MultivariateGaussianLogPrior([1.0, -1.0], cov),
        pints.UniformLogPrior([0, 1], [2, 5]),
        pints.GammaLogPrior(2, 1),
    )
    problem = qbvi.from_pints(pints.LogPosterior(NoData(5), prior))
    draws = problem.prior.sample(np.random.default_rng(1), 1000)
    # Five standard errors of 1,000 draws.
    np.testing.assert_allclose(np.cov(draws[:, :2].T), cov, atol=5 * 2 * np.sqrt(2 / 1000))
    np.testing.assert_allclose(draws.mean(0), [1, -1, 1, 3, 2], atol=5 * 1.5 / np.sqrt(1000))


def test_boundaries_that_are_no_box_need_a_start():
    class Disc(pints.Boundaries):
        def n_parameters(self):
            return 2

        def check(self, x):
            return x[0] ** 2 + x[1] ** 2 < 4

    class Bell(NoData):
        def __call__(self, x):
            return -10 - 0.5 * float(np.sum((np.asarray(x) / 0.3) ** 2))

    log_posterior = pints.LogPosterior(Bell(2), pints.UniformLogPrior(Disc()))
    with pytest.raises(ValueError, match="`init` must be given, because the prior, a UniformLogPrior, has no map"):
        qbvi.from_pints(log_posterior)
    fit = qbvi.from_pints(log_posterior, init=[0.1, 0.1]).fit(seed=1)
    np.testing.assert_allclose(fit.sd, 0.3, rtol=0.05)


def test_a_prior_whose_map_is_another_one_is_not_trusted():
    class Wrong(pints.GaussianLogPrior):
        def icdf(self, p):
            return super().icdf(p) * 2

    with pytest.raises(ValueError, match=r"the map of the prior, a Wrong, .* does not have its density"):
        qbvi.from_pints(pints.LogPosterior(NoData(1), Wrong(0, 1)))


def test_densities_without_a_prior():
    import pints.toy

    density = pints.toy.GaussianLogPDF([1.0, 2.0], [0.25, 9.0])  # variances
    with pytest.raises(ValueError, match="`init` must be given, because a GaussianLogPDF has no prior"):
        qbvi.from_pints(density)
    with pytest.raises(ValueError, match="`init` must have 2 entries"):
        qbvi.from_pints(density, init=[1.0])
    fit = qbvi.from_pints(density, init=[[0.0, 0.0], [1.0, 1.0], [1.0, 3.0]]).fit(seed=1)
    np.testing.assert_allclose(fit.sd, [0.5, 3.0], rtol=0.05)
    assert fit.evidence == pytest.approx(0.0, abs=0.1)


def test_what_is_no_posterior_is_refused_by_name(posterior, likelihood):
    problem = likelihood.problem()
    prior = posterior.log_prior()
    transformation = pints.LogTransformation(3)
    for given, message in [
        (pints.SumOfSquaresError(problem), "SumOfSquaresError: an error measure is no log-density"),
        (likelihood, "a likelihood alone is no posterior"),
        (prior, "a prior alone is no posterior"),
        (transformation.convert_log_pdf(posterior), "on the scale of the search; pass the log-posterior"),
        (lambda x: 0.0, r"or another pints\.LogPDF, got .*; qbvi\.from_log_prob takes any function"),
    ]:
        with pytest.raises(TypeError, match=message):
            qbvi.from_pints(given)


def test_same_bits_in_processes_and_checkpoints(posterior, fit, tmp_path):
    problem = qbvi.from_pints(posterior)
    assert pickle.loads(pickle.dumps(problem.log_likelihood))(fit.mean) == problem.log_likelihood(fit.mean)
    again = problem.fit(seed=1, executor=2, checkpoint=tmp_path / "run")
    assert again.q.tobytes() == fit.q.tobytes()
    assert problem.fit(seed=1, checkpoint=tmp_path / "run").q.tobytes() == fit.q.tobytes()
    fit.save(tmp_path / "fit")
    assert qbvi.load(tmp_path / "fit", prior=problem).mean.tobytes() == fit.mean.tobytes()


def test_starts_of_chains_are_a_start(posterior, fit):
    starts = [[0.014, 480.0, 11.0], [0.015, 500.0, 12.0]]
    started = qbvi.from_pints(posterior, init=starts).fit(seed=1)
    assert np.max(np.abs(started.mean - fit.mean) / fit.sd) < 0.1
