"""Problem, further arguments, lists of priors and bounds: other ways to say the same fit."""

from functools import partial

import numpy as np
import pytest
from scipy import stats

import qbvi
from qbvi.model import Model, Vector

Y = np.array([0.3, 2.0])
quick_fit = partial(qbvi.fit, family="full")  # for tests of all but the shape of the posterior


def log_likelihood(theta, y, sd=1.0):
    return -0.5 * float(np.sum(((theta - y) / sd) ** 2))


class TestProblem:
    def test_fits_as_the_function_and_prior_do(self):
        prior = qbvi.Normal(0, 1, shape=2)
        f = lambda t: log_likelihood(t, Y)
        problem = qbvi.Problem(f, prior, options={"max_evals": 300})
        fits = [problem.fit(seed=3), qbvi.fit(problem, seed=3), qbvi.fit(f, prior, max_evals=300, seed=3)]
        assert len({fit.q.tobytes() for fit in fits}) == 1

    def test_options_of_the_fit_come_first(self):
        problem = qbvi.Problem(lambda t: log_likelihood(t, Y), qbvi.Normal(0, 1, shape=2), options={"seed": 1})
        assert problem.fit().seed == 1
        assert problem.fit(seed=2).seed == 2

    def test_starts_at_its_init(self):
        seen = []
        problem = qbvi.Problem(lambda t: seen.append(t) or -float(t @ t), qbvi.Flat(2), init=[500.0, 0.0])
        problem.fit(seed=1)
        assert abs(seen[0][0] - 500) < 10
        seen.clear()
        problem.fit(seed=1, init=[-500.0, 0.0])
        assert abs(seen[0][0] + 500) < 10

    @pytest.mark.parametrize(
        "call", [lambda p, q: p.fit(prior=q), lambda p, q: qbvi.fit(p, q), lambda p, q: p.ask(prior=q)]
    )
    def test_refuses_a_second_prior(self, call):
        problem = qbvi.Problem(lambda t: 0.0, qbvi.Normal(0, 1))
        with pytest.raises(TypeError, match="`prior` must be left out: a qbvi\\.Problem has its own"):
            call(problem, qbvi.Normal(0, 1))

    def test_refuses_what_is_no_function(self):
        with pytest.raises(TypeError, match="`log_likelihood` must be a function"):
            qbvi.Problem(3.0, qbvi.Normal(0, 1))

    def test_a_fit_without_a_prior_says_so(self):
        with pytest.raises(TypeError, match="`prior` must be given"):
            qbvi.fit(lambda t: 0.0)


class TestArguments:
    def test_follow_the_point(self):
        given = quick_fit(log_likelihood, qbvi.Normal(0, 1, shape=2), args=(Y, 0.5), seed=1)
        bound = quick_fit(lambda t: log_likelihood(t, Y, 0.5), qbvi.Normal(0, 1, shape=2), seed=1)
        assert given.q.tobytes() == bound.q.tobytes()

    def test_follow_the_data(self):
        def f(theta, y, sd):
            return -0.5 * float(np.sum(((y - theta) / sd) ** 2))

        given = quick_fit(f, qbvi.Normal(0, 1), data=Y, args=[0.5], seed=1)
        bound = quick_fit(lambda t: f(t, Y, 0.5), qbvi.Normal(0, 1), seed=1)
        assert given.mean == pytest.approx(float(bound.mean), rel=1e-12)

    def test_go_to_other_processes(self):
        def distance(theta, y):  # one that travels by its code: the processes need not import this module
            return -0.5 * float(((theta - y) ** 2).sum())

        here = quick_fit(distance, qbvi.Normal(0, 1, shape=2), args=(Y,), seed=1)
        there = quick_fit(distance, qbvi.Normal(0, 1, shape=2), args=(Y,), seed=1, executor=2)
        assert here.q.tobytes() == there.q.tobytes()

    def test_are_part_of_the_fingerprint_of_a_checkpoint(self, tmp_path):
        prior, path = qbvi.Normal(0, 1, shape=2), tmp_path / "run"
        quick_fit(log_likelihood, prior, args=(Y,), seed=1, checkpoint=path)
        with pytest.raises(qbvi.CheckpointError, match="function"):
            quick_fit(log_likelihood, prior, args=(Y + 1,), seed=1, checkpoint=path)

    @pytest.mark.parametrize("args", [Y, 3.0, "y", {"y": Y}])
    def test_must_be_a_tuple_or_list(self, args):
        with pytest.raises(TypeError, match=r"`args` must be a tuple or list .* write args=\(value,\)"):
            qbvi.fit(log_likelihood, qbvi.Normal(0, 1, shape=2), args=args)


class TestListsOfPriors:
    def test_bounds_are_uniform_priors_of_one_vector(self):
        listed = quick_fit(log_likelihood, [(0, 1), (0, 5)], args=(Y,), seed=1)
        uniform = quick_fit(log_likelihood, qbvi.Uniform([0, 0], [1, 5]), args=(Y,), seed=1)
        assert listed.labels == uniform.labels == ("theta[0]", "theta[1]")
        # Two fits of the same posterior: each may miss 0.05 nats of it.
        np.testing.assert_allclose(listed.mean, uniform.mean, atol=0.05)
        # A standard deviation that is wrong by a share s costs s^2 nats: 0.05 nats allow a fifth.
        np.testing.assert_allclose(np.sqrt(np.diag(listed.cov)), np.sqrt(np.diag(uniform.cov)), rtol=0.2)
        error = 3 * np.hypot(listed.evidence_se, uniform.evidence_se)
        assert listed.evidence == pytest.approx(uniform.evidence, abs=error)

    def test_each_entry_has_its_own_prior(self):
        prior = [qbvi.Normal(0, 1), stats.gamma(2), (0, None), qbvi.Poisson(30)]
        fit = qbvi.fit(lambda t: -0.5 * float(np.sum((t - [1, 2, 3, 30]) ** 2)), prior, seed=1)
        assert fit.mean.shape == (4,)
        assert fit.cov.shape == (4, 4)
        assert fit.mean[0] == pytest.approx(0.5, abs=0.05)
        draws = fit.sample(100, seed=1)
        assert draws.shape == (100, 4)
        assert np.all(draws[:, 1:] >= 0)
        np.testing.assert_array_equal(draws[:, 3], np.round(draws[:, 3]))
        assert np.isfinite(fit.log_prob(draws, batched=True)).all()

    def test_density_outside_of_the_bounds_is_zero(self):
        fit = quick_fit(log_likelihood, [(0, 1), (0, 5)], args=(Y,), seed=1)
        assert fit.log_prob([0.5, 6.0]) == -np.inf
        assert np.isfinite(fit.log_prob([0.5, 4.0]))

    def test_init_and_reference_points_are_vectors(self):
        fit = quick_fit(log_likelihood, [(0, 1), (0, 5)], args=(Y,), init=[0.5, 1.0], seed=1)
        with pytest.raises(ValueError, match=r"`init` must be a point.*2 entries along the last axis"):
            quick_fit(log_likelihood, [(0, 1), (0, 5)], args=(Y,), init=[0.5])
        assert fit.converged

    def test_a_saved_fit_needs_no_prior(self, tmp_path):
        fit = quick_fit(log_likelihood, [(0, 1), qbvi.Normal(0, 5)], args=(Y,), seed=1)
        fit.save(tmp_path / "fit")
        loaded = qbvi.load(tmp_path / "fit")
        assert loaded.mean.tobytes() == fit.mean.tobytes()
        assert loaded.evaluations.points.tobytes() == fit.evaluations.points.tobytes()

    def test_a_function_in_a_list_is_given_again_when_loading(self, tmp_path):
        prior = [(0, 1), qbvi.Transformed(qbvi.Normal(0, 1), qbvi.Bijection(lambda u: np.exp(u[0])), shape=())]
        fit = quick_fit(log_likelihood, prior, args=(Y,), seed=1)
        fit.save(tmp_path / "fit")
        assert qbvi.load(tmp_path / "fit", prior=prior).mean.tobytes() == fit.mean.tobytes()

    def test_earlier_evaluations_match_by_place(self):
        first = quick_fit(log_likelihood, [(0, 1), (0, 5)], args=(Y,), seed=1)
        again = quick_fit(log_likelihood, [(0, 1), (0, 6)], args=(Y,), evaluations=first, seed=2)
        assert again.n_evals < first.n_evals

    def test_families_by_entry(self):
        fit = qbvi.fit(log_likelihood, [(0, 5), qbvi.Gamma(2, 1)], args=(Y,), family={"theta[1]": "gamma"}, seed=1)
        assert set(fit.factors) == {"theta[1]"}

    def test_parts_must_be_scalars(self):
        with pytest.raises(ValueError, match=r"one scalar prior for each entry .* got shape \(3,\) for 'theta\[1\]'"):
            qbvi.fit(log_likelihood, [(0, 1), qbvi.Normal(0, 1, shape=3)], args=(Y,))

    @pytest.mark.parametrize(
        ("prior", "message"),
        [
            ([(0, 1), (5, 0)], r"prior of 'theta\[1\]': `low` must be below `high`"),
            ((0, 5), r"prior of 'theta\[0\]': `prior` must be a distribution .* or a pair of bounds"),
            ([(0, "a")], r"prior of 'theta\[0\]'"),
            ([(0, np.nan)], r"prior of 'theta\[0\]'"),
            ([], "at least one parameter"),
        ],
    )
    def test_wrong_lists_are_refused_by_entry(self, prior, message):
        with pytest.raises((TypeError, ValueError), match=message):
            qbvi.fit(log_likelihood, prior, args=(Y,))


def test_bounds_serve_by_name_too():
    fit = qbvi.fit(lambda p: -((p["a"] - 1) ** 2) - p["b"], {"a": (-5, 5), "b": (0, np.inf)}, seed=1)
    assert fit.mean["b"] == pytest.approx(1.0, abs=0.1)


def test_a_vector_gives_its_entries_names():
    model = Model(Vector({"a": qbvi.Normal(0, 1), "b": (0, 1)}))
    assert model.labels == ["a", "b"]
    restored = Model.from_spec(model.to_spec())
    assert restored.labels == model.labels
    assert restored.is_vector
    np.testing.assert_array_equal(restored.constrain(np.zeros((3, 2))), model.constrain(np.zeros((3, 2))))


def test_the_first_iteration_is_proportional_to_the_scale_of_a_flat_prior():
    seen = {1.0: [], 1e4: []}
    for scale, points in seen.items():
        quick_fit(
            lambda t, scale, points: points.append(t) or -0.5 * float(np.sum((t / scale) ** 2)),
            qbvi.Flat(2, scale=scale),
            args=(scale, points),
            seed=1,
        )
    np.testing.assert_allclose(seen[1e4][0], 1e4 * seen[1.0][0], rtol=1e-9)
    with pytest.raises(ValueError, match="`scale` must be positive"):
        qbvi.Flat(2, scale=0.0)
    with pytest.raises(ValueError, match="broadcast"):
        qbvi.Flat(2, scale=[1.0, 2.0, 3.0])
