"""A run's page as one HTML file, which contains the viewer and its data.

The page requests its data from a server by addresses (`static/data.js`). The file contains the
responses to these requests as far as they fit: the texts and numbers of every match, and the films
of the best matches.
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
"""Maximum size of a file's films in bytes: what most mail servers accept."""
FILM_SIZE, SHEET_FRAMES = 192, 48
"""what the player requests: `SIZE` of a report and `PIECE` in static/films.js"""
THUMBNAIL_SIZE, THUMBNAIL_FRAMES = 192, 8
"""`THUMBNAIL` in static/films.js"""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; "
    "img-src data: blob:"
)
"""the content security policy: the file loads nothing from other sites"""


@dataclass(frozen=True)
class SingleFile:
    """A page that was written, and how many of its matches have films."""

    path: Path
    n_matches: int
    n_filmed: int
    """number of matches whose films are in the file"""


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
        max_bytes: maximum size of the films; the other matches are shown without films.
        facts: (name, value) pairs to show in addition to the run's own facts.
        progress: called with (what, done, total).
    """
    contents = dict(subject.contents())
    if not contents["matches"]["query"]:
        raise StrapError(f"'{contents['name']}' has no matches to report")
    contents |= {"read_only": True, "draft": None, "cameras": contents["cameras"][:1]}
    responses, n_filmed = _collect(subject, contents, max_bytes, progress)
    n_matches = len(contents["matches"]["query"])
    filmed = ("videos in this file", f"of {n_filmed} of {n_matches} matches, the best first")
    contents["facts"] = [*contents["facts"], *map(list, (*facts, filmed))]
    path = Path(path).expanduser()
    with replacing(path) as temporary:
        temporary.write_text(_fill_page({"contents": contents, **responses}), encoding="utf-8")
    return SingleFile(path, n_matches, n_filmed)


def _collect(
    subject: Subject, contents: Mapping[str, Any], max_bytes: int, progress: Progress
) -> tuple[dict[str, Any], int]:
    """Return address -> response, and the number of matches whose films are among the responses.

    Thumbnails of all matches come first, but use at most half of the bytes. Then follow the films
    that the player shows, match by match.
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
    return {**films.responses, **alignments}, len(alignments)


class _Films:
    """Address -> sheet of frames, for as many sheets as fit."""

    def __init__(self, subject: Subject) -> None:
        self.responses: dict[str, Any] = {}
        self._subject, self._size = subject, 0

    def add(self, requests: Sequence[FilmRequest], max_bytes: int) -> bool:
        """Add sheets if all of them fit; return whether they do."""
        added: dict[str, Any] = {}
        for request in requests:
            address = address_of("film", _parameters(request))
            if address not in self.responses:
                film = self._subject.film(request)
                jpeg = "data:image/jpeg;base64," + base64.b64encode(film.jpeg).decode()
                layout = {"frames": film.frames, "columns": film.columns, "rows": film.rows}
                added[address] = {"jpeg": jpeg, **layout}
        size = self._size + sum(len(response["jpeg"]) for response in added.values())
        if size > max_bytes:
            return False
        self.responses |= added
        self._size = size
        return True


def _best_first(contents: Mapping[str, Any]) -> list[int]:
    """Return all rows: every query's best match, then the second best, …; rejected matches last."""
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
    """Yield the sheets that the player requests: those of the match and of its query."""
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
    """Return a request's address, exactly as `addressOf` in static/data.js writes it.

    >>> address_of("film", {"place": "target", "camera": "front view"})
    'film?camera=front+view&place=target'
    """
    search = urlencode(sorted(parameters.items()), safe="*").replace("~", "%7E")
    return f"{name}?{search}" if search else name


def _fill_page(responses: Mapping[str, Any]) -> str:
    """Return the page with its styles, modules and data inlined."""
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    page = re.sub(r'<link rel="stylesheet" href="([\w.]+)">', _inline_style, page)
    # In JSON, "<" is only in strings. Escaped, nothing in the data can end the script element.
    data = json.dumps(responses, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    script = (
        f'<script type="application/json" id="strap-data">{data}</script>'
        f'<script type="importmap">{json.dumps({"imports": _encode_modules()})}</script>'
        '<script type="module">import "strap/main.js";</script>'
    )
    page, found = re.subn(r'<script type="module" src="main.js"></script>', lambda _: script, page)
    if found != 1:
        raise StrapError(f"'{PAGE / 'index.html'}' is damaged: install strap-robot again")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    return page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">{policy}', 1)


def _inline_style(link: re.Match[str]) -> str:
    return f"<style>{(PAGE / link[1]).read_text(encoding='utf-8')}</style>"


def _encode_modules() -> dict[str, str]:
    """Return `strap/NAME` -> data URL of every module, whose imports use the same names."""
    modules = {}
    for file in sorted(PAGE.glob("*.js")):
        source = re.sub(r'(from|import) "\./([\w.]+)"', r'\1 "strap/\2"', file.read_text("utf-8"))
        encoded = base64.b64encode(source.encode()).decode()
        modules[f"strap/{file.name}"] = f"data:text/javascript;base64,{encoded}"
    return modules
