"""The blocks of commands and code on README and the pages of the site, and what becomes of each.

A fence names its language. Blocks of `sh`, `python` and `console` are run by `test_page_blocks.py`,
page by page and in order, in a folder that has `samples/`, and `my-run` where a page names it. What
a `console` block shows is compared with what its commands print; a line `…` stands for any lines.
A comment on the line above says what is done instead:

    <!-- saved as mine.py -->                            written to that file, for the next blocks
    <!-- not run: needs a GPU -->                        and why
    <!-- run by tests/test_demo.py::test_the_demo -->    that test runs the same
    <!-- run by .ci/try_lerobot -->                      that job runs it, as it stands

A synopsis is not run either: a block of `sh` with a word in capitals, such as DATASET, where the
reader puts a name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "samples/libero-mini")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
"""README, and every page of the site"""
RUN = ("sh", "python", "console")
"""languages of blocks that are run"""
SHOWN = ("text", "toml", "json")
"""languages of blocks that are only shown"""
FENCE = re.compile(
    r"(?:^<!-- (?P<mark>.*) -->\n+)?^```(?P<language>.*)\n(?P<text>(?s:.*?))^```$", flags=re.M
)
PLACEHOLDER = re.compile(r"(?<![\w$])[A-Z][A-Z0-9_]{2,}\b(?!=)")


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
    def file(self) -> str | None:
        """The name of the file that the block is saved as, where it is."""
        found = re.fullmatch(r"saved as ([\w.]+)", self.mark)
        return found and found[1]

    @property
    def is_run(self) -> bool:
        """Whether this block is run, or saved for the next ones, as it stands."""
        is_marked = bool(self.mark) and self.file is None
        return self.language in RUN and not is_marked and not self.is_synopsis

    @property
    def lines(self) -> list[str]:
        """The lines, those that end with a backslash joined with the next."""
        return re.sub(r"\\\n\s*", "", self.text).splitlines()

    @property
    def commands(self) -> list[str]:
        """The calls of `strap` in it, without comments."""
        lines = [line.removeprefix("$ ").partition(" #")[0] for line in self.lines]
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
