"""The sampler of bilby against exact posteriors; ``run_sampler`` itself is called."""

import os

import numpy as np
import pytest
from scipy import integrate, stats

import qbvi

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]

TIME = np.arange(0.0, 10.0, 0.1)
DATA = 0.5 * TIME + 0.2 + np.random.default_rng(123).normal(size=100)


@pytest.fixture(scope="module")
def bilby():
    module = pytest.importorskip("bilby")
    module.core.utils.logger.setLevel("ERROR")
    return module


@pytest.fixture
def run(bilby, tmp_path):
    """Fit a function of named parameters; the likelihood counts its calls."""

    class Likelihood(bilby.Likelihood):
        def __init__(self, function, noise=None, **arrays):
            super().__init__()
            self.function, self.noise, self.calls = function, noise, 0
            vars(self).update(arrays)

        def log_likelihood(self, parameters):
            self.calls += 1
            return self.function(**parameters)

        def noise_log_likelihood(self):
            return np.nan if self.noise is None else self.noise

    def run_sampler(function, priors, label="run", likelihood=None, **options):
        likelihood = Likelihood(function) if likelihood is None else likelihood
        options = {"seed": 1, "save": False, **options}
        result = bilby.run_sampler(
            likelihood=likelihood, priors=priors, sampler="qbvi", outdir=str(tmp_path), label=label, **options
        )
        return result, likelihood

    run_sampler.likelihood = Likelihood
    return run_sampler


def test_linear_regression_agrees_with_the_exact_posterior(bilby, run):
    """The tutorial of bilby; the walls of the priors are 8 standard deviations away or more."""
    uniform = bilby.core.prior.Uniform
    result, likelihood = run(
        lambda m, c: stats.norm.logpdf(DATA, m * TIME + c).sum(), {"m": uniform(0, 5), "c": uniform(-2, 2)}
    )
    design = np.column_stack([TIME, np.ones(100)])
    precision = design.T @ design
    mean, sd = np.linalg.solve(precision, design.T @ DATA), np.sqrt(np.diag(np.linalg.inv(precision)))
    log_z = stats.norm.logpdf(DATA, design @ mean).sum() + np.log(2 * np.pi / 20) - np.linalg.slogdet(precision)[1] / 2
    samples = result.posterior[["m", "c"]]
    assert len(samples) == 5000
    # Five standard errors of the mean of 5,000 draws; the sd of draws is good to 1 %, of q to 4 %.
    assert np.abs((samples.mean() - mean) / sd).max() < 5 / np.sqrt(5000) + 0.02
    np.testing.assert_allclose(samples.std(), sd, rtol=0.06)
    assert abs(result.log_evidence - log_z) < 4 * result.log_evidence_err + 0.01
    assert 0 < result.log_evidence_err < 0.1
    assert result.meta_data["qbvi"]["converged"]
    # bilby itself tries the likelihood twice before a run, and does not spend a hundred calls on timing.
    assert result.num_likelihood_evaluations < likelihood.calls <= result.num_likelihood_evaluations + 2


def test_the_result_is_saved_and_read_by_bilby(bilby, run, tmp_path):
    result, _ = run(lambda x: -0.5 * x**2, {"x": bilby.core.prior.Normal(0, 1)}, save=True, n_samples=100)
    read = bilby.read_in_result(outdir=str(tmp_path), label="run")
    assert read.log_evidence == result.log_evidence
    np.testing.assert_allclose(read.posterior["x"], result.posterior["x"])


def test_a_ratio_to_the_noise_model_gives_bayes_factor_and_evidence(bilby, run):
    likelihood = run.likelihood(None, noise=-10.0)
    likelihood.log_likelihood = lambda parameters: -0.5 * parameters["x"] ** 2
    likelihood.log_likelihood_ratio = lambda parameters: -0.5 * parameters["x"] ** 2 + 10.0
    result, _ = run(None, {"x": bilby.core.prior.Normal(0, 1)}, likelihood=likelihood, use_ratio=True)
    assert result.log_evidence == pytest.approx(-np.log(2) / 2, abs=0.01)  # exact: 1 / sqrt(2)
    assert result.log_bayes_factor == pytest.approx(10 - np.log(2) / 2, abs=0.01)


def test_a_periodic_boundary_is_a_circle(bilby, run):
    """The posterior of the phase has its mode at the ends of the prior."""
    prior = bilby.core.prior.Uniform(0, 2 * np.pi, boundary="periodic")
    result, _ = run(
        lambda phase, a: 20 * np.cos(phase - 0.1) - 0.5 * a**2, {"a": bilby.core.prior.Normal(0, 1), "phase": prior}
    )
    exact = np.log(integrate.quad(lambda t: np.exp(20 * (np.cos(t) - 1)), -np.pi, np.pi)[0] / (2 * np.pi)) + 20
    assert abs(result.log_evidence - (exact - np.log(2) / 2)) < 4 * result.log_evidence_err + 0.01
    phase = result.posterior["phase"]
    assert phase.between(0, 2 * np.pi).all()
    assert 0.2 < (phase > np.pi).mean() < 0.5  # exact: 0.33
    direction = np.angle(np.exp(1j * phase).mean())
    assert direction == pytest.approx(0.1, abs=5 * 0.23 / np.sqrt(5000))
    from qbvi.integrations.bilby import problem_of

    # A default fit would also find the two halves of a posterior that a wall cuts in two.
    assert problem_of(None, {"phase": prior}, ["phase"]).prior["phase"].support == qbvi.Periodic(2 * np.pi)


def test_a_constraint_is_a_likelihood_of_zero(bilby, run):
    prior = bilby.core.prior
    seen = []

    def log_likelihood(x, y):
        seen.append(x + y)
        return -0.5 * ((x - 0.5) ** 2 + y**2)

    def convert(parameters):
        return {**parameters, "total": parameters["x"] + parameters["y"]}

    priors = prior.PriorDict({"x": prior.Uniform(-4, 4), "y": prior.Uniform(-4, 4)}, conversion_function=convert)
    priors["total"] = prior.Constraint(-20, 1.0)
    result, _ = run(log_likelihood, priors)
    exact = integrate.dblquad(
        lambda y, x: np.exp(-0.5 * ((x - 0.5) ** 2 + y**2)), -4, 4, -4, lambda x: min(4, max(-4, 1 - x))
    )[0]
    assert abs(result.log_evidence - np.log(exact / 64)) < 4 * result.log_evidence_err + 0.02
    assert max(seen) <= 1.0
    # A converged fit may miss 0.05 nats, so 4.9 % of its draws may be beyond the border; the standard
    # error of that share is 0.3 %.
    assert (result.posterior["x"] + result.posterior["y"] <= 1.0).mean() > np.exp(-0.05) - 0.01


def test_conditional_priors(bilby, run):
    prior = bilby.core.prior

    def below(reference, a):
        return {"minimum": 0.0, "maximum": a}

    priors = prior.ConditionalPriorDict(
        {"b": prior.ConditionalUniform(below, minimum=0, maximum=1), "a": prior.Uniform(0.5, 2)}
    )
    result, _ = run(lambda a, b: -0.5 * ((a - 1) / 0.2) ** 2 - 0.5 * ((b - 0.4) / 0.1) ** 2, priors)
    exact = integrate.dblquad(
        lambda b, a: np.exp(-0.5 * ((a - 1) / 0.2) ** 2 - 0.5 * ((b - 0.4) / 0.1) ** 2) / a / 1.5,
        0.5,
        2,
        0,
        lambda a: a,
    )[0]
    assert abs(result.log_evidence - np.log(exact)) < 4 * result.log_evidence_err + 0.02
    assert result.posterior["a"].mean() == pytest.approx(0.96, abs=0.03)


def test_fixed_parameters_reach_the_likelihood(bilby, run):
    prior = bilby.core.prior
    result, _ = run(lambda x, shift: -0.5 * (x - shift) ** 2, {"x": prior.Uniform(-10, 10), "shift": 3.0})
    assert result.posterior["x"].mean() == pytest.approx(3.0, abs=5 / np.sqrt(5000))
    assert (result.posterior["shift"] == 3.0).all()


def mortal(x, y):
    """A log-likelihood that fails at a call of which only the environment knows."""
    left = int(os.environ.get("CALLS_LEFT", "1000")) - 1
    os.environ["CALLS_LEFT"] = str(left)
    if left < 0:
        raise MemoryError
    return -0.5 * ((x - 1) ** 2 + (y - x) ** 2)


def test_a_run_that_died_continues_without_repeating_an_evaluation(bilby, run, monkeypatch):
    priors = {"x": bilby.core.prior.Normal(0, 1), "y": bilby.core.prior.Normal(0, 1)}
    monkeypatch.setenv("CALLS_LEFT", "1000")
    whole, counted = run(mortal, priors, label="whole")
    monkeypatch.setenv("CALLS_LEFT", "30")
    with pytest.raises(qbvi.EvaluationError, match="MemoryError"):
        run(mortal, priors, label="mortal")
    monkeypatch.setenv("CALLS_LEFT", "1000")
    resumed, rest = run(mortal, priors, label="mortal")
    assert resumed.log_evidence == whole.log_evidence
    np.testing.assert_array_equal(resumed.samples, whole.samples)
    # bilby tries the likelihood twice before each run.
    assert rest.calls - 2 == counted.calls - 30


def test_another_likelihood_under_the_same_label_is_noticed(bilby, run):
    priors = {"x": bilby.core.prior.Normal(0, 1)}
    first, second = (run.likelihood(lambda x: -(x**2), data=np.array([value])) for value in (1.0, 2.0))
    run(None, priors, likelihood=first)
    with pytest.raises(qbvi.CheckpointError, match="resume=False"):
        run(None, priors, likelihood=second)
    run(None, priors, likelihood=second, resume=False)


def test_what_has_no_place_in_a_fit_is_refused_by_name(bilby, run):
    prior = bilby.core.prior
    with pytest.raises(TypeError, match="prior of 'k' must be continuous, got Categorical"):
        run(lambda k, x: -(x**2), {"k": prior.Categorical(3), "x": prior.Normal(0, 1)})
    with pytest.raises(ValueError, match="prior of 'angle' must be Uniform if its boundary is periodic, got Sine"):
        run(lambda angle: 0.0, {"angle": prior.Sine(boundary="periodic")})


def test_a_prior_without_a_rescale_is_refused_by_name(bilby, run):
    class Odd(bilby.core.prior.Prior):
        def sample(self, size=None):
            return np.zeros(size or 1)

        def rescale(self, val):
            return None

        def prob(self, val):
            return 1.0

    with pytest.raises(ValueError, match=r"prior of 'odd' must have a `rescale`.*Odd"):
        run(lambda odd: 0.0, {"odd": Odd("odd")})
