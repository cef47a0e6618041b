"""Build hook: run every example and make a page of its picture, its output and its code.

The pages and the pictures exist only in the built site. Nothing is cached: a page shows what the
example prints and draws with the source it was built from. An example that fails ends the build.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TIME_LIMIT = 600.0  # seconds for one example; the slowest takes about half a minute on one core


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the gallery's pages and pictures to the site."""
    examples = [Example.of(path) for path in sorted(EXAMPLES.glob("*.py"))]
    entries = []
    for example in examples:
        entries.append(f"- [{example.title}]({example.name}.md)")
        for file in _python_page(example, config):
            files.append(file)
    entries.append("- [A log-likelihood in C or awk, over a pipe](serve.md)")
    for file in _serve_page(config):
        files.append(file)
    files.append(File.generated(config, "gallery/index.md", content=_index(entries)))
    return files


@dataclass(frozen=True)
class Example:
    """A script: its docstring is the text of its page."""

    name: str
    title: str
    text: str
    code: str
    missing: tuple[str, ...]  # modules that it imports and that are not installed

    @classmethod
    def of(cls, path: Path) -> Example:
        """Read a script without running it."""
        code = path.read_text()
        tree = ast.parse(code)
        title, _, text = (ast.get_docstring(tree) or path.stem).partition("\n")
        needs = {name.split(".")[0] for node in ast.walk(tree) for name in _imports(node)}
        missing = tuple(sorted(name for name in needs if importlib.util.find_spec(name) is None))
        return cls(path.stem, title.rstrip("."), text.replace("``", "`").strip(), code, missing)


def _imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


def _index(entries: list[str]) -> str:
    return "\n".join(
        [
            "# Examples",
            "",
            "Every page shows one script of the folder `examples`: its picture, what it prints and its code.",
            "The build of this site runs the scripts.",
            "",
            *entries,
            "",
        ]
    )


def _python_page(example: Example, config: MkDocsConfig) -> list[File]:
    """The page of one script, and its pictures."""
    parts, pictures = [f"# {example.title}", example.text], []
    if example.missing:
        needs = ", ".join(f"`{name}`" for name in example.missing)
        parts.append(f"*This build did not run the example: it needs {needs}, which was not installed.*")
    else:
        with tempfile.TemporaryDirectory() as folder:
            output = _run([sys.executable, str(EXAMPLES / f"{example.name}.py"), "--out", "out"], Path(folder))
            pictures = _pictures(example.name, Path(folder) / "out", config)
        parts += [_shown(picture) for picture in pictures]
        parts += ["## Output", _block(output, "text")]
    parts += ["## Code", f"`examples/{example.name}.py`", _block(example.code, "python")]
    return [*pictures, _page(example.name, parts, config)]


def _serve_page(config: MkDocsConfig) -> list[File]:
    """The page of the programs that answer over a pipe.

    It runs the program in C or, if there is no compiler, the one in awk.
    """
    source = EXAMPLES / "serve"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in source.iterdir():
            shutil.copy(file, folder)
        has_compiler = shutil.which("cc") is not None
        if has_compiler:
            _run(["cc", "-O2", "-o", "simulator", "simulator.c", "-lm"], folder)
        program = "./simulator" if has_compiler else "./simulator.sh"
        server = "qbvi serve --prior prior.toml --out posterior.npz"
        output = _run([program, server], folder)
        _run([sys.executable, "-c", _DRAW], folder)
        pictures = _pictures("serve", folder / "out", config)
    parts = [
        "# A log-likelihood in C or awk, over a pipe",
        "The program starts `qbvi serve`, reads the points it asks for and answers with values: see [qbvi serve](../serve.md).",
        f"    {program} '{server}'",
        *[_shown(picture) for picture in pictures],
        "## Output",
        _block(output, "json"),
        *[f"## {file}\n\n" + _block((source / file).read_text(), language) for file, language in _SERVE],
    ]
    return [*pictures, _page("serve", parts, config)]


_SERVE = (("prior.toml", "toml"), ("simulator.c", "c"), ("simulator.sh", "bash"))
_DRAW = """
from pathlib import Path
import qbvi
Path("out").mkdir()
qbvi.load("posterior.npz").plot_marginals().savefig("out/marginals.png", dpi=200)
"""


def _run(command: list[str], folder: Path) -> str:
    """What a command prints; the build ends if the command fails."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    environment = os.environ | {"MPLBACKEND": "agg", "PATH": os.pathsep.join(folders)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT, check=False
    )
    if done.returncode:
        msg = f"the gallery: {' '.join(command)} ended with status {done.returncode}:\n{done.stderr}"
        raise PluginError(msg)
    return done.stdout


def _pictures(name: str, folder: Path, config: MkDocsConfig) -> list[File]:
    return [
        File.generated(config, f"gallery/{name}/{path.name}", content=path.read_bytes())
        for path in sorted(folder.glob("*.png"))
    ]


def _shown(picture: File) -> str:
    path = Path(picture.src_uri)
    name = path.stem.replace("_", " ")
    return f"![{name}]({path.parent.name}/{path.name})\n\n*{name}*"


def _block(text: str, language: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def _page(name: str, parts: list[str], config: MkDocsConfig) -> File:
    return File.generated(config, f"gallery/{name}.md", content="\n\n".join(parts) + "\n")
