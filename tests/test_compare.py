"""Models side by side: evidence, leave-one-out, their differences and errors."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import qbvi
from qbvi.loo import Loo

Y = np.random.default_rng(3).normal(0.6, 1.0, 40)


def fitted(scale, pointwise=True, y=Y, prior=None):
    terms = lambda m: stats.norm.logpdf(y, scale * m, 1.0)
    return qbvi.fit(
        terms if pointwise else lambda m: float(terms(m).sum()),
        qbvi.Normal(0, 1) if prior is None else prior,
        pointwise=pointwise,
        family="full",
        seed=1,
    )


def evidence(scale):
    """Of a normal mean with a standard normal prior times ``scale``."""
    return stats.multivariate_normal.logpdf(Y, np.zeros(40), np.eye(40) + scale**2)


@pytest.fixture(scope="module")
def fits():
    return {"narrow": fitted(0.1), "wide": fitted(1.0)}


def test_evidence_and_differences(fits):
    table = qbvi.compare(fits)
    assert [row.model for row in table] == ["wide", "narrow"]
    assert_allclose(table["narrow"].evidence_difference, evidence(0.1) - evidence(1.0), atol=0.02)
    assert_allclose(table["wide"].evidence, evidence(1.0), atol=0.02)
    assert (table["wide"].evidence_difference, table["wide"].elpd_difference) == (0.0, 0.0)
    row = table["narrow"]
    assert_allclose(row.evidence_difference_se, math.hypot(*(fit.evidence_se for fit in fits.values())))
    one, other = fits["narrow"].loo(), fits["wide"].loo()
    assert_allclose(row.elpd_difference, one.elpd - other.elpd)
    paired = math.sqrt(40 * np.var(one.pointwise - other.pointwise, ddof=1))
    assert paired < row.elpd_difference_se < paired + one.mcse + other.mcse
    assert row.elpd_difference_se < row.elpd_se


def test_what_is_printed(fits):
    text = repr(qbvi.compare(fits))
    assert text.splitlines()[0].split() == ["log", "evidence", "difference", "LOO", "difference", "p_loo"]
    assert [line.split()[0] for line in text.splitlines()[1:3]] == ["wide", "narrow"]
    assert "<th>narrow</th>" in qbvi.compare(fits)._repr_html_()
    frame = qbvi.compare(fits).to_pandas()
    assert list(frame.index) == ["wide", "narrow"]
    assert frame.loc["wide", "elpd"] == fits["wide"].loo().elpd
    with pytest.raises(KeyError, match="there are wide, narrow"):
        qbvi.compare(fits)["other"]


def test_without_leave_one_out_the_evidence_decides(fits):
    plain = {"a": fitted(0.1, pointwise=False), "b": fitted(1.0, pointwise=False)}
    table = qbvi.compare(plain)
    assert [row.model for row in table] == ["b", "a"]
    assert "LOO" not in repr(table)
    mixed = qbvi.compare({"a": plain["a"], "wide": fits["wide"]})
    assert "a: no leave-one-out; fit with pointwise=True" in mixed.notes
    assert math.isnan(mixed["a"].elpd)


def test_different_data_are_warned_about(fits):
    with pytest.warns(UserWarning, match="different numbers of observations: wide 40, less 30"):
        table = qbvi.compare({"wide": fits["wide"], "less": fitted(1.0, y=Y[:30])})
    assert "nothing here can be compared" in table.notes[0]
    assert math.isnan(table["less"].elpd)


def test_notes_on_numbers_that_mean_little(fits):
    table = qbvi.compare({"wide": fits["wide"], "flat": fitted(1.0, prior=qbvi.Flat(()))})
    assert any("flat: its prior is flat" in note for note in table.notes)
    bad = Loo(np.zeros(40), np.full(40, 0.9), 1.0, 0.1, 1000)
    assert any("k-hat is above 0.67 for 40 of 40" in note for note in qbvi.compare({"x": fits["wide"], "y": bad}).notes)


@pytest.mark.parametrize("wrong", [3, {}, {"a": 1, "b": 2}, [1, 2]])
def test_mistakes(wrong):
    with pytest.raises(TypeError, match="`fits` must"):
        qbvi.compare(wrong)
