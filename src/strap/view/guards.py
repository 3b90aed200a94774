"""Protection of the server from other sites' pages, which can reach it from the user's browser.

The server listens only on this machine, but any page that the user opens can send requests to it.
So the Host header must be the server's own (which stops DNS rebinding), requests that browsers mark
as cross-site get no data, and changes need the server's origin and a header that forms and links
cannot send.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 10**6
"""maximum size of a request's body in bytes"""
ALLOWED_METHODS = ("GET", "HEAD", "POST")
SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; "
    "script-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""headers of every response: the page loads nothing from other sites, and no other page can embed
or read it"""


class Guard:
    """Middleware that refuses requests from other pages and adds SECURITY_HEADERS."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.hosts = (f"127.0.0.1:{port}", f"localhost:{port}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] != "http":  # a lifespan event; there are no websockets
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        refusal = self._refuse(scope["method"], scope["path"], Headers(scope=scope))
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        await self.app(scope, _Limited(receive), send_guarded)

    def _refuse(self, method: str, path: str, headers: Headers) -> PlainTextResponse | None:
        """Return the response that refuses a request; None if the request is allowed."""
        if headers.getlist("host") not in [[host] for host in self.hosts]:
            return _say(421, f"this server answers only at http://{self.hosts[0]}/")
        if method not in ALLOWED_METHODS:
            return _say(405, f"only {', '.join(ALLOWED_METHODS)} are allowed here")
        site = headers.get("sec-fetch-site", "same-origin")
        if path.startswith("/api/") and site not in ("same-origin", "none"):
            return _say(403, "another site's page asks for this: open it from its own page")
        return self._refuse_change(headers) if method == "POST" else None

    def _refuse_change(self, headers: Headers) -> PlainTextResponse | None:
        origins = [f"http://{host}" for host in self.hosts]
        if any(origin not in origins for origin in headers.getlist("origin")):
            return _say(403, "another site's page asks for this change: make it on its own page")
        if headers.get("x-strap") != "1":
            return _say(403, "changes need the header X-Strap: 1")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _say(415, "changes are JSON: send Content-Type: application/json")
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdecimal() or int(length) > MAX_BODY:
            return _say(413, f"the body is too large: at most {MAX_BODY} bytes are allowed")
        return None


class TooLargeError(Exception):
    """The error for a body that is longer than MAX_BODY, whatever its Content-Length says."""


class _Limited:
    """The messages of a client; raises once their bodies are longer than MAX_BODY together."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._bytes = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._bytes += len(message.get("body", b""))
        if self._bytes > MAX_BODY:
            raise TooLargeError
        return message


def _say(status: int, text: str) -> PlainTextResponse:
    return PlainTextResponse(text, status)
