"""A run's page as one file: the viewer with its data inside, to be mailed and opened anywhere.

The page asks a server for its data by addresses (`static/data.js`); the file holds the answers to
those that fit: what is shown of every match in words, and the films of the best ones.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from strap.atomic import replacing
from strap.errors import StrapError
from strap.progress import Progress, silent
from strap.view.films import FilmRequest
from strap.view.subjects import PAGE, Subject

MAX_PAGE_BYTES = 20_000_000
"""Bytes of a file's films: what most mail servers take."""
FILM_SIZE, SHEET_FRAMES = 192, 48
"""`SIZE` of a report and `PIECE` in static/films.js: what the player asks for"""
THUMBNAIL_SIZE, THUMBNAIL_FRAMES = 192, 8
"""`THUMBNAIL` there"""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; "
    "img-src data: blob:"
)
"""nothing is asked of anybody"""


@dataclass(frozen=True)
class SingleFile:
    """A page that was written."""

    path: Path
    n_matches: int
    n_filmed: int
    """matches whose films are in the file, the best of every query first"""


def write_single_file(
    path: str | Path,
    subject: Subject,
    *,
    max_bytes: int = MAX_PAGE_BYTES,
    facts: Sequence[tuple[str, str]] = (),
    progress: Progress = silent,
) -> SingleFile:
    """Write a run's page with its data as one file.

    Args:
        path: the HTML file.
        subject: the run, as the viewer shows it.
        max_bytes: of films; matches whose films do not fit are shown without.
        facts: (name, value) to be shown besides the run's own.
        progress: called with (what, done, total).
    """
    contents = dict(subject.contents())
    if not contents["matches"]["query"]:
        raise StrapError(f"'{contents['name']}' has no matches to report")
    contents |= {"read_only": True, "draft": None, "cameras": contents["cameras"][:1]}
    answers, n_filmed = _collect(subject, contents, max_bytes, progress)
    n_matches = len(contents["matches"]["query"])
    filmed = ("films in this file", f"of {n_filmed} of {n_matches} matches, the best first")
    contents["facts"] = [*contents["facts"], *map(list, (*facts, filmed))]
    path = Path(path).expanduser()
    with replacing(path) as temporary:
        temporary.write_text(_fill_page({"contents": contents, **answers}), encoding="utf-8")
    return SingleFile(path, n_matches, n_filmed)


def _collect(
    subject: Subject, contents: Mapping[str, Any], max_bytes: int, progress: Progress
) -> tuple[dict[str, Any], int]:
    """Return answers by their addresses, and of how many matches they hold the films.

    Thumbnails of all matches come first, as far as half of the bytes go, then match by match what
    the player shows.
    """
    films = _Films(subject)
    order = _best_first(contents)
    total = 2 * len(order)
    for done, row in enumerate(order):
        progress("filming matches", done, total)
        if not films.add([_thumbnail_of(contents, row)], max_bytes // 2):
            break
    alignments: dict[str, Any] = {}
    for done, row in enumerate(order, len(order)):
        progress("filming matches", done, total)
        if not films.add(list(_films_of(contents, row)), max_bytes):
            break
        alignments[address_of("alignment", {"match": row})] = subject.alignment(row, 0)
    progress("filming matches", total, total)
    return {**films.answers, **alignments}, len(alignments)


class _Films:
    """Sheets of frames by their addresses, as far as they fit."""

    def __init__(self, subject: Subject) -> None:
        self.answers: dict[str, Any] = {}
        self._subject, self._size = subject, 0

    def add(self, requests: Sequence[FilmRequest], max_bytes: int) -> bool:
        """Add sheets where all of them fit beside the others; tell whether they did."""
        added: dict[str, Any] = {}
        for request in requests:
            address = address_of("film", _parameters(request))
            if address not in self.answers:
                film = self._subject.film(request)
                jpeg = "data:image/jpeg;base64," + base64.b64encode(film.jpeg).decode()
                layout = {"frames": film.frames, "columns": film.columns, "rows": film.rows}
                added[address] = {"jpeg": jpeg, **layout}
        size = self._size + sum(len(answer["jpeg"]) for answer in added.values())
        if size > max_bytes:
            return False
        self.answers |= added
        self._size = size
        return True


def _best_first(contents: Mapping[str, Any]) -> list[int]:
    """Return all rows: every query's best match, then the second best, …; rejected ones last."""
    rank, query = contents["matches"]["rank"], contents["matches"]["query"]
    rejected = set(contents["choices"]["rejected"])
    return sorted(range(len(rank)), key=lambda row: (row in rejected, rank[row], query[row]))


def _thumbnail_of(contents: Mapping[str, Any], row: int) -> FilmRequest:
    matches, camera = contents["matches"], contents["cameras"][0]
    place, trajectory = str(matches["dataset"][row]), matches["trajectory"][row]
    start, stop = matches["start"][row], matches["stop"][row]
    size, count = THUMBNAIL_SIZE, THUMBNAIL_FRAMES
    return FilmRequest(place, trajectory, start, stop, camera, size, count)


def _films_of(contents: Mapping[str, Any], row: int) -> Iterator[FilmRequest]:
    """Yield the sheets that the player asks for: those of the match and of its query."""
    matches, camera = contents["matches"], contents["cameras"][0]
    query = contents["queries"][matches["query"][row]]
    demonstration = contents["demonstrations"][query["demonstration"]]["id"]
    found = str(matches["dataset"][row]), matches["trajectory"][row]
    for place, trajectory, start, stop in (
        (*found, matches["start"][row], matches["stop"][row]),
        ("target", demonstration, query["start"], query["stop"]),
    ):
        for first in range(start, stop, SHEET_FRAMES):
            last = min(stop, first + SHEET_FRAMES)
            yield FilmRequest(place, trajectory, first, last, camera, FILM_SIZE)


def _parameters(request: FilmRequest) -> dict[str, Any]:
    names = ("place", "trajectory", "start", "stop", "camera", "size", "count")
    return {name: value for name in names if (value := getattr(request, name)) is not None}


def address_of(name: str, parameters: Mapping[str, Any]) -> str:
    """Return a request's address, letter by letter as `addressOf` in static/data.js writes it.

    >>> address_of("film", {"place": "target", "camera": "front view"})
    'film?camera=front+view&place=target'
    """
    search = urlencode(sorted(parameters.items()), safe="*").replace("~", "%7E")
    return f"{name}?{search}" if search else name


def _fill_page(answers: Mapping[str, Any]) -> str:
    """Return the page with its styles, modules and data inside."""
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    page = re.sub(r'<link rel="stylesheet" href="([\w.]+)">', _style, page)
    # In JSON a "<" is always inside a text: so nothing in the data can end the script element.
    data = json.dumps(answers, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    script = (
        f'<script type="application/json" id="strap-data">{data}</script>'
        f'<script type="importmap">{json.dumps({"imports": _modules()})}</script>'
        '<script type="module">import "strap/main.js";</script>'
    )
    page, found = re.subn(r'<script type="module" src="main.js"></script>', lambda _: script, page)
    if found != 1:
        raise StrapError(f"'{PAGE / 'index.html'}' is damaged: install strap-robot again")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    return page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">{policy}', 1)


def _style(link: re.Match[str]) -> str:
    return f"<style>{(PAGE / link[1]).read_text(encoding='utf-8')}</style>"


def _modules() -> dict[str, str]:
    """Return `strap/NAME` -> a data address of every module; they import each other by that."""
    modules = {}
    for file in sorted(PAGE.glob("*.js")):
        source = re.sub(r'(from|import) "\./([\w.]+)"', r'\1 "strap/\2"', file.read_text("utf-8"))
        encoded = base64.b64encode(source.encode()).decode()
        modules[f"strap/{file.name}"] = f"data:text/javascript;base64,{encoded}"
    return modules
