"""Fault injections and fuzzers, with a fixed seed: qbvi survives every trial (rows: tests/helpers/attacks)."""

import pytest

from attacks import cases, tallied

CASES = cases()
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # sockets and pipes of what was killed
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def survive(case, n, tmp_path, record_property):
    tally = tallied(case, n, tmp_path)
    record_property("attack", (case.name, tally.tried, tally.survived))
    assert not tally.complaints, "\n".join(tally.complaints[:5])


def rows(of):
    return [pytest.param(case, id=case.name, marks=case.marks) for case in CASES if getattr(case, of)]


@pytest.mark.parametrize("case", rows("short"))
def test_a_few_trials(case, tmp_path, record_property):
    survive(case, case.short, tmp_path, record_property)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", rows("long"))
def test_many_trials(case, tmp_path, record_property):
    survive(case, case.long, tmp_path, record_property)
