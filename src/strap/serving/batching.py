"""Run the waiting requests of all clients as one batch; a bad request does not affect others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from strap.policies.acting import Action, Policy
from strap.policies.inputs import Observation
from strap.serving.contract import Request

MAX_BATCH = 64
"""largest number of requests in a batch; others wait for the next one"""


@dataclass(frozen=True, eq=False)
class Answer:
    """The policy's answer to one request."""

    action: Action
    """[a]"""
    seconds: float
    """duration of its batch"""
    n_batch: int
    """number of requests in its batch"""


def act_together(policy: Policy, requests: Mapping[int, Request]) -> dict[int, Action | Exception]:
    """Return each stream's next action or its error; run one batch unless a request fails."""
    outcomes: dict[int, Action | Exception] = {}
    accepted: dict[int, Observation] = {}
    for stream, request in requests.items():
        try:
            policy.check(request.observation)
        except Exception as error:
            outcomes[stream] = error
            continue
        accepted[stream] = request.observation
        if request.is_first:
            policy.reset(stream)
    if not accepted:
        return outcomes
    try:
        return {**outcomes, **policy.act_many(accepted)}
    except Exception as error:
        if len(accepted) == 1:
            return {**outcomes, **dict.fromkeys(accepted, error)}
    # A failed batch has changed no stream, so each can act alone to find the one at fault.
    for stream in accepted:
        alone = Request(accepted[stream], is_first=False)
        outcomes |= act_together(policy, {stream: alone})
    return outcomes


@dataclass(frozen=True, eq=False)
class _Ticket:
    stream: int
    request: Request
    answer: asyncio.Future[Answer]


class Batcher:
    """Runs one policy for many clients. A stream has at most one pending request."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._waiting: asyncio.Queue[_Ticket] = asyncio.Queue()
        # Only this one thread accesses the policy's streams.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy")
        self._embedding = ThreadPoolExecutor(1, thread_name_prefix="instructions")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests until the block ends."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self._thread.shutdown()
            self._embedding.shutdown()

    async def act(self, stream: int, request: Request) -> Answer:
        """Return a stream's next action after its batch has run."""
        loop = asyncio.get_running_loop()
        if not self._policy.knows(request.observation.instruction):
            # Embedding is slow: do it in another thread, so that other clients don't wait for it.
            await loop.run_in_executor(self._embedding, self._policy.check, request.observation)
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.put_nowait(_Ticket(stream, request, answer))
        return await answer

    async def forget(self, stream: int) -> None:
        """Drop a stream whose client has disconnected."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._policy.forget, stream)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            tickets = [await self._waiting.get()]
            while not self._waiting.empty() and len(tickets) < MAX_BATCH:
                tickets.append(self._waiting.get_nowait())
            requests = {ticket.stream: ticket.request for ticket in tickets}
            start = time.perf_counter()
            outcomes = await loop.run_in_executor(
                self._thread, act_together, self._policy, requests
            )
            seconds = time.perf_counter() - start
            for ticket in tickets:
                _set_outcome(ticket.answer, outcomes[ticket.stream], seconds, len(tickets))


def _set_outcome(
    answer: asyncio.Future[Answer], outcome: Action | Exception, seconds: float, n_batch: int
) -> None:
    if answer.done():  # the client has disconnected
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(Answer(outcome, seconds, n_batch))
