"""The closing verdict: each doubt on draws made for it, and none where the draws confirm the fit."""

import numpy as np
import pytest

from qbvi.ending import Stop, StopKind
from qbvi.families import Gaussian
from qbvi.protocol import Values
from qbvi.verdict import Look, Verdict

FAMILY = Gaussian(1)
Q = FAMILY.start(np.zeros(1), np.ones(1))
SETTLED = Stop.of(StopKind.GAP, tol=0.01)


def look_at(residual, n=400, fails=lambda z: z > np.inf, seed=1):
    """Fresh draws from a standard normal with these residuals, functions of z, as are failures."""
    z = np.random.default_rng(seed).standard_normal((n, 1))
    h, failed = residual(z[:, 0]), fails(z[:, 0])
    values = Values(h, h, ~failed, np.zeros(n))
    return Look(FAMILY, Q, h[None, ~failed], float(np.mean(failed)), (z, values))


def judged(look, gap=0.001, fitted=None, khat=0.1, stop=SETTLED):
    return Verdict().judge(stop, look, gap, look.h.mean() if fitted is None else fitted, khat)


def small(z):
    """What a Gaussian does not follow, and nothing else: a Hermite polynomial of degree three."""
    return 0.05 * (z**3 - 3 * z)


def test_draws_that_confirm_a_fit_leave_it_as_it_is():
    assert judged(look_at(small)) == SETTLED
    assert not Verdict().doubts(look_at(small), 0.001)


@pytest.mark.parametrize(
    ("look", "options", "kind"),
    [
        (look_at(lambda z: 0.5 * z), {}, StopKind.STILL_TO_GAIN),  # a slope: an eighth of a nat
        (look_at(lambda z: np.where(z == z.min(), -40.0, 0.0), n=200), {}, StopKind.LEFT_OPEN),  # one draw decides
        (look_at(small, fails=lambda z: z > 1), {}, StopKind.FAILURES),
        (look_at(small), {"fitted": 1.0}, StopKind.BOUND_BELOW),
        (look_at(lambda z: 30 * z, n=8), {}, StopKind.FAR_OFF),  # too few for least squares
        (look_at(small), {"khat": np.inf}, StopKind.ONE_RATIO),
        (look_at(lambda z: 0.2 * (z**3 - 3 * z), n=1000), {"khat": 1.5}, StopKind.KHAT),
    ],
    ids=lambda value: value.value if isinstance(value, StopKind) else "",
)
def test_each_doubt_takes_a_convergence_back_and_says_so(look, options, kind):
    stop = judged(look, **options)
    assert stop.kind is kind
    assert not stop.converged
    assert "but" in stop.reason or kind is StopKind.BOUND_BELOW


def test_failures_by_chance_neither_forbid_a_convergence_nor_hide_what_is_missing():
    def often(z):
        return np.arange(len(z)) % 3 == 0

    assert judged(look_at(small, fails=often)) == SETTLED
    assert not Verdict().doubts(look_at(small, fails=often), 0.001)
    missing = look_at(lambda z: 0.5 * z, fails=often)
    assert judged(missing).kind is StopKind.STILL_TO_GAIN
    assert Verdict().doubts(missing, 0.001)


def test_what_was_predicted_is_no_news():
    """An eighth of a nat to be gained, where the method said that a tenth would be missing."""
    look = look_at(lambda z: 0.5 * z)
    assert judged(look, gap=0.1) == SETTLED
    assert not Verdict().doubts(look, 0.1)


def test_suspicion_sends_a_fit_on_before_there_is_proof():
    """0.03 nats: worth another turn of the loop, too little to take a convergence back."""
    look = look_at(lambda z: np.sqrt(0.06) * z)
    assert Verdict().doubts(look, 0.001)
    assert judged(look) == SETTLED


def test_khat_says_nothing_about_rounding_errors():
    assert judged(look_at(lambda z: 1e-4 * (z**3 - 3 * z)), khat=3.0) == SETTLED


def test_a_fit_that_did_not_settle_stays_that_way():
    spent = Stop.of(StopKind.EVALUATIONS, evaluations=100)
    assert judged(look_at(lambda z: 5 * z), stop=spent) == spent


def test_with_mini_batches_least_squares_is_not_asked():
    groups = np.stack([0.5 * np.random.default_rng(i).standard_normal(50) for i in range(4)])
    assert judged(Look(FAMILY, Q, groups, 0.0)) == SETTLED


def test_numbers_of_the_rule_are_its_own():
    look = look_at(lambda z: 0.5 * z)
    assert Verdict(proven_gain=0.2).judge(SETTLED, look, 0.001, look.h.mean(), 0.1) == SETTLED
