"""The page of a fit: what it says, that it stands alone, and that no name of a user is taken for HTML."""

import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

import qbvi
from qbvi.distributions import Normal
from qbvi.ending import StopKind
from qbvi.evaluate.failures import Failure
from qbvi.families import Gaussian
from qbvi.model import Model
from qbvi.page import Trust, notebook_html, verdict_of
from qbvi.results import Fit, Report, Trace

pytest.importorskip("matplotlib", reason="pictures come with the extra qbvi[plots]").use("agg")
from matplotlib.figure import Figure


def sketch(figure, file, **_):
    """Writes no picture: to draw that of many entries takes a second, and the text around it is what is tested."""
    file.write(b"a sketch")


VOID = {"meta", "img", "br"}
GOOD = {"converged": True, "stop_kind": StopKind.MISSING, "stop_reason": "few nats are missing", "n_evals": 100}


def make_fit(prior=None, **report):
    model = Model({"a": Normal(0, 1), "b": Normal(0, 1)} if prior is None else prior)
    d = model.dim
    q = Gaussian(d).start(np.zeros(d), np.ones(d))
    one = np.array([1.0, 2.0])
    trace = Trace(50 * one, -one, -one, one, one, one, np.zeros((2, d)), np.ones((2, d)))
    return Fit(model, Gaussian(d), q, Report(trace=trace, elbo=-1.0, elbo_se=0.1, **report))


class Balance(HTMLParser):
    """Checks that every tag is closed, in order, and collects tags and links."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.sources = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


class TestVerdict:
    def test_good(self):
        verdict = verdict_of(make_fit(missing=0.001, missing_se=0.001, khat=0.2, khat_draws=1000, **GOOD))
        assert verdict.trust is Trust.GOOD
        assert verdict.reasons[0] == "The fit has converged: few nats are missing."
        assert verdict.reasons[1] == "No posterior probability is wrong by more than about 0.03."

    @pytest.mark.parametrize(
        ("report", "words"),
        [
            ({"missing": 0.2, "missing_se": 0.1}, "off"),
            ({"missing": 0.2, "missing_se": np.inf}, "far off"),
            ({"khat": 0.68, "khat_draws": 1000, "missing": 0.06, "missing_se": 0.001}, "k-hat is 0.68"),
            ({"failures": (Failure(np.zeros(2), "nan", "nan"),) * 3}, "failed at 3 of 100 points (3.0%)"),
        ],
    )
    def test_care(self, report, words):
        verdict = verdict_of(make_fit(**GOOD, **report))
        assert verdict.trust is Trust.CARE
        assert any(words in reason for reason in verdict.reasons)

    def test_bad_and_by_hand(self):
        ended = make_fit(stop_kind=StopKind.EVALUATIONS, stop_reason="the budget was spent", notes=("Try more.",))
        assert verdict_of(ended).trust is Trust.BAD
        assert verdict_of(ended).reasons == ("The fit has not converged: the budget was spent.", "Try more.")
        assert verdict_of(make_fit()).headline == "Nobody has checked this posterior."


class TestReport:
    def test_one_file_with_all_parts(self, tmp_path):
        fit = make_fit(missing=0.001, missing_se=0.001, **GOOD)
        written = fit.report(tmp_path / "report.html", figures={"Predictive check": fit.plot_forest()})
        page = written.read_text(encoding="utf-8")
        found = Balance(page)
        assert found.tags.count("img") == 4  # trace, marginals, pairs and the given one
        assert all(source.startswith("data:image/png;base64,") for source in found.sources)
        heads = re.findall("<h2>(.*?)</h2>", page)
        assert heads == ["Posterior", "Diagnostics", "Figures", "Priors", "How to cite"]
        for words in ("You can use this posterior.", "Predictive check", "2205.11568", "Normal(loc=0.0, scale=1.0)"):
            assert words in page
        assert '<meta name="viewport" content="width=device-width' in page
        assert "@media print" in page

    def test_failures_are_listed(self, tmp_path):
        failures = tuple(
            Failure({"a": np.array(1.5)}, "exception", "ValueError: <no root>", "", 0.2) for _ in range(12)
        )
        page = make_fit(failures=failures, **GOOD).report(tmp_path / "r.html").read_text(encoding="utf-8")
        assert "12 of 100 evaluations failed (12.0%): 12 exception. The first 10 are:" in page
        assert page.count("ValueError: &lt;no root&gt;") == 10

    def test_no_text_of_a_user_is_taken_for_html(self, tmp_path):
        evil = "<script>alert('1')</script>&\""
        fit = make_fit({evil: Normal(0, 1), "b": Normal(0, 1)}, notes=(evil,), **GOOD | {"stop_reason": evil})
        page = fit.report(tmp_path / "r.html", title=evil, figures={evil: fit.plot_forest(["b"])}).read_text("utf-8")
        for text in (page, notebook_html(fit)):
            assert "script" not in Balance(text).tags
            assert "<script" not in text

    def test_many_entries_are_shown_in_part(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Figure, "savefig", sketch)
        fit = make_fit(Normal(0, 1, shape=30), **GOOD)
        page = fit.report(tmp_path / "r.html").read_text(encoding="utf-8")
        assert "Marginal densities of the first 24 of 30 entries." in page
        assert "Pairs of entries of the first 6 of 30 entries" in page
        assert "Medians, 50 % and 95 % intervals." in page
        some = fit.report(tmp_path / "r.html", names=["theta[3]"]).read_text(encoding="utf-8")
        assert "Pairs" not in some

    def test_without_matplotlib_it_says_what_is_missing(self, tmp_path, monkeypatch):
        fit = make_fit(**GOOD)
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        for name in [name for name in sys.modules if name.startswith("qbvi.plots")]:
            monkeypatch.delitem(sys.modules, name)
        page = fit.report(tmp_path / "r.html").read_text(encoding="utf-8")
        assert 'pip install "qbvi[plots]"'.replace('"', "&quot;") in page
        assert "<img" not in page
        assert "<img" not in notebook_html(fit)


class TestNotebook:
    def test_verdict_table_and_one_picture(self):
        text = make_fit(missing=0.001, missing_se=0.001, **GOOD)._repr_html_()
        found = Balance(text)
        assert found.tags.count("img") == 1
        assert "You can use this posterior. The fit has converged: few nats are missing." in text
        assert "<th>a</th><td>0.00</td><td>1.00</td>" in text
        assert "<th>log evidence</th>" in text

    def test_many_entries(self):
        text = make_fit(Normal(0, 1, shape=30), **GOOD)._repr_html_()
        assert "18 more entries are in summary()." in text
        assert "<img" not in text  # no legible picture

    def test_a_fit(self):
        fit = qbvi.fit(lambda x: -0.5 * (x - 1.0) ** 2, qbvi.Normal(0, 1), seed=1)
        assert "<img" in fit._repr_html_()
