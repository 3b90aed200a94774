"""Rendered demonstrations a minute over ten mixed tasks, and the largest worker's memory.

    PYTHONPATH=src python benchmarks/libero/collection.py --demos 5 --workers 2

Prints a line per suite and a summary. Beside the time on the clock stands the processors' time:
on a machine that does other work too, 60 · workers / (processor seconds per demonstration) is what
the workers would make a minute alone.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

from strap.libero import collect

# Drawer, bowl, stove, wine rack, microwave, basket, tray, table, caddy; one of two objects.
TASKS = {"libero_90": (0, 9, 19, 27, 33, 46, 61, 69, 73), "libero_10": (4,)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demos", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a new folder that keeps the demonstrations")
    options = parser.parse_args()
    out = options.keep or Path(tempfile.mkdtemp(prefix="strap-collection-"))
    made, seconds, work, memory = 0, 0.0, 0.0, 0
    for suite, tasks in TASKS.items():
        begin, before = time.monotonic(), _processor_seconds()
        done = collect(
            suite, demos=options.demos, out=out / suite, tasks=tasks, workers=options.workers
        )
        seconds += time.monotonic() - begin
        work += _processor_seconds() - before
        made += done.recorded
        memory = max(memory, done.peak_memory)
        print(f"{suite}: {done.recorded} made, given up {done.given_up}", flush=True)
    if options.keep is None:
        shutil.rmtree(out)
    print(
        f"{made} demonstrations, {options.workers} workers on {os.cpu_count()} cores: "
        f"{60 * made / seconds:.1f} a minute by the clock, "
        f"{60 * options.workers * made / work:.1f} by processor time "
        f"({work / made:.1f} s each); largest worker {memory / 1e9:.2f} GB"
    )


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


if __name__ == "__main__":
    main()
