"""Fault injections and fuzzers, with a fixed seed: qbvi survives every trial (rows: tests/helpers/attacks)."""

import pytest

from attacks import cases, tallied

CASES = cases()
PORTION = 10  # trials of one test
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # sockets and pipes of what was killed
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def survive(case, numbers, tmp_path, record_property):
    tally = tallied(case, numbers, tmp_path)
    record_property("attack", (case.name, tally.tried, tally.survived, tally.limits))
    assert not tally.complaints, "\n".join(tally.complaints[:5])


def portions(of):
    """Each case in portions that end well before the time limit of a test."""
    for case in CASES:
        n = getattr(case, of)
        for first in range(0, n, PORTION):
            numbers = range(first, min(first + PORTION, n))
            yield pytest.param(case, numbers, id=f"{case.name}-{first}", marks=case.marks)


@pytest.mark.parametrize(("case", "numbers"), list(portions("short")))
def test_a_few_trials(case, numbers, tmp_path, record_property):
    survive(case, numbers, tmp_path, record_property)


@pytest.mark.soak
@pytest.mark.parametrize(("case", "numbers"), list(portions("long")))
def test_many_trials(case, numbers, tmp_path, record_property):
    survive(case, numbers, tmp_path, record_property)
