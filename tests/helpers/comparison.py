"""Two fits compared to the last bit."""

from numpy.testing import assert_array_equal


def assert_same(one, other):
    assert_array_equal(one.q, other.q)
    assert_array_equal([one.elbo, one.elbo_se, one.khat], [other.elbo, other.elbo_se, other.khat])
    assert (one.n_evals, one.stop_reason, one.n_failed) == (other.n_evals, other.stop_reason, other.n_failed)
    for name in one.trace.names():
        if name != "seconds":
            assert_array_equal(one.trace[name], other.trace[name])
