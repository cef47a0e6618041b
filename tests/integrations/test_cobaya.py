"""The sampler of Cobaya against exact integrals; input files are run by Cobaya itself."""

import numpy as np
import pytest
from scipy import integrate, stats

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]

# The example with which Cobaya's documentation begins.
QUICK_START = r"""
likelihood:
  gaussian_mixture:
    means: [0.2, 0]
    covs: [[0.1, 0.05], [0.05, 0.2]]
    derived: True
params:
  a: {prior: {min: -0.5, max: 3}, latex: \alpha}
  b: {prior: {dist: norm, loc: 0, scale: 1}, ref: 0, proposal: 0.5, latex: \beta}
  derived_a: {latex: \alpha^\prime}
  derived_b: {latex: \beta^\prime}
sampler:
  qbvi: {seed: 1}
"""


@pytest.fixture(scope="module")
def run():
    """Run an input file, or one with changes."""
    pytest.importorskip("cobaya")
    from cobaya.log import LoggedError
    from cobaya.run import run
    from cobaya.yaml import yaml_load

    def run_text(text, **changes):
        return run({**yaml_load(text), "debug": 50, **changes})[1]

    run_text.error = LoggedError
    return run_text


@pytest.fixture(scope="module")
def quick_start(run):
    return run(QUICK_START)


def exact_quick_start():
    """Mean and sd of a and b, and the log evidence, by quadrature."""
    a, b = np.meshgrid(np.linspace(-0.5, 3, 701), np.linspace(-4, 4, 801), indexing="ij")
    like = stats.multivariate_normal([0.2, 0], [[0.1, 0.05], [0.05, 0.2]]).pdf(np.stack([a, b], axis=-1))
    joint = like * stats.norm.pdf(b) / 3.5

    def integral(values):
        return integrate.trapezoid(integrate.trapezoid(values, dx=0.01), dx=0.005)

    z = integral(joint)
    mean = np.array([integral(joint * x) / z for x in (a, b)])
    sd = np.sqrt([integral(joint * x**2) / z for x in (a, b)] - mean**2)
    return mean, sd, np.log(z)


def test_the_quick_start_agrees_with_quadrature(quick_start):
    products = quick_start.products(to_getdist=True)
    mean, sd, log_z = exact_quick_start()
    samples = products["sample"]
    # Five standard errors of the mean of 2,000 draws.
    assert np.abs((samples.mean(["a", "b"]) - mean) / sd).max() < 5 / np.sqrt(2000)
    np.testing.assert_allclose(samples.std(["a", "b"]), sd, rtol=0.08)
    assert abs(products["logZ"] - log_z) < 4 * products["logZstd"] + 0.01
    assert products["fit"].converged
    assert products["fit"].n_evals < 400
    np.testing.assert_allclose([products["fit"].mean["a"], products["fit"].mean["b"]], mean, atol=0.02)


def test_the_chain_is_a_collection_of_cobaya(quick_start):
    chain = quick_start.products()["sample"]
    assert type(chain).__name__ == "SampleCollection"
    assert len(chain) == 2000
    a, b = chain["a"].to_numpy(), chain["b"].to_numpy()
    exact = stats.multivariate_normal([0.2, 0], [[0.1, 0.05], [0.05, 0.2]]).logpdf(np.column_stack([a, b]))
    # The log-likelihood of the fit, on average over its draws: missing nats are below 0.05.
    assert np.mean(chain["chi2"] / -2 - exact) == pytest.approx(0.0, abs=0.05)
    np.testing.assert_allclose(chain["minuslogprior"], np.log(3.5) - stats.norm.logpdf(b), rtol=1e-6)


def test_evaluated_samples_have_everything(run):
    chain = run(QUICK_START, sampler={"qbvi": {"seed": 1, "n_samples": 50, "evaluate_samples": True}}).products()
    chain = chain["sample"]
    a, b = chain["a"].to_numpy(), chain["b"].to_numpy()
    exact = stats.multivariate_normal([0.2, 0], [[0.1, 0.05], [0.05, 0.2]]).logpdf(np.column_stack([a, b]))
    np.testing.assert_allclose(chain["chi2__gaussian_mixture"], -2 * exact, rtol=1e-6)
    assert np.isfinite(chain["derived_a"]).all()


def test_functions_of_parameters_and_priors_of_several(run):
    """A ring in polar coordinates, cut by a prior of both parameters."""
    text = """
    likelihood: {ring: {external: "lambda x, y: stats.norm.logpdf(np.hypot(x, y), 1, 0.3)", requires: []}}
    params:
      x: {prior: {min: -1, max: 3}}
      y: {prior: {min: -1, max: 3}}
      r: {derived: "lambda x, y: np.sqrt(x**2 + y**2)"}
    prior: {band: "lambda x, y: stats.norm.logpdf(x - y, loc=0, scale=0.3)"}
    sampler: {qbvi: {seed: 1, n_samples: 500}}
    """
    text = text.replace(", requires: []", "")
    sampler = run(text)
    chain = sampler.products()["sample"]
    np.testing.assert_allclose(chain["r"], np.hypot(chain["x"], chain["y"]), rtol=1e-6)
    exact = integrate.dblquad(
        lambda y, x: stats.norm.pdf(np.hypot(x, y), 1, 0.3) * stats.norm.pdf(x - y, 0, 0.3) / 16, -1, 3, -1, 3
    )[0]
    products = sampler.products()
    assert abs(products["logZ"] - np.log(exact)) < 4 * products["logZstd"] + 0.05


def test_a_run_continues_from_its_files(run, tmp_path):
    calls = []

    def normal(a):
        calls.append(a)
        if len(calls) == 30:
            raise KeyboardInterrupt
        return -0.5 * (a - 1) ** 2

    info = {
        "likelihood": {"normal": {"external": normal}},
        "params": {"a": {"prior": {"dist": "norm", "loc": 0, "scale": 1}}},
        "sampler": {"qbvi": {"seed": 1}},
    }
    output = str(tmp_path / "chain")
    stopped = run("{}", **info, output=output)
    assert not stopped.fit.converged
    resumed = run("{}", **info, output=output, resume=True)
    whole = run("{}", **info)
    assert resumed.fit.evidence == whole.fit.evidence
    assert resumed.fit.n_evals == whole.fit.n_evals
    assert (tmp_path / "chain.1.txt").exists()
    assert f"logZ: {resumed.fit.evidence}" in (tmp_path / "chain.logZ").read_text()
    n_before = len(calls)
    run("{}", **info, output=output, resume=True)
    assert len(calls) == n_before
    with pytest.raises(run.error, match="force"):
        run("{}", **info, output=output)
    run("{}", **info, output=output, force=True)


def test_a_periodic_parameter_is_a_circle(run):
    info = {
        "likelihood": {"phase": {"external": lambda t: 20 * np.cos(t - 0.1)}},
        "params": {"t": {"prior": {"min": 0, "max": 2 * np.pi}, "periodic": True}},
        "sampler": {"qbvi": {"seed": 1}},
    }
    sampler = run("{}", **info)
    products = sampler.products()
    assert sampler.fit.model.periods == pytest.approx([2 * np.pi])
    exact = np.log(integrate.quad(lambda t: np.exp(20 * (np.cos(t) - 1)), -np.pi, np.pi)[0] / (2 * np.pi)) + 20
    assert abs(products["logZ"] - exact) < 4 * products["logZstd"] + 0.01
    assert 0.2 < np.mean(products["sample"]["t"].to_numpy() > np.pi) < 0.5  # exact: 0.33
    info["params"]["t"]["prior"] = {"dist": "truncnorm", "a": -1, "b": 1}
    with pytest.raises(run.error, match="prior of 't' must be uniform if it is periodic, got truncnorm"):
        run("{}", **info)


def test_the_class_has_a_path_too(run):
    info = {"likelihood": {"one": {"external": lambda a: -(a**2)}}, "params": {"a": {"prior": [-5, 5]}}}
    sampler = run("{}", **info, sampler={"qbvi.integrations.cobaya.QBVI": {"seed": 1, "start_at_ref": True}})
    assert sampler.fit.evidence == pytest.approx(np.log(np.sqrt(np.pi) / 10), abs=0.05)
