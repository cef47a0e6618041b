"""Build hook: the README is the home page, and links to files outside of docs/ lead to their pages.

The Markdown files are read in the repository as well as on the site. Their links are those of the
repository. Here the links that leave docs/ are translated.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Files outside of docs/ that become part of the site, by their place there.
ADDED = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "benchmarks/gpu.md": "benchmarks/gpu/notes.md",
    "CITATION.cff": "CITATION.cff",
}
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files from outside of docs/."""
    for place, source in ADDED.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Translate the links of a page that exists in the repository."""
    place = page.file.src_uri
    source = ADDED.get(place, f"docs/{place}")
    if not (ROOT / source).exists():
        return markdown
    return _LINK.sub(lambda link: _on_site(link[1], source, place), markdown)


def _on_site(link: str, source: str, place: str) -> str:
    """A link of the repository as a link of the site.

    A link without a target stays as it is, so that the build reports it.
    """
    target = _normal(Path(source).parent / link)
    there = {repository: site for site, repository in ADDED.items()}.get(target)
    if target.startswith("docs/"):
        there = target.removeprefix("docs/")
    elif target == "examples/serve":
        there = "gallery/serve.md"
    elif target.startswith("examples/") and target.endswith(".py"):
        there = f"gallery/{Path(target).stem}.md"
    return link if there is None else "../" * place.count("/") + there


def _normal(path: Path) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)
