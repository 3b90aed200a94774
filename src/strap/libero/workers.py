"""Running jobs in processes of their own, and going on when one of them is killed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from strap.errors import StrapError

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")

RESTARTS = 3


def run_each(
    function: Callable[[JobT], ResultT], jobs: Iterable[JobT], workers: int
) -> Iterator[tuple[JobT, ResultT]]:
    """Yield each job with its result as it ends.

    A process does one job and ends: environments hold on to memory, processes give it back. When
    a process is killed, the jobs that were not done are started again.
    """
    left = list(jobs)
    context = multiprocessing.get_context("spawn")
    for _ in range(RESTARTS + 1):
        try:
            with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
                futures = {pool.submit(function, job): job for job in left}
                for future in as_completed(futures):
                    result, job = future.result(), futures[future]
                    left.remove(job)
                    yield job, result
            return
        except BrokenProcessPool:
            continue
    raise StrapError(
        f"worker processes were killed {RESTARTS + 1} times with {len(left)} jobs left (memory?): "
        "use fewer --workers and start again; what is done is kept"
    )
