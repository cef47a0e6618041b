"""The method "exact": optimal, at every scale, and a fit like any other."""

import math
import pickle
import re

import numpy as np
import pytest
import scipy.optimize
from scipy.special import expit

import qbvi
from oracles import LogisticRegression
from qbvi.exact import ExactBound, GaussianPrior, bound
from qbvi.models import HAR, Binomial, Linear, Logistic, Network, Poisson

RNG = np.random.default_rng(7)
X = RNG.standard_normal((300, 3))
ETA = X @ [1.0, -0.5, 0.2] - 0.3
Y = (RNG.random(300) < expit(ETA)) * 1.0
COUNTS = RNG.poisson(np.exp(ETA)).astype(float)
TARGET = ETA + 0.7 * RNG.standard_normal(300)
MODELS = {
    "logistic": Logistic(X, Y),
    "binomial": Binomial(X, RNG.binomial(9, expit(ETA)), 9),
    "poisson": Poisson(X, COUNTS, exposure=RNG.uniform(0.5, 2, 300)),
    "linear": Linear(X, TARGET),
}


def is_exact(fit):
    return fit.record.method.startswith("Exact")


def moments(fit, model):
    """Mean and covariance of the coefficients, in the order of the design."""
    at = [fit.labels.index(name) for name in model.coefficients]
    mean = np.array([float(fit.mean[name]) for name in model.coefficients])
    return mean, fit.cov_matrix[np.ix_(at, at)]


def log_joint_bound(model, prior, mean, factor, z):
    """The bound by plain draws ``z`` and the model's own likelihood, without any integral."""
    theta = mean + z @ factor.T
    log_q = -0.5 * np.sum(z**2, axis=1) - np.linalg.slogdet(factor)[1] - 0.5 * len(mean) * math.log(2 * math.pi)
    log_prior = sum(prior[name].log_prob(theta[:, j]) for j, name in enumerate(model.coefficients))
    return model.log_likelihood(theta) + log_prior - log_q


# ---------------------------------------------------------------- optimal


@pytest.mark.parametrize("family", ["full", "diagonal"])
@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("name", ["logistic", "binomial", "poisson"])
def test_the_bound_is_the_maximum_that_a_generic_optimiser_finds(name, d, family):
    """The objective is brute force: a grid of 24^d nodes, and the model's own log-likelihood."""
    covariates = X[:40, :d]
    others = {"binomial": {"trials": 9}}.get(name, {})
    y = {"logistic": Y, "binomial": MODELS["binomial"].y, "poisson": COUNTS}[name][:40]
    model = {"logistic": Logistic, "binomial": Binomial, "poisson": Poisson}[name](
        covariates, y, intercept=False, **others
    )
    prior = model.normal_prior(2.0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    z = np.stack(np.meshgrid(*[nodes] * d), axis=-1).reshape(-1, d)
    w = np.prod(np.stack(np.meshgrid(*[weights] * d), axis=-1).reshape(-1, d), axis=1)

    def lower_bound(parameters):
        factor = np.diag(np.exp(parameters[d : 2 * d]))
        if d == 2 and family == "full":
            factor[1, 0] = parameters[-1]
        return (w / w.sum()) @ log_joint_bound(model, prior, parameters[:d], factor, z)

    fit = model.fit(prior, family=family, seed=1)
    start = np.concatenate([np.zeros(d), np.full(d, -1.0), np.zeros(1)])
    best = scipy.optimize.minimize(lambda p: -lower_bound(p), start, method="BFGS", options={"gtol": 1e-7})
    assert is_exact(fit)
    assert fit.converged
    assert fit.elbo == pytest.approx(-best.fun, abs=1e-7)
    mean, cov = moments(fit, model)
    np.testing.assert_allclose(mean, best.x[:d], atol=1e-4)
    np.testing.assert_allclose(np.sqrt(cov[0, 0]), np.exp(best.x[d]), atol=1e-4)


@pytest.mark.parametrize("diagonal", [False, True])
def test_logistic_regression_has_the_best_gaussian_of_the_oracle(diagonal):
    design = np.column_stack([np.ones(300), X])
    best = LogisticRegression(design, Y, 5.0).best_gaussian(diagonal)
    model = Logistic(X, Y)
    fit = model.fit(model.normal_prior(5**0.5), family="diagonal" if diagonal else "full", seed=1)
    assert fit.elbo == pytest.approx(best.elbo, abs=1e-8)
    mean, cov = moments(fit, model)
    np.testing.assert_allclose(mean, best.mean, atol=1e-5)
    np.testing.assert_allclose(cov, best.cov, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_no_neighbour_has_a_higher_bound(name):
    """Stationarity by central differences of the bound: by the mean, and by every entry of a factor."""
    model = MODELS[name]
    prior = {key: qbvi.Normal(0.1, 2.0) for key in model.coefficients}
    prior |= {"sigma2": qbvi.InverseGamma(3.0, 1.0)} if name == "linear" else {}
    fit = model.fit(prior, seed=1)
    mean, cov = moments(fit, model)
    k = len(mean)
    constant = -0.5 * k * math.log(2 * math.pi * 4) - 0.5 * k * 0.1**2 / 4
    noise = bound.Noise(3.0, 1.0) if name == "linear" else None
    exact = ExactBound(model, GaussianPrior(np.full(k, 0.1 / 4), np.full(k, 1 / 4), constant), noise)
    L, step = np.linalg.cholesky(cov), 1e-4

    def value(shift, root):
        factor = L @ (np.eye(k) + root)
        return exact.at(mean + L @ shift, np.linalg.inv(factor @ factor.T)).bound

    none = np.zeros((k, k))
    assert value(np.zeros(k), none) == pytest.approx(fit.elbo, abs=1e-9)
    for i in range(k):
        e = np.eye(k)[i] * step
        # 1e-8 nats to the optimum mean a slope below 2e-4, in units of the posterior
        assert abs(value(e, none) - value(-e, none)) / (2 * step) < 3e-4
        for j in range(i + 1):
            E = none.copy()
            E[i, j] = step
            assert abs(value(np.zeros(k), E) - value(np.zeros(k), -E)) / (2 * step) < 3e-4


def test_linear_regression_has_the_closed_form_given_its_noise():
    model, design = MODELS["linear"], np.column_stack([np.ones(300), X])
    prior = model.normal_prior(2.0) | {"sigma2": qbvi.InverseGamma(3.0, 1.0)}
    fit = model.fit(prior, seed=1)
    noise = fit.factors["sigma2"].parameters()
    alpha, beta = noise["alpha"].item(), noise["beta"].item()
    mean, cov = moments(fit, model)
    precision = alpha / beta
    closed = np.linalg.inv(np.eye(4) / 4 + precision * design.T @ design)
    np.testing.assert_allclose(cov, closed, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(mean, precision * closed @ design.T @ TARGET, rtol=1e-4, atol=1e-7)
    assert alpha == 3.0 + 150
    squares = np.sum((TARGET - design @ mean) ** 2) + np.trace(design @ cov @ design.T)
    assert beta == pytest.approx(1.0 + squares / 2, rel=1e-9)


def test_a_linear_regression_with_a_known_evidence():
    """With hardly any prior doubt about the variance, bound and evidence are those of Gaussians."""
    variance = 0.49
    prior = MODELS["linear"].normal_prior(2.0) | {"sigma2": qbvi.InverseGamma(1e9, 1e9 * variance)}
    fit = MODELS["linear"].fit(prior, seed=1)
    design = np.column_stack([np.ones(300), X])
    cov = variance * np.eye(300) + 4 * design @ design.T
    log_det, square = np.linalg.slogdet(cov)[1], TARGET @ np.linalg.solve(cov, TARGET)
    exact = -0.5 * (log_det + square + 300 * math.log(2 * math.pi))
    # 1e-6: a relative doubt of 3e-5 about the variance; its densities of 1e9 cost digits as well
    assert fit.elbo == pytest.approx(exact, abs=1e-4)
    assert fit.evidence == pytest.approx(exact, abs=1e-4)


def test_the_black_box_beside_it_agrees():
    """Labour-like data: the regression ends within its tolerance of the best Gaussian."""
    model = MODELS["logistic"]
    exact, black_box = model.fit(seed=1), model.fit(method="regression", family="full", seed=1)
    assert is_exact(exact)
    assert black_box.record.method.startswith("Regression")
    assert black_box.converged
    for name in model.names:
        # 0.01 nats are at most 0.14 standard deviations
        assert abs(exact.mean[name] - black_box.mean[name]) < 0.14 * exact.sd[name]
        assert exact.sd[name] == pytest.approx(black_box.sd[name], rel=0.1)
    assert black_box.elbo < exact.elbo + 4 * black_box.elbo_se
    assert black_box.elbo > exact.elbo - 4 * black_box.elbo_se - 0.01


def test_evidence_and_missing_nats_are_those_of_the_posterior():
    """One coefficient: the evidence by quadrature on a fine grid."""
    model = Logistic(X[:30, :1], Y[:30], intercept=False)
    prior = model.normal_prior(3.0)
    fit = model.fit(prior, seed=1)
    grid = np.linspace(-15, 15, 20_001)[:, None]
    log_joint = model.log_likelihood(grid) + prior["x1"].log_prob(grid[:, 0])
    evidence = np.log(np.sum(np.exp(log_joint - log_joint.max())) * 30 / 20_000) + log_joint.max()
    assert fit.elbo < evidence
    assert fit.elbo_se == 0
    assert abs(fit.evidence - evidence) < 4 * fit.evidence_se
    assert fit.missing == pytest.approx(evidence - fit.elbo, abs=4 * fit.missing_se)
    assert fit.missing_se < 0.3 * fit.missing
    checked = fit.check(4000)
    assert checked.elbo == fit.elbo
    assert checked.evidence == checked.elbo + checked.missing
    assert checked.evidence == pytest.approx(evidence, abs=2 * fit.evidence_se)


# ---------------------------------------------------------------- at every scale


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_units_and_origins_of_the_columns_do_not_matter(name):
    build = {"logistic": lambda Z: Logistic(Z, Y), "poisson": lambda Z: Poisson(Z, COUNTS)}[name]
    plain, scale = build(X), np.array([1e-6, 1e6, 1e3])
    reference = plain.fit(seed=1)
    scaled = build(X * scale).fit(seed=1)
    assert scaled.elbo == pytest.approx(reference.elbo, abs=1e-7)
    for j, factor in enumerate(scale):
        assert scaled.mean[f"x{j + 1}"] * factor == pytest.approx(reference.mean[f"x{j + 1}"], rel=1e-6)
        assert scaled.sd[f"x{j + 1}"] * factor == pytest.approx(reference.sd[f"x{j + 1}"], rel=1e-6)
    far = build(X + 1e6)
    found = far.fit(seed=1)
    assert found.converged
    for key in ("x1", "x2", "x3"):  # the prior of the intercept is wider there, and six digits of X are lost
        assert found.mean[key] == pytest.approx(reference.mean[key], abs=1e-3)
        assert found.sd[key] == pytest.approx(reference.sd[key], rel=1e-3)
    np.testing.assert_allclose(far.predict(found).mean, plain.predict(reference).mean, rtol=0.05)


HARD = {
    "separated": lambda: Logistic(X, (X[:, 0] > 0) * 1.0),
    "all ones": lambda: Logistic(X, np.ones(300)),
    "collinear": lambda: Logistic(np.column_stack([X, X[:, 0], X[:, 0] + 1e-9 * X[:, 1]]), Y),
    "constant column": lambda: Logistic(np.column_stack([np.full(300, 3.0), X]), Y, intercept=False),
    "two rows": lambda: Logistic(X[:2], [1, 0], intercept=False),
    "more columns than rows": lambda: Logistic(RNG.standard_normal((20, 60)), Y[:20]),
    "counts of zero": lambda: Poisson(X, np.zeros(300)),
    "huge counts": lambda: Poisson(X, np.round(np.exp(10 + 5 * X[:, 0]))),
    "many trials": lambda: Binomial(X, np.round(1e6 * expit(ETA)), 10**6),
    "no noise": lambda: Linear(X, ETA),
    "linear, more columns than rows": lambda: Linear(RNG.standard_normal((20, 40)), TARGET[:20]),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_data_have_a_best_gaussian_too(name):
    """It is found to 1e-8 nats, whatever the fresh draws say about the family."""
    model = HARD[name]()
    fit = model.fit(seed=1)
    assert is_exact(fit)
    assert fit.trace.gap[-1] < 1e-8
    assert np.isfinite(fit.elbo)
    # the bound never falls, except by rounding: 1e-16 of terms of 1e11 for the huge counts
    assert np.diff(fit.trace.elbo).min() > -1e-2 if name == "huge counts" else np.diff(fit.trace.elbo).min() > -1e-6
    # the draws know nothing of the integrals, and have the same mean
    h = model_bound_draws(fit, model)
    assert abs(h.mean() - fit.elbo) < 5 * h.std() / np.sqrt(h.size) + 1e-3


def model_bound_draws(fit, model):
    u = fit.draw_unconstrained(2000, seed=3)
    values = model.log_likelihood(fit.model.constrain(u)) + fit.model.log_prior(u)
    return values - fit.family.log_prob(fit.q, u)


def test_a_start_far_away_is_no_obstacle():
    model = Poisson(X, COUNTS)
    reference = model.fit(model.normal_prior(10.0), seed=1)
    for intercept in (20.0, -30.0):
        init = dict.fromkeys(model.names, 0.0) | {"intercept": intercept}
        fit = model.fit(model.normal_prior(10.0), init=init, seed=1)
        assert fit.elbo == pytest.approx(reference.elbo, abs=1e-7)


def test_chunks_of_rows_change_nothing(monkeypatch):
    whole = {name: model.fit(seed=1).elbo for name, model in MODELS.items()}
    monkeypatch.setattr(bound, "_CHUNK", 17 * 128)
    for name, model in MODELS.items():
        assert model.fit(seed=1).elbo == pytest.approx(whole[name], abs=1e-9)


def test_values_at_many_draws_are_computed_in_portions(monkeypatch):
    flat = RNG.standard_normal((50, 4))
    whole = MODELS["logistic"].log_likelihood(flat)
    monkeypatch.setattr("qbvi.models.predictor._PORTION", 50 * 7)
    np.testing.assert_allclose(MODELS["logistic"].log_likelihood(flat), whole, rtol=1e-12)


def test_conjugate_gradients_find_the_same_diagonal_gaussian(monkeypatch):
    models = {"logistic": MODELS["logistic"], "linear": MODELS["linear"]}
    families = {
        "logistic": "diagonal",
        "linear": {"sigma2": "inverse-gamma", MODELS["linear"].coefficients: "diagonal"},
    }
    direct = {name: model.fit(family=families[name], seed=1) for name, model in models.items()}
    monkeypatch.setattr(bound, "_MOST_DIRECT", 0)
    for name, model in models.items():
        fit = model.fit(family=families[name], seed=1)
        assert is_exact(fit)
        assert fit.elbo == pytest.approx(direct[name].elbo, abs=1e-7)


def test_a_wide_table_has_a_diagonal_gaussian_and_says_so():
    wide = RNG.standard_normal((50, 1200))
    fit = Logistic(wide, Y[:50]).fit(seed=1)
    assert is_exact(fit)
    assert fit.trace.gap[-1] < 1e-8
    assert any("diagonal covariance" in note for note in fit.notes)


# ---------------------------------------------------------------- a fit like any other


def test_it_is_the_default_and_counts_passes():
    for model in (*MODELS.values(), HAR(np.exp(RNG.standard_normal(80)))):
        fit = model.fit(seed=1)
        assert is_exact(fit)
        assert fit.converged
        assert fit.stop_kind.value == "gap"
        assert f"{len(fit.trace) + 2} passes over the {len(model.design)} rows" in fit.notes[0]
        assert fit.n_evals == 1000  # all of them fresh draws
        assert not fit.trace.n_evals.any()


def test_priors_in_every_form_give_the_same_posterior():
    model = MODELS["logistic"]
    scales = [3.0, 1.0, 2.0, 0.5]
    by_name = {name: qbvi.Normal(0.2, s) for name, s in zip(model.names, scales, strict=True)}
    forms = [
        by_name,
        dict(reversed(by_name.items())),
        {"beta": qbvi.MultivariateNormal(np.full(4, 0.2), np.diag(np.square(scales)))},
        qbvi.Normal(np.full(4, 0.2), np.array(scales)),
    ]
    fits = [model.fit(prior, seed=1) for prior in forms]
    for fit in fits[1:]:
        assert is_exact(fit)
        assert fit.elbo == pytest.approx(fits[0].elbo, abs=1e-9)
    assert fits[1].mean["x2"] == pytest.approx(fits[0].mean["x2"], abs=1e-9)
    assert fits[1].sd["x2"] == pytest.approx(fits[0].sd["x2"], abs=1e-9)
    np.testing.assert_allclose(fits[2].mean["beta"], [fits[0].mean[name] for name in model.names], atol=1e-9)


def test_correlated_priors_and_flat_ones():
    model, design = MODELS["logistic"], np.column_stack([np.ones(300), X])
    root = np.tril(np.ones((4, 4)))
    rotated = model.fit({"beta": qbvi.MultivariateNormal(np.zeros(4), root @ root.T)}, seed=1)
    other = Logistic(design @ root, Y, intercept=False)
    plain = other.fit({"beta": qbvi.Normal(0, 1, shape=4)}, seed=1)
    assert rotated.elbo == pytest.approx(plain.elbo, abs=1e-8)
    np.testing.assert_allclose(rotated.mean["beta"], root @ plain.mean["beta"], atol=1e-5)
    flat, wide = model.fit({"beta": qbvi.Flat(4)}, seed=1), model.fit({"beta": qbvi.Normal(0, 1e4, shape=4)}, seed=1)
    np.testing.assert_allclose(flat.mean["beta"], wide.mean["beta"], atol=1e-5)


def test_saved_loaded_pickled_and_predicted(tmp_path):
    model = MODELS["linear"]
    fit = model.fit(seed=1)
    fit.save(tmp_path / "fit.npz")
    for again in (qbvi.load(tmp_path / "fit.npz"), pickle.loads(pickle.dumps(fit))):
        np.testing.assert_array_equal(again.q, fit.q)
        assert (again.elbo, again.missing, again.stop_reason) == (fit.elbo, fit.missing, fit.stop_reason)
        np.testing.assert_array_equal(model.predict(again, X[:3]).mean, model.predict(fit, X[:3]).mean)
    assert "converged    yes" in str(fit.summary())
    assert fit.sample(10, seed=1)["sigma2"].shape == (10,)


def test_interrupted_stopped_and_out_of_time():
    model = MODELS["logistic"]
    whole = model.fit(seed=1)

    def interrupt(iterate):
        if iterate.gap < 0.01:
            raise KeyboardInterrupt

    interrupted = model.fit(callback=interrupt, seed=1)
    assert interrupted.stop_kind.value == "interrupted"
    assert interrupted.elbo == pytest.approx(whole.elbo, abs=0.01)  # the gap that it was stopped at
    stopped = model.fit(callback=lambda iterate: iterate.gap < 0.01, seed=1)
    assert stopped.stop_kind.value == "callback"
    assert stopped.elbo == interrupted.elbo
    late = model.fit(max_time=1e-9, seed=1)
    assert late.stop_kind.value == "seconds"
    assert math.isfinite(late.elbo)
    unchecked = model.fit(max_evals=1, seed=1)  # passes are no evaluations, fresh draws are
    assert (unchecked.converged, unchecked.n_evals, unchecked.elbo) == (True, 0, whole.elbo)
    assert math.isnan(unchecked.missing)


def test_a_checkpoint_resumes_to_the_same_bits(tmp_path):
    model = MODELS["poisson"]
    whole = model.fit(seed=1)
    model.fit(seed=1, checkpoint=tmp_path / "run", callback=lambda iterate: iterate.gap < 0.01)
    assert len(whole.trace) > 3
    again = model.fit(seed=1, checkpoint=tmp_path / "run", on_mismatch="raise")
    np.testing.assert_array_equal(again.q, whole.q)
    assert again.evidence == whole.evidence


def test_a_tolerance_of_the_users_is_kept():
    fit = MODELS["poisson"].fit(tol=0.5, seed=1)
    assert len(fit.trace) < len(MODELS["poisson"].fit(seed=1).trace)
    assert "below 0.5 nats" in fit.stop_reason


def test_a_family_that_does_not_match_is_not_called_converged():
    """Two strongly correlated coefficients in a diagonal Gaussian: the best one, and far away."""
    z = RNG.standard_normal(300)
    twins = np.column_stack([z, z + 0.01 * X[:, 0], z + 0.01 * X[:, 1], z + 0.01 * X[:, 2], z + 0.01 * X[:, 0] ** 2])
    fit = Logistic(twins, Y).fit(family="diagonal", seed=1)
    assert fit.trace.gap[-1] < 1e-8
    assert fit.missing > 1
    assert not (fit.converged and "bad" in fit.record.khat_verdict)


# ---------------------------------------------------------------- where it does not apply


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        (
            lambda **o: MODELS["logistic"].fit({n: qbvi.StudentT(3, 0, 1) for n in MODELS["logistic"].names}, **o),
            "StudentT",
        ),
        (lambda **o: MODELS["logistic"].fit(family=[["intercept", "x1"], ["x2", "x3"]], **o), "one Gaussian of all"),
        (lambda **o: MODELS["linear"].fit(family="full", **o), "beside an inverse gamma for 'sigma2'"),
        (
            lambda **o: MODELS["linear"].fit({"beta": qbvi.Normal(0, 1, shape=4), "sigma2": qbvi.LogNormal(0, 1)}, **o),
            "must be an InverseGamma",
        ),
        (
            lambda **o: Logistic(np.abs(X), Y, intercept=False).fit({"beta": qbvi.LogNormal(0, 1, shape=3)}, **o),
            "must be Normal, MultivariateNormal or Flat",
        ),
        (lambda **o: MODELS["logistic"].fit(batch_size=64, **o), "which reads all rows, got 64"),
        (lambda **o: Network(X, Y, hidden=(1,)).fit(**({"max_evals": 50} | o)), "for regressions, Logistic, Multi"),
    ],
    ids=["prior", "groups", "joint", "noise", "positive", "batches", "network"],
)
def test_what_cannot_be_exact_is_a_black_box_and_by_name_an_error(fit, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        fit(method="exact")
    assert not is_exact(fit(max_evals=150, seed=1))


def test_options_of_a_black_box_mean_a_black_box():
    model = MODELS["logistic"]
    first = model.fit(max_evals=50, seed=1)
    again = model.fit(evaluations=first, max_evals=100, seed=1)
    assert not is_exact(again)
    assert is_exact(model.fit(evaluations=first, method="exact", seed=1))


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="columns of `X` are collinear; drop some"):
        Logistic(np.column_stack([X, X[:, 0]]), Y).fit({"beta": qbvi.Flat(5)})
    with pytest.raises(ValueError, match="overflows at the start"):
        MODELS["poisson"].fit(init=dict.fromkeys(MODELS["poisson"].names, 0.0) | {"intercept": 800.0})
    with pytest.raises(ValueError, match="only for a ready-made regression"):
        qbvi.fit(MODELS["logistic"].log_likelihood, MODELS["logistic"].prior, method="exact")
    with pytest.raises(ValueError, match="`tol` must be positive"):
        MODELS["logistic"].fit(tol=-1.0)
    with pytest.raises(ValueError, match="must have shape"):
        Logistic(np.empty((0, 3)), [])


def test_separated_data_under_a_flat_prior_do_not_settle(monkeypatch):
    """There is no best Gaussian: the bound rises for ever, slowly."""
    monkeypatch.setattr("qbvi.exact.method._MOST_ITERATIONS", 60)
    fit = Logistic(X, (X[:, 0] > 0) * 1.0).fit({"beta": qbvi.Flat(4)}, seed=1)
    assert not fit.converged
    assert fit.stop_kind.value == "iterations"
