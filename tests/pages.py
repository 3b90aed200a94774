"""The blocks of commands and code on README and the pages of docs/, and what becomes of each.

A fence names its language. One of `sh`, `python` or `console` is run by `test_pages.py`, in the order of
its page, unless it is a synopsis (`sh` with a word in capitals in place of a name) or the line above it
says why not:

    <!-- not run: needs a GPU -->
    <!-- run by tests/policies/test_serving.py::test_the_page_runs -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
RUN = ("sh", "python")
"""languages of blocks that can be run"""
SHOWN = ("text", "console", "toml", "json")
"""languages of blocks that are only shown; a `console` has commands and what they print"""
FENCE = re.compile(
    r"(?:^<!-- (?P<mark>.*) -->\n+)?^```(?P<language>.*)\n(?P<text>(?s:.*?))^```$", re.M
)
PLACEHOLDER = re.compile(r"(?<![\w$])[A-Z]{3,}\b(?!=)")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    mark: str
    """the comment above it; empty where there is none"""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_synopsis(self) -> bool:
        """Whether a word in capitals stands for a name that the reader has to put there."""
        without_comments = re.sub(r"(^|\s)#.*", "", self.text)
        return self.language == "sh" and bool(PLACEHOLDER.search(without_comments))

    @property
    def is_run(self) -> bool:
        """Whether this block is to be run as it stands."""
        return self.language in RUN and not self.mark and not self.is_synopsis

    @property
    def commands(self) -> list[str]:
        """The calls of `strap` in it, a line each, without comments."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        lines = [line.removeprefix("$ ").partition(" #")[0] for line in joined.splitlines()]
        return [line for line in lines if line.startswith("strap ")]


def read_blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            found["text"],
            found["mark"] or "",
        )
        for found in FENCE.finditer(text)
    ]
