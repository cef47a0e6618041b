"""The estimators against quadrature and their models, and inside scikit-learn's own tools."""

import pickle

import numpy as np
import pytest
import scipy

pytest.importorskip("sklearn")
pd = pytest.importorskip("pandas")

from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import qbvi
from qbvi.sklearn import (
    BlackBoxClassifier,
    BlackBoxRegressor,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
)

RNG = np.random.default_rng(5)
X = RNG.standard_normal((150, 3))
ETA = 0.5 + X @ [1.0, -0.5, 0.0]
YES = np.where(RNG.random(150) < scipy.special.expit(ETA), "yes", "no")
COUNTS = RNG.poisson(np.exp(0.5 * ETA))
NUMBERS = ETA + 0.5 * RNG.standard_normal(150)
THREE = np.array(["a", "b", "c"])[np.digitize(ETA + RNG.logistic(size=150), [-0.5, 1.0])]
NEW = RNG.standard_normal((7, 3))


def predictor_moments(model, rows):
    """Mean and variance of the linear predictor from a large sample of the posterior."""
    design = np.column_stack([np.ones(len(rows)), rows])
    mean = np.append(model.intercept_, np.ravel(model.coef_))
    cov = model.fit_.unconstrained[1][: len(mean), : len(mean)]
    return design @ mean, np.einsum("ij,jk,ik->i", design, cov, design)


def integral(f, mean, var):
    """The expectation of a function of N(mean, var) by adaptive quadrature."""
    density = scipy.stats.norm(mean, np.sqrt(var))
    return scipy.integrate.quad(lambda b: f(b) * density.pdf(b), *density.interval(1 - 1e-14), epsabs=1e-12)[0]


def test_probabilities_are_integrals_over_the_posterior():
    model = LogisticRegression().fit(X, YES)
    probability, sd = model.predict_proba(NEW, return_std=True)
    for i, (mean, var) in enumerate(zip(*predictor_moments(model, NEW), strict=True)):
        first = integral(scipy.special.expit, mean, var)
        second = integral(lambda b: scipy.special.expit(b) ** 2, mean, var)
        assert probability[i, 1] == pytest.approx(first, abs=1e-9)
        assert sd[i, 1] == pytest.approx(np.sqrt(second - first**2), abs=1e-7)
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)
    np.testing.assert_array_equal(model.predict(NEW), np.where(probability[:, 1] > 0.5, "yes", "no"))


def test_rates_are_integrals_over_the_posterior():
    model = PoissonRegressor().fit(X, COUNTS)
    rate, sd = model.predict(NEW, return_std=True)
    for i, (mean, var) in enumerate(zip(*predictor_moments(model, NEW), strict=True)):
        first, second = integral(np.exp, mean, var), integral(lambda b: np.exp(2 * b), mean, var)
        assert rate[i] == pytest.approx(first, rel=1e-9)
        assert sd[i] == pytest.approx(np.sqrt(first + second - first**2), rel=1e-7)


def test_a_linear_prediction_has_the_noise_in_its_standard_deviation():
    model = LinearRegression().fit(X, NUMBERS)
    mean, sd = model.predict(NEW, return_std=True)
    own = qbvi.models.Linear(X, NUMBERS)
    prediction = own.predict(own.fit(seed=0), NEW, n_draws=40_000)
    # 40,000 draws leave an error of 1/200 of a standard deviation; five times that.
    assert np.all(np.abs(mean - prediction.mean) < sd / 40)
    np.testing.assert_allclose(sd, prediction.outcomes.std(axis=0), rtol=0.02)


def test_draws_of_targets_agree_with_their_moments():
    # Of 4,000 draws the mean has an error of 1/63 standard deviations; six times that.
    for model, y in ((LinearRegression(), NUMBERS), (PoissonRegressor(), COUNTS)):
        mean, sd = model.fit(X, y).predict(NEW, return_std=True)
        drawn = model.sample_y(NEW, 4000, random_state=1)
        assert drawn.shape == (7, 4000)
        assert np.all(np.abs(drawn.mean(axis=1) - mean) < 0.1 * sd)
        np.testing.assert_allclose(drawn.std(axis=1), sd, rtol=0.1)
    classifier = LogisticRegression().fit(X, YES)
    share = np.mean(classifier.sample_y(NEW, 4000, random_state=1) == "yes", axis=1)
    assert np.all(np.abs(share - classifier.predict_proba(NEW)[:, 1]) < 0.05)


def test_several_classes_agree_with_the_model_and_its_black_box_fit():
    model = LogisticRegression(prior=2.0, n_draws=4000).fit(X, THREE)
    own = qbvi.models.MultinomialLogistic(X, THREE)
    black_box = own.fit(own.normal_prior(2.0), method="regression", family="full", seed=1, tol=1e-3)
    # The intercept's prior differs: that of the estimator is the model's own, sd 2.5 and more.
    np.testing.assert_allclose(model.predict_proba(NEW), own.predict(black_box, NEW).mean, atol=0.02)
    assert model.coef_.shape == (3, 3)
    assert not model.coef_[0].any()
    assert model.fit_.converged


def test_a_prior_is_a_width_a_distribution_or_a_dict():
    wide, narrow = LogisticRegression().fit(X, YES), LogisticRegression(prior=0.1).fit(X, YES)
    assert np.all(np.abs(narrow.coef_[0, :2]) < np.abs(wide.coef_[0, :2]))
    assert np.all(narrow.coef_sd_ < 0.1 + 1e-9)
    same = LogisticRegression(prior=qbvi.Normal(0, 0.1)).fit(X, YES)
    np.testing.assert_allclose(same.coef_, narrow.coef_)
    one = LogisticRegression(prior={"x1": qbvi.Normal(0, 0.1)}).fit(X, YES)
    assert one.coef_sd_[0, 1] < 0.1 < one.coef_sd_[0, 0]
    with pytest.raises(ValueError, match="`prior` must have names among intercept, x0, x1, x2, got 'x9'"):
        LogisticRegression(prior={"x9": qbvi.Normal(0, 1)}).fit(X, YES)
    with pytest.raises(TypeError, match="`prior` must be None, a standard deviation"):
        LogisticRegression(prior="wide").fit(X, YES)


def test_a_prior_without_closed_integrals_is_predicted_by_draws():
    options = {"family": "full", "tol": 0.05}
    model = LogisticRegression(prior=qbvi.StudentT(20.0, 0.0, 2.5), options=options).fit(X, YES)
    normal = LogisticRegression(prior=2.5).fit(X, YES)
    # A Student t with 20 degrees of freedom is nearly normal; 1,000 draws leave 0.003.
    np.testing.assert_allclose(model.predict_proba(NEW), normal.predict_proba(NEW), atol=0.02)


def test_a_grid_search_over_priors_uses_held_out_rows():
    search = GridSearchCV(LogisticRegression(), {"prior": [0.01, 1.0]}, scoring="neg_log_loss", cv=3).fit(X, YES)
    assert search.best_params_ == {"prior": 1.0}
    assert search.best_estimator_.evidence_ > LogisticRegression(prior=0.01).fit(X, YES).evidence_


def test_frames_with_text_go_through_transformers():
    frame = pd.DataFrame({"age": X[:, 0], "job": np.where(X[:, 1] > 0, "cook", "smith")})
    target = X[:, 0] + (X[:, 1] > 0) + 0.1 * RNG.standard_normal(150)
    columns = make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(drop="first"), ["job"]))
    pipeline = make_pipeline(columns, LinearRegression()).fit(frame, target)
    assert cross_val_score(pipeline, frame, target, cv=3).min() > 0.9
    assert pipeline[-1].fit_.labels == ("intercept", "x0", "x1", "sigma2")
    with pytest.raises(ValueError, match=r"got text in 'job'; put a ColumnTransformer with a OneHotEncoder"):
        LinearRegression().fit(frame, target)


def test_names_of_a_frame_are_names_of_parameters():
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = LogisticRegression(prior={"b": qbvi.Normal(0, 1)}).fit(frame, YES)
    assert model.fit_.labels == ("intercept", "a", "b", "c")
    np.testing.assert_array_equal(model.feature_names_in_, ["a", "b", "c"])


def test_a_constant_column_has_no_effect_and_no_error():
    with_constant = np.column_stack([X[:, 0], np.full(150, 3.0), X[:, 1:]])
    model, other = LinearRegression().fit(with_constant, NUMBERS), LinearRegression().fit(X, NUMBERS)
    np.testing.assert_allclose(np.delete(model.coef_, 1), other.coef_)
    assert model.coef_[1] == 0
    assert np.isnan(model.coef_sd_[1])


def test_rates_with_exposures_as_weights_are_counts_with_exposures():
    years = RNG.uniform(0.5, 2.0, 150)
    model = PoissonRegressor(prior=1.0).fit(X, COUNTS / years, sample_weight=years)
    own = qbvi.models.Poisson(X, COUNTS, exposure=years)
    prior = own.prior | dict.fromkeys(("x1", "x2", "x3"), qbvi.Normal(0, 1))
    prior["intercept"] = model.fit_.model.parameters[0].distribution  # its default depends on the weights
    np.testing.assert_allclose(model.coef_, [own.fit(prior, seed=0).mean[f"x{j}"] for j in (1, 2, 3)], atol=1e-4)


def test_a_budget_that_ends_a_fit_is_a_warning():
    with pytest.warns(ConvergenceWarning, match="the budget of 30 evaluations"):
        LogisticRegression(method="regression", options={"max_evals": 30}).fit(X, YES)


def test_pickled_estimators_predict_the_same():
    model = LogisticRegression().fit(X, YES)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(NEW), model.predict_proba(NEW))


def line(p, rows):
    return p["a"] + rows @ p["b"]


def probability(theta, rows):
    return scipy.special.expit(theta[0] + rows @ theta[1:])


def normal_terms(p, rows, y):
    return scipy.stats.norm.logpdf(y, line(p, rows), 0.5).sum()


def noisy_line(p, rows, rng):
    return line(p, rows) + 0.5 * rng.standard_normal(len(rows))


LINE = {"a": qbvi.Normal(0, 5), "b": qbvi.Normal(0, 5, shape=3)}
GAUSSIAN = {"method": "regression", "family": "full"}


def test_a_black_box_regression_agrees_with_the_ready_made_one():
    model = BlackBoxRegressor(line, LINE, options=GAUSSIAN).fit(X, NUMBERS)
    mean, sd = model.predict(NEW, return_std=True)
    expected, expected_sd = LinearRegression().fit(X, NUMBERS).predict(NEW, return_std=True)
    # Predictions have a standard deviation of 0.5; 500 draws of the mean leave 0.005.
    np.testing.assert_allclose(mean, expected, atol=0.04)
    np.testing.assert_allclose(sd, expected_sd, rtol=0.05)
    assert model.sample_y(NEW, 3).shape == (7, 3)


def test_a_likelihood_of_ones_own_needs_a_sampler_for_new_targets():
    model = BlackBoxRegressor(line, LINE, normal_terms, options=GAUSSIAN).fit(X, NUMBERS)
    assert model.predict(NEW).shape == (7,)
    with pytest.raises(ValueError, match="`sample` must be a function"):
        model.predict(NEW, return_std=True)
    model.set_params(sample=noisy_line)
    assert np.all(model.predict(NEW, return_std=True)[1] > 0.4)


def test_a_black_box_classifier_agrees_with_the_ready_made_one():
    prior = qbvi.Normal(0, 2.5, shape=4)
    model = BlackBoxClassifier(probability, prior, options=GAUSSIAN).fit(X, YES)
    expected = LogisticRegression(prior={f"x{j}": qbvi.Normal(0, 2.5) for j in range(3)}).fit(X, YES)
    np.testing.assert_allclose(model.predict_proba(NEW), expected.predict_proba(NEW), atol=0.02)
    assert set(model.sample_y(NEW, 5).ravel()) <= {"yes", "no"}


def test_a_black_box_says_what_is_wrong():
    with pytest.raises(TypeError, match="`function` must be a function of the parameters and X, got None"):
        BlackBoxRegressor(prior=LINE).fit(X, NUMBERS)
    with pytest.raises(TypeError, match="`prior` must be a prior of the parameters"):
        BlackBoxRegressor(line).fit(X, NUMBERS)
    with pytest.raises(qbvi.EvaluationError, match=r"`function` must return one row for each of the 150 rows"):
        BlackBoxRegressor(lambda p, rows: np.zeros(2), LINE).fit(X, NUMBERS)
    with pytest.raises(qbvi.EvaluationError, match="a probability for each of the 3 classes"):
        BlackBoxClassifier(probability, qbvi.Normal(0, 1, shape=4)).fit(X, THREE)
