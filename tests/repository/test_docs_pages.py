"""The questions and the recipe for hierarchical models run word for word, as a reader would type them."""

import re
from functools import partial
from pathlib import Path

import matplotlib as mpl
import pytest

import qbvi

DOCS = Path(__file__).resolve().parents[2] / "docs"
MOST_EVALUATIONS = 30  # enough for every line to run; what the fits find is tested elsewhere


def blocks(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["faq", "hierarchical"])
def test_every_block_runs(name, tmp_path, monkeypatch, capsys):
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    real = qbvi.fit

    def short(*args, **options):
        return real(*args, **options | {"max_evals": min(options.get("max_evals", MOST_EVALUATIONS), MOST_EVALUATIONS)})

    monkeypatch.setattr("qbvi.fit", partial(short))
    namespace = {}
    for block in blocks(DOCS / f"{name}.md"):
        exec(compile(block, name, "exec"), namespace)  # noqa: S102 - our own text
    assert isinstance(namespace["fit"], qbvi.Fit)


def test_every_question_has_a_paragraph_and_a_line():
    questions = re.split(r"^### ", (DOCS / "faq.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(questions) >= 12
    for question in questions:
        title, _, answer = question.partition("\n")
        paragraphs = [part for part in answer.partition("```python")[0].split("\n\n") if part.strip()]
        lines = answer.partition("```python\n")[2].partition("```")[0].strip().splitlines()
        assert (len(paragraphs), len(lines)) == (1, 1), title


@pytest.mark.parametrize("name", ["faq", "hierarchical"])
def test_local_links_lead_somewhere(name):
    links = re.findall(r"\]\((?!http)([^)#]+)\)", (DOCS / f"{name}.md").read_text())
    assert [link for link in links if not (DOCS / link).exists()] == []
