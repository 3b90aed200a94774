"""The policy server: openpi's websocket protocol, `/healthz`, API keys and limits."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request as Handshake
from websockets.http11 import Response

from strap.errors import StrapError, printable
from strap.policies.acting import Policy
from strap.policies.inputs import Observation
from strap.serving.batching import Answer, Batcher
from strap.serving.contract import (
    describe_policy,
    message_limit,
    read_request,
    require_distinct_names,
)
from strap.serving.messages import pack, unpack

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MAX_CLIENTS = 64
MAX_QUEUE = 2
"""messages that a client can send before it receives answers"""
MIN_KEY_LENGTH = 8
"""smallest number of characters in a key"""
WARM_UP_STREAM = -1
"""stream of the warm-up action"""

Reply = bytes | str


class PolicyServer:
    """Serves one policy to many clients."""

    def __init__(self, policy: Policy, *, api_key: str | None = None) -> None:
        require_distinct_names(policy.interface)
        self._interface = policy.interface
        self._metadata = pack(describe_policy(policy))
        self._batcher = Batcher(policy)
        self._api_key = api_key
        self._streams = itertools.count()
        self._n_clients = 0

    async def run(self, host: str, port: int, ready: Callable[[int], None]) -> None:
        """Serve until cancelled; `ready` is called with the port once clients may connect."""
        quiet = logging.getLogger("strap.serving")
        quiet.setLevel(logging.CRITICAL)  # clients' broken handshakes need no log
        listening = serve(
            self._handle,
            host,
            port,
            process_request=self._admit,
            origins=[None],  # pages in a browser send an origin; robots don't
            compression=None,
            max_size=message_limit(self._interface),
            max_queue=MAX_QUEUE,
            server_header=None,
            logger=quiet,
        )
        async with self._batcher.running():
            try:
                server = await listening
            except (OSError, OverflowError) as error:
                reason = getattr(error, "strerror", None) or error
                raise StrapError(
                    f"cannot listen on {host}, port {port} ({reason}): choose another --port or "
                    "--host"
                ) from error
            async with server:
                ready(server.sockets[0].getsockname()[1])
                await server.serve_forever()

    def _admit(self, connection: ServerConnection, handshake: Handshake) -> Response | None:
        """Return a response to a health check or a refused client; None admits a client."""
        if handshake.path == "/healthz":
            return connection.respond(HTTPStatus.OK, "OK\n")
        if not self._has_key(handshake):
            text = "this server requires its key: send the header 'Authorization: Api-Key KEY'\n"
            return connection.respond(HTTPStatus.UNAUTHORIZED, text)
        if self._n_clients >= MAX_CLIENTS:
            text = f"{MAX_CLIENTS} clients are connected, the maximum: try again later\n"
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, text)
        return None

    def _has_key(self, handshake: Handshake) -> bool:
        if self._api_key is None:
            return True
        given = handshake.headers.get_all("Authorization")
        expected = f"Api-Key {self._api_key}".encode()
        return len(given) == 1 and hmac.compare_digest(
            given[0].encode("utf-8", "surrogateescape"), expected
        )

    async def _handle(self, connection: ServerConnection) -> None:
        stream = next(self._streams)
        self._n_clients += 1
        try:
            await connection.send(self._metadata)
            await self._converse(connection, stream)
        except ConnectionClosed:
            pass
        finally:
            self._n_clients -= 1
            await self._batcher.forget(stream)

    async def _converse(self, connection: ServerConnection, stream: int) -> None:
        last_total: float | None = None
        async for message in connection:
            start = time.perf_counter()
            try:
                reply = await self._reply(message, stream, last_total)
            except Exception as error:
                traceback.print_exc()
                await connection.send(f"the server failed ({type(error).__name__}): see its log")
                await connection.close(CloseCode.INTERNAL_ERROR)
                return
            await connection.send(reply)
            last_total = time.perf_counter() - start

    async def _reply(self, message: Reply, stream: int, last_total: float | None) -> Reply:
        """Return the answer to a message: packed actions, or an error as text."""
        try:
            request = read_request(unpack(message), self._interface)
            answer = await self._batcher.act(stream, request)
        except StrapError as error:
            return printable(str(error))
        return pack(
            {"actions": answer.action[None], "server_timing": _timing(answer, last_total)},
        )


def _timing(answer: Answer, last_total: float | None) -> dict[str, Any]:
    timing: dict[str, Any] = {"infer_ms": answer.seconds * 1e3, "batch": answer.n_batch}
    if last_total is not None:
        timing["prev_total_ms"] = last_total * 1e3
    return timing


def serve_policy(
    policy: Policy,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: str | None = None,
    ready: Callable[[int], None],
) -> None:
    """Serve a policy until Ctrl-C.

    Args:
        policy: the policy.
        host: the address that clients connect to.
        port: the port that clients connect to; 0: any free one.
        api_key: the key that clients must send in `Authorization: Api-Key …`; None: no key.
        ready: called with the port once clients may connect.
    """
    server = PolicyServer(policy, api_key=api_key)
    warm_up(policy)
    with suppress(KeyboardInterrupt):
        asyncio.run(server.run(host, port, ready))


def warm_up(policy: Policy) -> None:
    """Act once on a black image, so that no client waits for loading and compiling."""
    interface = policy.interface
    side = interface.image_size
    images = {name: np.zeros((side, side, 3), np.uint8) for name in interface.cameras}
    state = {key: np.zeros(size) for key, size in interface.proprioception.items()}
    instruction = policy.instructions[0] if policy.instructions else ""
    policy.act_many({WARM_UP_STREAM: Observation(images, state, instruction)})
    policy.forget(WARM_UP_STREAM)


def read_key(file: Path) -> str:
    """Read an API key from a file."""
    try:
        key = file.expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise StrapError(
            f"cannot read the key in '{file}' ({reason}): make one with `openssl rand -hex 16`"
        ) from error
    if len(key) < MIN_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
        raise StrapError(
            f"'{file}' holds {len(key)} characters that are not a key: a key has {MIN_KEY_LENGTH} "
            "or more letters and digits, as `openssl rand -hex 16` writes"
        )
    return key
