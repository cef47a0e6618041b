"""PyMC models against exact posteriors and PyMC's own log densities."""

import pickle
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import qbvi
from qbvi.model import Model

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]

X = np.linspace(0.0, 9.0, 10)
Y = 0.4 * X + 3.0 + np.random.default_rng(716743).normal(size=10)


@pytest.fixture(scope="module")
def pm():
    """PyMC, whose compiler takes longer than these models."""
    pymc = pytest.importorskip("pymc")
    import pytensor

    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield pymc


@pytest.fixture(scope="module")
def line(pm):
    """PyMC's example of a black-box likelihood: a line through ten points, as an Op."""
    import pytensor.tensor as pt
    from pytensor.graph import Apply, Op

    class LogLikelihood(Op):
        def __init__(self):
            self.calls = 0

        def make_node(self, m, c, sigma, x, data):
            return Apply(self, [pt.as_tensor(v) for v in (m, c, sigma, x, data)], [pt.vector()])

        def perform(self, node, inputs, outputs):
            self.calls += 1
            m, c, sigma, x, data = inputs
            outputs[0][0] = np.asarray(stats.norm.logpdf(data, m * x + c, sigma))

    op = LogLikelihood()
    with pm.Model() as model:
        m = pm.Uniform("m", -10.0, 10.0)
        c = pm.Uniform("c", -10.0, 10.0)
        pm.CustomDist("y", m, c, 1.0, X, observed=Y, logp=lambda data, m, c, s, x: op(m, c, s, x, data))
        pm.Deterministic("at_nine", m * 9.0 + c)
    problem = qbvi.from_pymc(model)
    before = op.calls
    return problem, problem.fit(seed=1), op.calls - before


def exact_line():
    """Mean, sd and log evidence of the line; the prior's walls are 11 sd away or more."""
    design = np.column_stack([X, np.ones(10)])
    precision = design.T @ design
    mean = np.linalg.solve(precision, design.T @ Y)
    at_mean = stats.norm.logpdf(Y, design @ mean).sum()
    log_z = at_mean + np.log(2 * np.pi) - np.linalg.slogdet(precision)[1] / 2 - 2 * np.log(20.0)
    return mean, np.sqrt(np.diag(np.linalg.inv(precision))), log_z


def test_a_black_box_likelihood_agrees_with_the_exact_posterior(line):
    _, fit, calls = line
    mean, sd, log_z = exact_line()
    assert fit.converged
    # 0.05 nats missing would allow for more: a twentieth of a standard deviation is 0.001 nats.
    assert np.abs([fit.mean["m"], fit.mean["c"]] - mean).max() < 0.05 * sd.min()
    np.testing.assert_allclose([fit.sd["m"], fit.sd["c"]], sd, rtol=0.05)
    assert abs(fit.evidence - log_z) < 4 * fit.evidence_se + 0.01
    assert calls == fit.n_evals < 400


def test_the_export_has_deterministics_and_data(line):
    exported = line[1].to_arviz(draws=200, seed=1)
    posterior = exported["posterior"]
    np.testing.assert_allclose(posterior["at_nine"], posterior["m"] * 9.0 + posterior["c"], rtol=1e-10)
    np.testing.assert_array_equal(exported["observed_data"]["y"], Y)


def test_a_fit_is_saved_and_loaded_with_the_problem(line, tmp_path):
    problem, fit, _ = line
    fit.save(tmp_path / "fit.npz")
    loaded = qbvi.load(tmp_path / "fit.npz", prior=problem)
    assert loaded.mean["m"] == fit.mean["m"]


@pytest.fixture(scope="module")
def zoo(pm):
    """A model with every kind of transform, a hierarchy, a potential, and coordinates."""
    with pm.Model(coords={"group": ["a", "b", "c"]}) as model:
        mu = pm.Normal("mu", 1.0, 2.0)
        tau = pm.HalfNormal("tau", 1.0)
        pm.Normal("effect", mu, tau, dims="group")
        share = pm.Beta("share", 2.0, 3.0)
        pm.Uniform("between", np.array([-1.0, 0.0]), np.array([1.0, 5.0]), shape=2)
        pm.TruncatedNormal("above", 0.0, 1.0, lower=0.5)
        weights = pm.Dirichlet("weights", np.ones(3))
        pm.Normal("cutpoints", 0.0, 1.0, shape=2, transform=pm.distributions.transforms.ordered)
        pm.ZeroSumNormal("contrast", shape=3)
        pm.VonMises("angle", 0.5, 2.0)
        pm.Flat("anywhere")
        pm.Gamma("scaled", 2.0, 1.0 / tau)
        pm.Potential("penalty", -3.0 * share)
        pm.Normal("y", mu, 1.0, observed=np.array([0.3, -0.2]))
        pm.Deterministic("twice", 2.0 * weights)
    return model


def test_the_log_joint_is_that_of_the_model(zoo, pm):
    from pymc.model.transform.conditioning import remove_value_transforms

    problem = qbvi.from_pymc(zoo)
    exact = remove_value_transforms(zoo).compile_logp()
    model = Model(problem.prior)
    values = model.constrain(np.random.default_rng(1).normal(size=(5, model.dim)))
    for i in range(5):
        point = {name: np.asarray(x[i]) for name, x in values.items()}
        ours = problem.log_likelihood(point) + sum(
            float(prior.log_prob(point[name][None])[0]) for name, prior in problem.prior.items()
        )
        assert ours == pytest.approx(float(exact(point)), rel=1e-6, abs=1e-5)  # PyMC has some terms in float32


def test_priors_without_parents_are_exact_and_can_be_sampled(zoo):
    prior = qbvi.from_pymc(zoo).prior
    np.testing.assert_allclose(prior["mu"].log_prob(np.array([0.5])), stats.norm.logpdf(0.5, 1.0, 2.0), rtol=1e-6)
    draws = prior["share"].sample(np.random.default_rng(1), 2000)
    assert draws.mean() == pytest.approx(0.4, abs=0.02)  # five standard errors
    assert all(np.isfinite(part).all() for part in prior["cutpoints"].initial())  # draws of PyMC are not ordered
    assert prior["angle"].support == qbvi.Periodic(2 * np.pi, -np.pi)
    assert prior["between"].support == qbvi.Interval((-1.0, 0.0), (1.0, 5.0))


def test_bounds_that_depend_on_other_variables(pm):
    with pm.Model() as model:
        a = pm.HalfNormal("a", 1.0)
        pm.Uniform("b", 0.0, a)
        pm.Normal("y", a, 1.0, observed=0.7)
    problem = qbvi.from_pymc(model)
    flat = Model(problem.prior)
    u = np.array([[0.3, -0.8], [-1.2, 2.0]])
    exact = model.compile_logp()
    for row in u:
        point = {name: x[0] for name, x in flat.constrain(row[None]).items()}
        ours = problem.log_likelihood(point) + flat.log_prior(row[None])[0]
        assert ours == pytest.approx(float(exact({"a_log__": row[0], "b_interval__": row[1]})), rel=1e-6, abs=1e-5)
    described = problem.log_likelihood.described(flat.constrain(u)).variables
    np.testing.assert_allclose(described["b"], described["a"] / (1 + np.exp(-u[:, 1])), rtol=1e-6)


def test_the_evidence_of_a_hierarchy(pm):
    y = np.array([1.0, 2.0, 0.5])
    with pm.Model(coords={"group": list("abc")}) as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        theta = pm.Normal("theta", mu, 0.5, dims="group")
        pm.Normal("y", theta, 1.0, observed=y, dims="group")
    fit = qbvi.from_pymc(model).fit(seed=1)
    exact = stats.multivariate_normal(np.zeros(3), 4.0 + 1.25 * np.eye(3)).logpdf(y)
    assert fit.converged
    assert abs(fit.evidence - exact) < 4 * fit.evidence_se + 0.01
    exported = fit.to_arviz(draws=20, seed=1)
    assert list(exported["posterior"]["theta"]["group"].values) == ["a", "b", "c"]
    assert exported["observed_data"]["y"].dims == ("group",)
    predicted = pm.sample_posterior_predictive(exported, model=model, random_seed=1, progressbar=False)
    assert predicted["posterior_predictive"]["y"].shape == (1, 20, 3)


def test_discrete_variables_have_their_own_distribution(pm):
    with pm.Model() as model:
        z = pm.Bernoulli("z", 0.3)
        pm.Normal("y", z, 1.0, observed=1.0)
    fit = qbvi.from_pymc(model).fit(seed=1)
    joint = np.array([0.7, 0.3]) * stats.norm.pdf(1.0, [0.0, 1.0])
    assert fit.mean["z"] == pytest.approx(joint[1] / joint.sum(), abs=0.02)


def test_discrete_variables_with_parents_keep_the_log_joint(pm):
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2))
        z = pm.Categorical("z", w, shape=2)
        pm.Normal("y", z, 1.0, observed=np.array([0.1, 0.9]))
    problem = qbvi.from_pymc(model)
    point = {"w": np.array([0.3, 0.7]), "z": np.array([1.0, 0.0])}
    ours = problem.log_likelihood(point) + sum(float(p.log_prob(point[n][None])[0]) for n, p in problem.prior.items())
    exact = np.log(0.7 * 0.3) + stats.norm.logpdf([0.1, 0.9], [1.0, 0.0]).sum()  # the density of w is one
    assert ours == pytest.approx(exact, rel=1e-6)


def test_other_discrete_variables_are_refused_by_name(pm):
    with pm.Model() as model:
        k = pm.Binomial("k", 5, 0.5)
        pm.Normal("y", k, 1.0, observed=1.0)
    with pytest.raises(ValueError, match=r"'k' is discrete, binomial.*marginalize"):
        qbvi.from_pymc(model)


def test_what_is_no_model_is_refused(pm):
    with pytest.raises(TypeError, match=r"`model` must be a pymc.Model, got int"):
        qbvi.from_pymc(3)
    with pytest.raises(TypeError, match=r"outside of a `with pm.Model"):
        qbvi.from_pymc()
    with pm.Model() as model:
        pm.Normal("y", 0.0, 1.0, observed=1.0)
    with pytest.raises(ValueError, match="free variables to fit, got none"):
        qbvi.from_pymc(model)


def test_deterministics_are_chosen_by_name(zoo):
    assert qbvi.from_pymc(zoo, deterministics=False).log_likelihood.deterministics == ()
    with pytest.raises(ValueError, match="twice"):
        qbvi.from_pymc(zoo, deterministics=["thrice"])


def test_the_function_is_sent_as_the_model(zoo):
    cloudpickle = pytest.importorskip("cloudpickle")
    problem = qbvi.from_pymc(zoo)
    model = Model(problem.prior)
    point = {name: x[0] for name, x in model.constrain(np.zeros((1, model.dim))).items()}
    sent = pickle.loads(cloudpickle.dumps(problem.log_likelihood))
    assert sent(point) == pytest.approx(problem.log_likelihood(point), rel=1e-9)


def test_a_checkpoint_knows_the_model(pm, tmp_path):
    def model(y):
        with pm.Model() as made:
            mu = pm.Normal("mu", 0.0, 2.0)
            pm.Normal("y", mu, 1.0, observed=np.array(y))
        return qbvi.from_pymc(made)

    first = model([0.3, 0.5]).fit(seed=1, checkpoint=tmp_path / "run")
    again = model([0.3, 0.5]).fit(seed=1, checkpoint=tmp_path / "run")
    assert again.mean["mu"] == first.mean["mu"]
    with pytest.raises(qbvi.CheckpointError):
        model([0.3, 0.6]).fit(seed=1, checkpoint=tmp_path / "run")


def test_without_the_package_an_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymc", None)
    with pytest.raises(ImportError, match=r"PyMC is not installed: pip install 'qbvi\[pymc\]'"):
        qbvi.from_pymc(object())


def test_the_package_has_the_extras_and_the_entry_point():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {"pymc", "bilby", "cobaya"} <= set(project["optional-dependencies"])
    assert project["entry-points"]["bilby.samplers"] == {"qbvi": "qbvi.integrations.bilby:Qbvi"}
