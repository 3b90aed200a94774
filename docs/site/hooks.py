"""What the site shows besides the pages in docs/: pages that lie elsewhere, and the notebook.

mkdocs calls `on_files` once and `on_page_markdown` for every page.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
OUTSIDE = {
    path: f"repository/{path}"
    for path in (
        *("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"),
        *("benchmarks/README.md", "samples/libero-mini/README.md"),
    )
}
"""pages of the repository that the site shows -> where"""
SHOWN_AS = {**OUTSIDE, "README.md": "index.md", "docs/notebook.ipynb": "notebook.md"}
"""what a link may lead to -> what it leads to on the site"""
LINK = re.compile(r"(\]\()([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/, and the notebook with its pictures."""
    for path, shown_as in OUTSIDE.items():
        files.append(File.generated(config, shown_as, abs_src_path=str(ROOT / path)))
    text, pictures = render_notebook(json.loads(NOTEBOOK.read_text()))
    text += f'\n\n<a href="{NOTEBOOK.name}" download>This page as a notebook for Jupyter</a>\n'
    files.append(File.generated(config, "notebook.md", content=text))
    for name, content in pictures.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    here = page.file.src_uri
    origins = {shown_as: path for path, shown_as in OUTSIDE.items()}
    return relink(markdown, origins.get(here, f"docs/{here}"), here)


def relink(markdown: str, origin: str, here: str) -> str:
    """Return the text of the file `origin` with its links as they are for the page `here`."""

    def point(link: re.Match[str]) -> str:
        if ":" in link[2]:
            return link[0]
        to = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link[2]))
        to = SHOWN_AS.get(to, to.removeprefix("docs/"))
        return link[1] + posixpath.relpath(to, posixpath.dirname(here) or ".")

    return LINK.sub(point, markdown)


def render_notebook(notebook: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by their paths on the site."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"notebook-{len(pictures)}.png"
                pictures[f"images/{name}"] = base64.b64decode(data["image/png"])
                parts.append(f"![output of the cell above](images/{name})")
            else:
                shown = output.get("text") or data.get("text/plain") or []
                parts.append(f"```text\n{''.join(shown)}\n```")
    return "\n\n".join(parts), pictures
