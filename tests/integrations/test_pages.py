"""The pages "Coming from": their code runs as it is printed, and gives a converged fit."""

import re
from pathlib import Path

import pytest

from umbridge_process import free_port, served

pytestmark = pytest.mark.integrations
PAGES = Path(__file__).parents[2] / "docs" / "from"


def blocks(page):
    """The blocks of Python code that a page promises to run; sketches are marked ``py``."""
    return re.findall(r"^```python\n(.*?)^```$", (PAGES / f"{page}.md").read_text(), flags=re.MULTILINE | re.DOTALL)


def run(code):
    found = {"__name__": "page"}
    exec(compile("\n".join(code), "page", "exec"), found)  # noqa: S102 - our own text
    return found


@pytest.mark.parametrize(("page", "package"), [("emcee", "emcee"), ("dynesty", "dynesty"), ("pints", "pints")])
def test_the_code_of_a_page_runs_and_converges(page, package, capsys):
    pytest.importorskip(package, reason=f"{package} is not installed")
    found = run(blocks(page))
    assert found["fit"].converged
    if "again" in found:
        assert found["again"].converged
        assert found["again"].n_evals < found["fit"].n_evals


def test_the_server_and_the_client_of_the_page_on_umbridge(tmp_path, capsys):
    pytest.importorskip("umbridge", reason="umbridge is not installed")
    port = str(free_port())
    server, *client = (block.replace("4242", port) for block in blocks("umbridge"))
    (tmp_path / "server.py").write_text(server)
    with served(tmp_path / "server.py", port):
        assert run(client)["fit"].converged
