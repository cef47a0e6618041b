"""Model: one density over flat vectors, and the only place where names and shapes are checked."""

import json

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from libraries import on_eager_libraries
from qbvi.arrays import to_numpy
from qbvi.distributions import (
    Beta,
    Dirichlet,
    Flat,
    Gamma,
    InverseGamma,
    LogNormal,
    LogPrior,
    MultivariateNormal,
    Normal,
    SciPyPrior,
    Transformed,
)
from qbvi.model import Model
from qbvi.supports import Bijection, Ordered, Positive, Simplex, UserDefinedError

COV = np.array([[2.0, 0.6], [0.6, 1.0]])


def laplace(x):
    return -np.abs(x).sum()


def named():
    return Model(
        {
            "beta": Normal(1.0, 5.0, shape=2),
            "sigma2": InverseGamma(3, 1),
            "A": LogNormal(0.0, 1.0, shape=(2, 2)),
            "w": Dirichlet([1.0, 2.0, 3.0]),
            "joint": MultivariateNormal([0.0, 1.0], COV),
            "cuts": Flat(3, Ordered()),
            "scipy": stats.beta(2, 3),
            "own": LogPrior(laplace, (), Positive()),
        }
    )


MODELS = {
    "named": named(),
    "one": Model({"x": Normal()}),
    "vector": Model(Normal(0, 2, shape=3)),
    "scalar": Model(Gamma(2, 2)),
    "simplex": Model(Dirichlet([1.0, 1.0, 1.0])),
    "diagonal": Model({"a": Normal(3.0, 0.5, shape=2), "b": LogNormal(1.0, 2.0), "c": Flat(2)}),
}
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())


def points(model, n=6):
    return np.random.default_rng(0).standard_normal((n, model.dim))


def test_columns_follow_the_order_of_the_mapping():
    model = named()
    assert model.dim == 2 + 1 + 4 + 2 + 2 + 3 + 1 + 1
    assert [p.columns for p in model.parameters][:4] == [slice(0, 2), slice(2, 3), slice(3, 7), slice(7, 9)]
    assert [p.shape for p in model.parameters][:4] == [(2,), (), (2, 2), (3,)]
    u = points(model)
    values = model.constrain(u)
    np.testing.assert_array_equal(values["beta"], u[:, :2])
    np.testing.assert_allclose(values["sigma2"], np.exp(u[:, 2]))
    np.testing.assert_allclose(values["A"], np.exp(u[:, 3:7]).reshape(-1, 2, 2))
    reordered = Model({"sigma2": InverseGamma(3, 1), "beta": Normal(shape=2)})
    assert list(reordered.constrain(np.zeros((1, 3)))) == ["sigma2", "beta"]


def test_labels():
    assert named().labels[:7] == ["beta[0]", "beta[1]", "sigma2", "A[0,0]", "A[0,1]", "A[1,0]", "A[1,1]"]
    assert MODELS["vector"].labels == ["theta[0]", "theta[1]", "theta[2]"]
    assert MODELS["scalar"].labels == ["theta"]
    assert len(MODELS["simplex"].labels) == 3 == MODELS["simplex"].dim + 1


def test_unnamed_values_are_one_array():
    assert not MODELS["vector"].is_named
    assert MODELS["vector"].constrain(np.zeros((4, 3))).shape == (4, 3)
    assert MODELS["scalar"].constrain(np.zeros((4, 1))).shape == (4,)
    assert MODELS["one"].is_named


@every_model
def test_round_trips(model, xp):
    u = points(model)
    values = model.constrain(xp.asarray(u))
    flat = model.flatten(values)
    assert flat.shape == (6, len(model.labels))
    np.testing.assert_allclose(model.unconstrain(values, batched=True), u, atol=1e-10)
    again = model.unflatten(flat)
    np.testing.assert_array_equal(to_numpy(model.flatten(again)), to_numpy(flat))
    np.testing.assert_allclose(model.unconstrain(again, batched=True), u, atol=1e-10)


@every_model
def test_one_point_round_trip(model):
    u = points(model)
    values = model.constrain(u)
    point = {name: value[2] for name, value in values.items()} if model.is_named else values[2]
    got = model.unconstrain(point)
    assert got.shape == (model.dim,)
    np.testing.assert_allclose(got, u[2], atol=1e-10)


def test_log_prior_is_the_sum_over_parameters_with_jacobians(xp):
    model = Model({"beta": Normal(1.0, 5.0, shape=2), "sigma2": InverseGamma(3, 1), "p": Beta(2, 3)})
    u = points(model)
    x = expit(u[:, 3])
    jacobian = u[:, 2] + np.log(x * (1 - x))
    expected = (
        stats.norm(1, 5).logpdf(u[:, :2]).sum(-1)
        + stats.invgamma(3).logpdf(np.exp(u[:, 2]))
        + stats.beta(2, 3).logpdf(x)
        + jacobian
    )
    np.testing.assert_allclose(to_numpy(model.log_prior(xp.asarray(u))), expected, rtol=1e-12)
    np.testing.assert_allclose(to_numpy(model.log_jacobian(xp.asarray(u))), jacobian, rtol=1e-12)


@on_eager_libraries
@every_model
def test_quadratic_and_remaining_parts_add_up_to_the_log_prior(model, xp):
    check_parts_of_the_log_prior(model, xp)


@pytest.mark.parametrize("xp", ["jax"], indirect=True)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "named"])  # which has a NumPy function in it
def test_quadratic_and_remaining_parts_add_up_in_compiled_code(name, xp):
    check_parts_of_the_log_prior(MODELS[name], xp)


def check_parts_of_the_log_prior(model, xp):
    u = points(model)
    linear, precision = model.quadratic_prior()
    matrix = np.diag(precision) if precision.ndim == 1 else precision
    assert linear.shape == (model.dim,)
    assert matrix.shape == (model.dim, model.dim)
    quadratic = u @ linear - 0.5 * np.einsum("ni,ij,nj->n", u, matrix, u)
    remaining = model.remaining_log_prior(xp.asarray(u))
    assert remaining.shape == (6,)
    np.testing.assert_allclose(
        quadratic + to_numpy(remaining), to_numpy(model.log_prior(xp.asarray(u))), rtol=1e-10, atol=1e-10
    )


def test_precision_is_a_vector_only_when_diagonal():
    assert MODELS["diagonal"].quadratic_prior().precision.shape == (5,)
    np.testing.assert_allclose(MODELS["diagonal"].quadratic_prior().precision, [4, 4, 0.25, 0, 0])
    block = named().quadratic_prior().precision
    np.testing.assert_allclose(block[9:11, 9:11], np.linalg.inv(COV))
    np.testing.assert_array_equal(block[11:], 0.0)


def test_remaining_is_exactly_constant_for_quadratic_priors():
    model = Model({"a": Normal(3.0, 1e-3, shape=2), "b": MultivariateNormal(0.0, COV)})
    remaining = model.remaining_log_prior(1e3 * points(model))
    assert np.ptp(remaining) == 0.0


def test_sample_prior():
    model = Model({"beta": Normal(1.0, 5.0, shape=2), "w": Dirichlet([1.0, 2.0, 3.0])})
    draws = model.sample_prior(np.random.default_rng(0), 9)
    assert {name: x.shape for name, x in draws.items()} == {"beta": (9, 2), "w": (9, 3)}
    assert MODELS["vector"].sample_prior(np.random.default_rng(0), 9).shape == (9, 3)
    assert Model({"a": Normal(), "b": Flat(2)}).sample_prior(np.random.default_rng(0), 9) is None


@every_model
def test_initial(model):
    loc, scale = model.initial()
    assert loc.shape == scale.shape == (model.dim,)
    assert np.all(np.isfinite(loc))
    assert np.all(scale > 0)


def test_initial_keeps_the_order_of_columns():
    loc, scale = MODELS["diagonal"].initial()
    np.testing.assert_array_equal(loc, [3, 3, 1, 0, 0])
    np.testing.assert_array_equal(scale, [0.5, 0.5, 2, 1, 1])


class TestUnconstrainErrors:
    model = Model({"beta": Normal(shape=2), "sigma2": InverseGamma(3, 1), "p": Beta(2, 2)})
    good = {"beta": [0.0, 1.0], "sigma2": 1.0, "p": 0.5}  # noqa: RUF012

    def test_the_good_one_passes(self):
        np.testing.assert_allclose(self.model.unconstrain(self.good), [0, 1, 0, 0])

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"beta": [0.0, 1.0, 2.0]}, r"'beta' must have shape \(2,\), got \(3,\)"),
            ({"sigma2": [1.0]}, r"'sigma2' must have shape \(\), got \(1,\)"),
            ({"beta": [0.0, np.nan]}, "'beta' must be finite, got nan"),
            ({"beta": [0.0, -np.inf]}, "'beta' must be finite, got -inf"),
            ({"sigma2": -1.0}, r"'sigma2' must lie inside of Positive\(\), got -1.0"),
            ({"sigma2": 0.0}, r"'sigma2' must lie strictly inside of, not on the boundary of, Positive\(\), got 0.0"),
            ({"p": 1.5}, r"'p' must lie inside of Interval\(low=0.0, high=1.0\), got 1.5"),
            ({"sigma": 2.0}, r"unexpected 'sigma' \(did you mean 'sigma2'\?\)"),
            ({"zzz": 2.0}, r"names of the parameters, beta, sigma2, p: unexpected 'zzz'$"),
        ],
    )
    def test_values(self, change, message):
        with pytest.raises(ValueError, match=message):
            self.model.unconstrain({**self.good, **change})

    def test_missing_and_misspelt(self):
        with pytest.raises(ValueError, match=r"missing 'sigma2', 'p'; unexpected 'sigma_2' \(did you mean 'sigma2'"):
            self.model.unconstrain({"beta": [0.0, 1.0], "sigma_2": 1.0})

    def test_types(self):
        with pytest.raises(TypeError, match="a dict with the names beta, sigma2, p, got ndarray"):
            self.model.unconstrain(np.zeros(4))
        with pytest.raises(TypeError, match="'p' must be numbers, got 'half'"):
            self.model.unconstrain({**self.good, "p": "half"})

    def test_batches(self):
        with pytest.raises(ValueError, match=r"'beta' must have shape \(n, 2\), got \(2,\)"):
            self.model.unconstrain(self.good, batched=True)
        with pytest.raises(ValueError, match=r"same number .* \{'beta': 3, 'sigma2': 4, 'p': 3\}"):
            self.model.unconstrain({"beta": np.zeros((3, 2)), "sigma2": np.ones(4), "p": np.full(3, 0.5)}, batched=True)
        with pytest.raises(ValueError, match=r"'p' must lie inside of .*, got 1.1"):
            self.model.unconstrain({"beta": np.zeros((3, 2)), "sigma2": np.ones(3), "p": [0.5, 1.1, 1.2]}, batched=True)

    def test_a_batch_may_touch_the_boundary_where_draws_saturate(self):
        values = self.model.constrain(np.full((1, 4), 200.0))
        assert values["p"][0] == 1.0
        assert np.all(np.isfinite(self.model.unconstrain(values, batched=True)))

    def test_unnamed(self):
        with pytest.raises(ValueError, match=r"'theta' must have shape \(3,\), got \(2,\)"):
            MODELS["vector"].unconstrain([1.0, 2.0])

    def test_bijection_without_inverse(self):
        model = Model(Transformed(Normal(shape=2), Bijection(np.exp)))
        with pytest.raises(ValueError, match="no `inverse`"):
            model.unconstrain([1.0, 2.0])


class TestBadPriors:
    def test_zero_parameters(self):
        with pytest.raises(ValueError, match="at least one parameter, got an empty list or dict"):
            Model({})

    def test_names(self):
        with pytest.raises(TypeError, match="non-empty strings as names of parameters, got 3"):
            Model({3: Normal()})
        with pytest.raises(TypeError, match="non-empty strings as names of parameters, got ''"):
            Model({"": Normal()})

    def test_the_message_says_whose_prior_it_is(self):
        with pytest.raises(TypeError, match=r"prior of 'beta': .* write qbvi.LogPrior"):
            Model({"beta": laplace})
        with pytest.raises(ValueError, match="prior of 'beta': `scale` must be positive"):
            Model({"beta": stats.norm(0, -1)})
        with pytest.raises(TypeError, match=r"^`prior` is a function"):
            Model(laplace)


class TestSpec:
    @every_model
    def test_description_and_spec_are_plain_json(self, model):
        description = json.loads(json.dumps(model.describe(), allow_nan=False))
        assert description["dim"] == model.dim
        assert [p["name"] for p in description["parameters"]] == [p.name for p in model.parameters]

    @every_model
    def test_round_trip(self, model):
        spec = json.loads(json.dumps(model.to_spec(), allow_nan=False))
        back = Model.from_spec(spec)
        assert back.is_named == model.is_named
        assert back.labels == model.labels
        u = points(model)
        np.testing.assert_array_equal(model.flatten(back.constrain(u)), model.flatten(model.constrain(u)))
        if "own" not in model.labels:
            np.testing.assert_array_equal(back.log_prior(u), model.log_prior(u))

    def test_a_lost_log_prior_can_be_supplied_again(self):
        model = named()
        lost = Model.from_spec(model.to_spec())
        u = points(model)
        with pytest.raises(UserDefinedError, match="pass `prior=` when loading"):
            lost.log_prior(u)
        whole = Model.from_spec(model.to_spec(), priors={"own": LogPrior(laplace, (), Positive())})
        np.testing.assert_array_equal(whole.log_prior(u), model.log_prior(u))

    def test_a_lost_map_is_an_error_until_supplied(self):
        prior = Transformed(Normal(shape=2), Bijection(np.exp))
        spec = Model({"tau": prior, "beta": Normal()}).to_spec()
        with pytest.raises(UserDefinedError, match=r"parameter 'tau' has a user-defined map or prior.*pass `prior=`"):
            Model.from_spec(spec)
        back = Model.from_spec(spec, priors={"tau": prior})
        np.testing.assert_allclose(back.constrain(np.ones((1, 3)))["tau"], np.e)
        unnamed = Model(prior)
        with pytest.raises(UserDefinedError, match="'theta'"):
            Model.from_spec(unnamed.to_spec())
        assert Model.from_spec(unnamed.to_spec(), priors=prior).dim == 2

    def test_supplied_priors_must_match(self):
        spec = named().to_spec()
        with pytest.raises(ValueError, match=r"unexpected 'owned' \(did you mean 'own'\?\)"):
            Model.from_spec(spec, priors={"owned": Normal()})
        with pytest.raises(ValueError, match=r"prior given for 'own' must have the stored shape \(\), got \(2,\)"):
            Model.from_spec(spec, priors={"own": Normal(shape=2)})

    def test_a_file_cannot_name_code(self):
        spec = {"named": False, "parameters": [{"name": "theta", "prior": {"kind": "os.system", "command": "true"}}]}
        with pytest.raises(ValueError, match="`kind` of a distribution must be one of"):
            Model.from_spec(spec)


def test_repr():
    assert repr(MODELS["vector"]) == "Model(Normal(loc=0.0, scale=2.0, shape=(3,)))"
    assert repr(Model({"w": Flat(3, Simplex())})) == "Model({'w': Flat((3,), support=Simplex())})"
    assert isinstance(named().parameters[6].distribution, SciPyPrior)
