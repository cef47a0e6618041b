"""Parameters in nested dicts: in and out, in tables, plots, files and starts."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import qbvi
from qbvi.model import Model
from qbvi.points import items, stacked

PRIOR = {
    "disc": {"r": qbvi.Normal(0, 1)},
    "s": qbvi.HalfNormal(1.0),
    "halo": {"v": qbvi.Normal(0, 1, shape=2), "more": {"w": qbvi.Normal(0, 1)}},
}
POINT = {"disc": {"r": 0.5}, "s": 1.0, "halo": {"v": [0.0, 1.0], "more": {"w": -1.0}}}


def log_likelihood(p):
    halo = p["halo"]
    return -0.5 * float((p["disc"]["r"] - 1) ** 2 + ((halo["v"] - 2) ** 2).sum() + halo["more"]["w"] ** 2) - p["s"]


@pytest.fixture(scope="module")
def fit():
    return qbvi.fit(
        log_likelihood, PRIOR, init=POINT, seed=1, family="full"
    )  # its structure does not depend on its shape


def shape_of(values):
    return {name: shape_of(one) if isinstance(one, dict) else np.shape(one) for name, one in values.items()}


def test_values_have_the_structure_of_the_prior(fit):
    shapes = {"disc": {"r": ()}, "s": (), "halo": {"v": (2,), "more": {"w": ()}}}
    assert shape_of(fit.mean) == shape_of(fit.sd) == shapes
    assert shape_of(fit.sample(3, seed=1)) == {
        "disc": {"r": (3,)},
        "s": (3,),
        "halo": {"v": (3, 2), "more": {"w": (3,)}},
    }
    assert shape_of(fit.cov)["halo"]["v"] == (2, 2)
    assert fit.labels == ("disc.r", "s", "halo.v[0]", "halo.v[1]", "halo.more.w")
    # A prior of N(0, 1) and a likelihood of the same width at 1 and at 2; a tenth of an sd.
    assert_allclose(fit.mean["disc"]["r"], 0.5, atol=0.07)
    assert_allclose(fit.mean["halo"]["v"], 1.0, atol=0.07)


def test_points_go_in_as_they_come_out(fit):
    flat = {"disc.r": 0.5, "s": 1.0, "halo.v": [0.0, 1.0], "halo.more.w": -1.0}
    assert fit.log_prob(POINT) == fit.log_prob(flat)
    assert fit.log_prob(POINT | {"s": -1.0}) == -np.inf
    assert fit.log_prob(fit.sample(4, seed=1), batched=True).shape == (4,)
    assert shape_of(fit.check(50, seed=1).weighted_draws().mean)["disc"] == {"r": ()}


def test_files_hold_the_structure(fit, tmp_path):
    fit.save(tmp_path / "fit.npz")
    back = qbvi.load(tmp_path / "fit.npz")
    assert repr(back.model) == repr(fit.model) == f"Model({PRIOR!r})"
    for (name, one), (other, two) in zip(items(back.mean), items(fit.mean), strict=True):
        assert name == other
        assert_allclose(one, two)


def test_all_ways_of_evaluating_see_the_same_points():
    def many(p):
        halo = p["halo"]
        parts = (p["disc"]["r"] - 1) ** 2 + ((halo["v"] - 2) ** 2).sum(axis=-1) + halo["more"]["w"] ** 2
        return -0.5 * parts - p["s"]

    options = {"init": POINT, "seed": 1, "max_evals": 60, "family": "full"}
    one = qbvi.fit(log_likelihood, PRIOR, **options)
    both = qbvi.fit(many, PRIOR, **options, vectorized=True)
    assert_allclose(both.mean["halo"]["v"], one.mean["halo"]["v"], rtol=1e-6)
    points = stacked([POINT, POINT])
    assert shape_of(points) == {"disc": {"r": (2,)}, "s": (2,), "halo": {"v": (2, 2), "more": {"w": (2,)}}}


def test_what_is_refused():
    model = Model(PRIOR)
    with pytest.raises(ValueError, match=r"missing 'disc.r'; unexpected 'disc.q'"):
        model.unconstrain(POINT | {"disc": {"q": 0.5}})
    with pytest.raises(ValueError, match=r"got 'a.b' twice: by a dot, and in a nested dict"):
        Model({"a.b": qbvi.Normal(0, 1), "a": {"b": qbvi.Normal(0, 1)}})
    with pytest.raises(ValueError, match="'a' is an empty dict"):
        Model({"a": {}, "b": qbvi.Normal(0, 1)})
    with pytest.raises(TypeError, match=r"a\.b"):
        Model({"a": {"b": 3.0}})
