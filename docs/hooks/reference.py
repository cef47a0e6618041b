"""Build hook: every public name has its place in the reference."""

from __future__ import annotations

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files

import qbvi
import qbvi.baselines
import qbvi.families
import qbvi.models
import qbvi.sklearn

PUBLIC = {
    "qbvi": qbvi,
    "qbvi.baselines": qbvi.baselines,
    "qbvi.families": qbvi.families,
    "qbvi.models": qbvi.models,
    "qbvi.sklearn": qbvi.sklearn,
}
# Names with pages of their own, and names that only authors of a new family need.
ELSEWHERE = {"qbvi.baselines", "qbvi.models"} | {f"qbvi.families.{name}" for name in ("LAWS", "Curve", "Part")}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Compare the public names with the directives of the pages."""
    pages = [file.content_string for file in files.documentation_pages() if file.src_uri.startswith("api/")]
    shown = set(re.findall(r"^::: (\S+)$", "\n".join(pages), flags=re.MULTILINE))
    public = {f"{path}.{name}" for path, module in PUBLIC.items() for name in module.__all__}
    # `qbvi.fit` is a module too, so the page names the function by its full path.
    missing = sorted(public - shown - ELSEWHERE - {name.rpartition(".")[0] for name in shown})
    if missing:
        msg = f"the reference: give each of these a line `::: name` on a page of docs/api/: {', '.join(missing)}"
        raise PluginError(msg)
    return files
