"""Sweeps over seeds and cases: the first few run in `make test`, the others in `make soak`."""

import pytest


def sweep(values, *, first):
    """Parameters for ``pytest.mark.parametrize``, all but the first few of them marked with `soak`."""
    return [pytest.param(value, marks=[pytest.mark.soak] * (k >= first)) for k, value in enumerate(values)]
