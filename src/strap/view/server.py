"""The server of `strap view`: it serves the page, its data and its images to this machine only."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from strap.cpus import count_cpus
from strap.errors import StrapError
from strap.view.errors import BadRequestError, NotThereError
from strap.view.films import FilmRequest
from strap.view.guards import MAX_BODY, Guard, TooLargeError
from strap.view.parameters import Parameters
from strap.view.subjects import PAGE, Subject

ADDRESS = "127.0.0.1"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""media types of the page's files"""
CHANGES = ("choices", "borders", "borders/keep", "borders/drop")
"""addresses under /api/ that accept a POST"""
FILM_PARAMETERS = ("place", "trajectory", "start", "stop", "camera", "size", "count", "run")
CACHED_A_DAY = "private, max-age=86400"
"""Cache-Control of films: browsers keep them for a day"""
REVALIDATED = "no-cache"
"""Cache-Control of everything else: browsers ask each time whether it changed"""

STATUS = {NotThereError: 404, BadRequestError: 400}
"""HTTP status of errors; 409 for all others, which are errors in the data"""

Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(subject: Subject, port: int) -> ASGIApp:
    """Return the application that shows a subject at this port.

    Args:
        subject: the subject to show.
        port: the port at which the browser reaches it; requests to another port are refused.
    """
    endpoints = Endpoints(subject)
    zipped = [Middleware(GZipMiddleware, compresslevel=4)]  # JSON shrinks to a fifth
    routes = [
        Route("/api/contents", endpoints.contents, middleware=zipped),
        Route("/api/alignment", endpoints.alignment, middleware=zipped),
        Route("/api/film", endpoints.film),
        Route("/api/video", endpoints.video),
        *(
            Route(f"/api/{name}", endpoints.change(name), methods=["POST"], middleware=zipped)
            for name in CHANGES
        ),
        Route("/", endpoints.page, middleware=zipped),
        Route("/{name}", endpoints.page, middleware=zipped),
    ]
    handlers: dict[Any, Any] = {StrapError: _explain, TooLargeError: _too_large}
    # The guard is outermost, so that error responses have its headers as well.
    return Guard(Starlette(routes=routes, exception_handlers=handlers), port)


def serve(subject: Subject, *, port: int, ready: Callable[[str], None]) -> None:
    """Show a subject until Ctrl-C.

    Args:
        subject: the subject to show.
        port: the port to use; 0: any free port.
        ready: called with the address when a browser can open it.
    """
    with _listen(port) as listener:
        bound_port = listener.getsockname()[1]
        config = uvicorn.Config(
            make_app(subject, bound_port),
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        threading.Thread(target=subject.prepare, daemon=True).start()
        ready(f"http://{ADDRESS}:{bound_port}/")
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            pass  # the normal way to stop the server
        finally:
            subject.close()


def _listen(port: int) -> socket.socket:
    """Return a listening socket, whose connections wait until the server starts."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ADDRESS, port))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise StrapError(
            f"port {port} cannot be used ({reason}): choose another with --port, or leave it out"
        ) from error
    return listener


class Endpoints:
    """The endpoints of the server, for one subject."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        # Films have their own threads: each keeps its video files open, and no film waits for an
        # alignment.
        self._threads = ThreadPoolExecutor(count_cpus() + 1, thread_name_prefix="films")

    async def page(self, request: Request) -> Response:
        """Respond with a file of the page."""
        Parameters(request.query_params.multi_items(), ())
        name = request.path_params.get("name", "index.html")
        files = {file.name: file for file in PAGE.iterdir() if file.suffix in MEDIA_TYPES}
        if name not in files:
            raise NotThereError("there is no such page; the viewer is at /")
        file = files[name]
        return FileResponse(
            file, media_type=MEDIA_TYPES[file.suffix], headers={"Cache-Control": REVALIDATED}
        )

    async def contents(self, request: Request) -> Response:
        """Respond with everything that is shown except images, paths and costs."""
        Parameters(request.query_params.multi_items(), ())
        return await run_in_threadpool(lambda: _as_json(self._subject.contents()))

    async def alignment(self, request: Request) -> Response:
        """Respond with the path, costs and motion of a match."""
        parameters = Parameters(request.query_params.multi_items(), ("match", "run"))
        match, run = parameters.number("match"), parameters.number("run", 0)
        return await run_in_threadpool(lambda: _as_json(self._subject.alignment(match, run)))

    async def film(self, request: Request) -> Response:
        """Respond with a sheet of frames."""
        film_request = _parse_film_request(
            Parameters(request.query_params.multi_items(), FILM_PARAMETERS)
        )
        loop = asyncio.get_running_loop()
        film = await loop.run_in_executor(self._threads, self._subject.film, film_request)
        layout = {"X-Frames": film.frames, "X-Columns": film.columns, "X-Rows": film.rows}
        headers = {name: str(number) for name, number in layout.items()}
        return Response(
            film.jpeg, headers={**headers, "Cache-Control": CACHED_A_DAY}, media_type="image/jpeg"
        )

    async def video(self, request: Request) -> Response:
        """Respond with an episode's video, or with the byte range that is requested."""
        parameters = Parameters(request.query_params.multi_items(), ("evaluation", "state"))
        evaluation, state = parameters.number("evaluation", 0), parameters.number("state")
        file = await run_in_threadpool(self._subject.video, evaluation, state)
        return FileResponse(file, media_type="video/mp4", headers={"Cache-Control": REVALIDATED})

    def change(self, name: str) -> Endpoint:
        """Return the endpoint of the change with this name."""

        async def respond(request: Request) -> Response:
            Parameters(request.query_params.multi_items(), ())
            wanted = _parse_object(await request.body())
            return await run_in_threadpool(lambda: _as_json(self._subject.change(name, wanted)))

        return respond


def _parse_film_request(parameters: Parameters) -> FilmRequest:
    return FilmRequest(
        place=parameters.text("place"),
        trajectory=parameters.text("trajectory"),
        start=parameters.number("start"),
        stop=parameters.number("stop"),
        camera=parameters.text("camera"),
        size=parameters.number("size"),
        count=parameters.number("count") if parameters.has("count") else None,
        run=parameters.number("run", 0),
    )


def _parse_object(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError("the body is not JSON") from error
    if not isinstance(found, dict):
        raise BadRequestError('the body must be a JSON object, as in {"undo": true}')
    return found


def _as_json(value: Mapping[str, Any]) -> Response:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    body = text.encode("utf-8", "replace")  # texts from files can contain lone surrogates
    return Response(body, headers={"Cache-Control": REVALIDATED}, media_type="application/json")


async def _explain(_: Request, error: Exception) -> Response:
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 409)
    return PlainTextResponse(" ".join(str(error).split()), status)


async def _too_large(_: Request, __: Exception) -> Response:
    return PlainTextResponse(f"the body is too large: at most {MAX_BODY} bytes are allowed", 413)
