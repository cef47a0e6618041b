"""Symmetries: proposed by the prior, confirmed by the function, and used for copies of modes."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.integrate import quad

import qbvi
from qbvi.free.rules import FreeRules
from qbvi.free.search import Search, SearchState
from qbvi.free.symmetry import Group, Symmetry, is_equal, proposed
from qbvi.model import Model

NORMAL, POSITIVE, SHARE = qbvi.Normal(0, 5), qbvi.HalfNormal(1), qbvi.Uniform(0, 1)


def names(prior):
    return [symmetry.name for symmetry in proposed(Model(prior))]


def test_components_with_equal_priors_are_exchanged_together():
    vectors = {"mu": qbvi.Normal(1, 5, shape=2), "sd": qbvi.HalfNormal(1, shape=2), "rate": qbvi.Gamma(2, 1)}
    assert names(vectors) == ["mu[0] and mu[1], sd[0] and sd[1] are exchanged"]
    numbered = {"mu1": qbvi.Normal(1, 5), "sd_1": POSITIVE, "mu2": qbvi.Normal(1, 5), "sd_2": POSITIVE}
    assert names(numbered) == ["mu1 and mu2, sd_1 and sd_2 are exchanged"]
    # Plain names of the same prior are of one kind, as the probabilities to leave each of two states,
    # or have that prior by accident.
    assert names({"mu": qbvi.Normal(1, 5, shape=2), "leave": POSITIVE, "enter": POSITIVE}) == [
        "mu[0] and mu[1], leave and enter are exchanged",
        "mu[0] and mu[1] are exchanged",
        "leave and enter are exchanged",
    ]


def test_the_weight_of_one_of_two_components_changes_sides_with_them():
    mixture = {"mu": qbvi.Normal(1, 5, shape=2), "weight": SHARE}
    assert names(mixture) == [
        "mu[0] and mu[1] are exchanged",
        "mu[0] and mu[1] are exchanged, and the sides of weight",
    ]


def test_four_numbers_of_one_prior_may_be_two_lines():
    """Two of three mixtures of lines in such names had found both modes, and one had not."""
    lines = {"a": NORMAL, "b": NORMAL, "c": NORMAL, "d": NORMAL, "w": SHARE}
    found = names(lines)
    assert "a and c, b and d are exchanged, and the sides of w" in found
    assert sum("are exchanged" in name for name in found) == 6
    lines["e"] = NORMAL
    assert not any("are exchanged" in name for name in names(lines))


def test_three_components_have_three_exchanges_and_more_have_none():
    assert len(names(qbvi.Normal(1, 5, shape=3))) == 3
    assert names(qbvi.Normal(1, 5, shape=4)) == []


def test_components_that_are_alike_by_name_are_exchanged_whatever_their_priors():
    vector = Model(qbvi.Normal(np.array([1.0, 2.0]), 5))
    assert [(s.name, s.keeps_prior) for s in proposed(vector)] == [("theta[0] and theta[1] are exchanged", False)]
    mixture = {"m1": qbvi.Normal(-1, 5), "m2": qbvi.Normal(1, 5), "sd1": POSITIVE, "sd2": POSITIVE}
    both = "m1 and m2, sd1 and sd2 are exchanged"
    weighted = {**mixture, "weight": qbvi.Beta(2, 5)}
    assert names(mixture) == ["sd1 and sd2 are exchanged", both]
    assert names(weighted)[2:] == [both, f"{both}, and the sides of weight"]
    assert not any(symmetry.keeps_prior for symmetry in proposed(Model(weighted))[1:])
    # Other names with different priors are not alike, nor are numbers between different ends.
    assert names({"rate": qbvi.LogNormal(0, 1), "decay": qbvi.LogNormal(1, 1)}) == []
    assert names([(0.0, 5.0), (0.0, 5.0), (1.0, 2.0)])[:1] == ["theta[0] and theta[1] are exchanged"]


def test_a_sign_may_change_with_an_exchange():
    """A curve between two levels: they change places if the slope changes its sign."""
    level, slope = qbvi.Normal(50, 100), qbvi.Normal(0, 3)
    curve = names({"low": level, "high": level, "slope": slope, "middle": qbvi.Normal(1, 3)})
    assert curve[:2] == ["low and high are exchanged", "low and high are exchanged, and slope changes sign"]
    # Where slope and middle are alike by accident, only the levels are exchanged, too.
    alike = names({"low": level, "high": level, "slope": slope, "middle": slope})
    assert alike[0] == "low and high, slope and middle are exchanged"
    assert "low and high are exchanged, and slope changes sign" in alike
    assert len(alike) == len(set(alike))


def test_log_joints_at_images_by_the_prior(rng):
    model = Model({"m1": qbvi.Normal(-1, 2), "m2": qbvi.Normal(1, 3), "weight": qbvi.Beta(2, 5)})
    image = proposed(model)[1]
    assert image.name.endswith("the sides of weight")

    def likelihood(u):
        return np.sin(u[:, 0]) * np.tanh(u[:, 2]) - np.sin(u[:, 1]) * np.tanh(u[:, 2])

    group, u = Group.of(model.dim, [image]), rng.standard_normal((6, model.dim))
    y = likelihood(u) + model.log_prior(u)
    at = group.images(u)
    assert_allclose(group.log_joints(u, y, model.log_prior), likelihood(at) + model.log_prior(at))
    kept = Group.of(2, [Symmetry((1, 0), (1, 1), "")])
    assert_allclose(kept.log_joints(u[:, :2], y, model.log_prior), np.repeat(y, 2))


def test_uniform_priors_with_different_ends_are_not_alike():
    prior = {"stay_a": (0, 1), "stay_b": (0, 1), "rate_a": (0, 50), "rate_b": (0, 50)}
    assert names(prior)[0] == "stay_a and stay_b, rate_a and rate_b are exchanged"
    assert names(prior)[1:] == ["stay_a and stay_b are exchanged", "rate_a and rate_b are exchanged"]
    assert names({"capacity": (0, 5000), "growth": (0, 5)}) == []


def test_signs_change_where_the_prior_is_symmetric_about_zero():
    assert names({"x": NORMAL}) == ["x changes sign"]
    assert names({"x": NORMAL, "scale": POSITIVE, "share": SHARE}) == ["x changes sign"]
    assert names({"x": NORMAL, "y": qbvi.Uniform(-2, 2)}) == ["x, y change sign", "x changes sign", "y changes sign"]
    assert names(qbvi.Normal(0, 1, shape=8))[-1].endswith("theta[7] change sign")
    # Of a product of two, both change it, and an intercept does not.
    product = {"a": NORMAL, "b": qbvi.Normal(0, 2), "intercept": qbvi.Normal(0, 9)}
    assert "a, b change sign" in names(product)


def test_weights_are_exchanged_with_their_components():
    prior = {"share": qbvi.Dirichlet(np.ones(3)), "mu": qbvi.Normal(1, 5, shape=3), "phase": qbvi.Uniform(0, 1)}
    assert names(prior)[:2] == [
        "share[0] and share[1], mu[0] and mu[1] are exchanged",
        "share[0] and share[2], mu[0] and mu[2] are exchanged",
    ]
    model = Model(prior)
    u = np.random.default_rng(0).standard_normal((1, model.dim))
    group = Group.of(model.dim, proposed(model))
    images = group.images(u)
    assert len(group) == 6
    assert_allclose(model.log_prior(images), model.log_prior(u)[0])
    share, mu = (model.constrain(images)[name] for name in ("share", "mu"))
    pairs = {tuple(sorted(zip(w.round(9), m.round(9), strict=True))) for w, m in zip(share, mu, strict=True)}
    assert len(pairs) == 1
    assert len(np.unique(mu.round(9), axis=0)) == 6


def test_weights_stay_if_the_prior_tells_them_apart_or_without_components():
    components = {"mu": qbvi.Normal(1, 5, shape=2)}
    assert names({"share": qbvi.Dirichlet([1.0, 2.0]), **components}) == ["mu[0] and mu[1] are exchanged"]
    assert names({"share": qbvi.Dirichlet(np.ones(2)), "mu": qbvi.Normal(1, 5)}) == []


def test_rows_and_columns_of_a_transition_matrix_are_exchanged_together_or_alone():
    rate = {"rate": qbvi.Gamma(2, 1, shape=2)}
    both, rows, columns = names({"to": qbvi.Dirichlet(np.ones((2, 2))), **rate})
    assert both == "to[0,0] and to[1,1], to[0,1] and to[1,0], rate[0] and rate[1] are exchanged"
    assert rows == "to[0,0] and to[1,0], to[0,1] and to[1,1], rate[0] and rate[1] are exchanged"
    assert columns == "to[0,0] and to[0,1], to[1,0] and to[1,1], rate[0] and rate[1] are exchanged"
    numbered = {"row1": qbvi.Dirichlet(np.ones(2)), "row2": qbvi.Dirichlet(np.ones(2))}
    assert len(names({**numbered, **rate})) == 3
    # States that are likely to last stay so only if rows and columns are exchanged.
    assert len(names({"to": qbvi.Dirichlet(np.array([[9.0, 1.0], [1.0, 9.0]])), **rate})) == 1


def test_the_covariance_of_an_image_with_weights(rng):
    model = Model({"share": qbvi.Dirichlet(np.ones(3)), "mu": qbvi.Normal(1, 5, shape=3)})
    image, u = proposed(model)[1], rng.standard_normal((50, 5)) @ rng.standard_normal((5, 5))
    assert_allclose(image.of_covariance(np.cov(u.T)), np.cov(image(u).T))
    assert_allclose(image(image(u)), u)


def test_exchanges_of_three_generate_all_six_orders():
    group = Group.of(3, proposed(Model(qbvi.Normal(1, 5, shape=3))))
    images = group.images(np.array([[1.0, 2.0, 3.0]]))
    assert len(group) == 6
    assert {tuple(sorted(image)) for image in images.tolist()} == {(1.0, 2.0, 3.0)}
    assert len({tuple(image) for image in images.tolist()}) == 6


def test_all_images_of_a_point_have_the_same_canonical_one(rng):
    group = Group.of(3, [Symmetry((1, 0, 2), (1, 1, 1), ""), Symmetry((0, 1, 2), (1, 1, -1), "")])
    u = rng.standard_normal((5, 3))
    canonical = group.canonical(group.images(u)).reshape(5, 4, 3)
    assert_allclose(canonical, np.repeat(canonical[:, :1], 4, axis=1))


def test_one_map_after_another(rng):
    first, second = Symmetry((1, 2, 0), (1, -1, 1), ""), Symmetry((0, 2, 1), (-1, 1, 1), "")
    u = rng.standard_normal((4, 3))
    assert_allclose(first.then(second)(u), second(first(u)))


def test_the_covariance_of_an_image(rng):
    image, u = Symmetry((2, 0, 1), (1, -1, 1), ""), rng.standard_normal((50, 3)) @ rng.standard_normal((3, 3))
    assert_allclose(image.of_covariance(np.cov(u.T)), np.cov(image(u).T))


def test_only_equal_values_confirm():
    assert is_equal(-1000.0, -1000.0 * (1 + 1e-12))
    assert not is_equal(-1000.0, -1000.001)
    assert not is_equal(-1000.0, -np.inf)


def test_a_square_has_two_roots_of_equal_mass():
    def loglike(x):
        return -0.5 * ((x**2 - 4) / 0.3) ** 2

    fit = qbvi.fit(lambda x: float(loglike(x["x"])), {"x": qbvi.Normal(0, 3)}, seed=1)
    truth = np.log(quad(lambda x: np.exp(loglike(x)) * stats.norm.pdf(x, 0, 3), -4, 4, points=[-2, 2])[0])
    assert fit.converged
    assert abs(fit.evidence - truth) < 0.05
    assert abs(fit.mean["x"]) < 0.1
    assert len(fit.starts) == 2
    assert "x changes sign" in str(fit.record.notes)


def two_labels(x, more=0.0):
    """A posterior with two labels that may be exchanged, unless the first order has ``more``."""
    one, other = (-0.5 * np.sum(((order - [3.0, -2.0]) / [0.5, 0.8]) ** 2) for order in (x, x[::-1]))
    return np.logaddexp(one + more, other) - np.log(2 * np.pi * 0.5 * 0.8)


def test_labels_are_exchanged_and_the_second_mode_costs_nothing():
    prior = qbvi.Uniform(-20, 20, shape=2)
    fit = qbvi.fit(two_labels, prior, seed=1)
    other = qbvi.fit(lambda x: two_labels(x, 1e-3), prior, seed=1)
    assert fit.converged
    assert other.converged
    # The integral of the likelihood is two, and the prior density 1 / 40 for each coordinate.
    assert_allclose([fit.evidence, other.evidence], np.log(2 / 1600), atol=0.05)
    assert [start.n_evals for start in fit.starts].count(0) == 1
    assert fit.n_evals < other.n_evals
    # What is not exact is no symmetry, however near.
    assert not other.record.notes


def test_labels_that_only_the_prior_tells_apart():
    """Both orders have the same likelihood, and the prior prefers one of them by 1.6 to 1."""
    means, sd = np.array([-1.0, 1.0]), 6.0
    fit = qbvi.fit(two_labels, qbvi.Normal(means, sd), seed=1)
    other = qbvi.fit(lambda x: two_labels(x, 1e-3), qbvi.Normal(means, sd), seed=1)

    def mass(order):
        """Of a product of Gaussians in each coordinate."""
        scale = np.sqrt(np.array(sds := [0.5, 0.8])[[*order]] ** 2 + sd**2)
        assert len(sds) == 2
        return np.prod(stats.norm.pdf(np.array([3.0, -2.0])[[*order]], means, scale))

    first, second = mass((0, 1)), mass((1, 0))
    assert fit.converged
    assert_allclose(fit.evidence, np.log(first + second), atol=0.05)
    share = np.mean(np.asarray(fit.sample(4000, seed=1))[:, 0] > 0.5)
    assert abs(share - first / (first + second)) < 0.05  # five standard errors, and what tol allows
    assert [start.n_evals for start in fit.starts].count(0) == 1
    assert fit.n_evals < other.n_evals
    (note,) = [note for note in fit.record.notes if "exchanged" in note]
    assert note.startswith("the likelihood is the same if theta[0] and theta[1] are exchanged: only the prior")


def test_a_curve_between_two_levels_has_a_copy_of_opposite_slope():
    x = np.linspace(-3, 3, 9)
    y = 5 + 90 / (1 + np.exp(-1.5 * (x - 0.4))) + np.array([2, -1, 3, 0, -2, 1, 1, -3, 0])

    def loglike(p):
        mean = p["low"] + (p["high"] - p["low"]) / (1 + np.exp(-p["slope"] * (x - p["middle"])))
        return float(stats.norm.logpdf(y, mean, 3).sum())

    level = qbvi.Normal(50, 100)
    prior = {"low": level, "high": level, "slope": qbvi.Normal(0, 3), "middle": qbvi.Normal(0, 3)}
    fit = qbvi.fit(loglike, prior, seed=1)
    assert fit.converged
    assert "low and high are exchanged, and slope changes sign" in str(fit.record.notes)
    assert abs(np.mean(np.asarray(fit.sample(2000, seed=1)["slope"]) > 0) - 0.5) < 0.05


def test_an_exchange_is_tested_at_a_later_mode_if_it_leaves_the_first_one_where_it_is():
    def loglike(x):
        """A low mode where both labels are equal, at which the search begins, and two others."""
        middle = -0.5 * np.sum((x / 0.6) ** 2) - 4
        return np.logaddexp(middle, two_labels(x / 2))

    fit = qbvi.fit(loglike, qbvi.Uniform(-20, 20, shape=2), seed=1)
    assert fit.converged
    assert "exchanged" in str(fit.record.notes)
    truth = np.log((2 * 4 + 2 * np.pi * 0.6**2 * np.exp(-4)) / 1600)
    assert_allclose(fit.evidence, truth, atol=0.05)
    assert [start.n_evals for start in fit.starts].count(0) == 1


def test_a_mixture_with_weights_has_copies():
    y = np.array([-2.3, -2.1, -1.9, -1.7, -2.0, 1.8, 2.2, 2.0])

    def loglike(x):
        parts = np.log(x["share"]) + stats.norm.logpdf(y[:, None], x["mu"], 0.5)
        return float(np.logaddexp.reduce(parts, axis=1).sum())

    fit = qbvi.fit(loglike, {"share": qbvi.Dirichlet(np.ones(2)), "mu": qbvi.Normal(0, 5, shape=2)}, seed=1)
    assert fit.converged
    assert "share[0] and share[1], mu[0] and mu[1] are exchanged" in str(fit.record.notes)
    assert_allclose(fit.mean["share"], 0.5, atol=0.03)
    assert [start.n_evals for start in fit.starts].count(0) == 1


def test_a_fit_that_is_resumed_knows_its_symmetries(tmp_path):
    prior, file, calls = qbvi.Uniform(-20, 20, shape=2), tmp_path / "fit.qbvi", []

    def loglike(x):
        calls.append(x)
        if len(calls) == 70:
            raise KeyboardInterrupt
        return two_labels(x)

    whole = qbvi.fit(two_labels, prior, seed=2)
    qbvi.fit(loglike, prior, seed=2, checkpoint=file)
    resumed = qbvi.fit(loglike, prior, seed=2, checkpoint=file, on_mismatch="keep")  # `calls` has changed
    assert 70 < len(calls) <= whole.n_evals + 1
    assert resumed.evidence == whole.evidence
    assert resumed.record.notes == whole.record.notes


def test_a_symmetry_stays_when_later_points_test_none():
    search = Search(qbvi.Regression(), None, FreeRules(), symmetries=proposed(Model(qbvi.Normal(1, 5, shape=2))))
    state = SearchState(None, None, (), np.empty((0, 2)), 0, 0, False, symmetries=(0,))
    assert search._judged_symmetries(state, np.array([-3.0]), np.array([-3.0])).symmetries == (0,)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_the_states_of_a_hidden_markov_model_have_both_orders(seed):
    rng = np.random.default_rng(seed)
    states = (np.sin(np.arange(80) / 5) > 0).astype(int)
    y = rng.normal(np.array([-1.5, 1.5])[states], 0.6)

    def loglike(x):
        stay = np.array([[1 - x["leave"], x["leave"]], [x["enter"], 1 - x["enter"]]])
        p = stats.norm.pdf(y[:, None], x["mu"], x["sd"]) + 1e-300
        alpha, total = p[0] / 2, 0.0
        for row in p[1:]:
            total += np.log(alpha.sum())
            alpha = alpha / alpha.sum() @ stay * row
        return total + np.log(alpha.sum())

    prior = {"mu": qbvi.Normal(0, 5, shape=2), "sd": qbvi.HalfNormal(2, shape=2), "leave": SHARE, "enter": SHARE}
    fit = qbvi.fit(loglike, prior, seed=seed)
    first = np.asarray(fit.sample(2000, seed=1)["mu"])
    # Half of the draws have either order; the standard error of a share is 0.011.
    assert abs(np.mean(first[:, 0] < first[:, 1]) - 0.5) < 0.05
