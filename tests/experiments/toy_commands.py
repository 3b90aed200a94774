"""Stands where `strap` stands in a plan: leaves the files that a command would, after a moment.

    python toy_commands.py train … --out FOLDER

Like the real ones it does nothing where its output is there. In the folder that $JOURNAL names, it
leaves one file for each begin, one for each piece of work done, and one for each time that another
was at the same output.
$SECONDS is the longest that it works; a word of $FAILING in its arguments makes it fail.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path


def main(words: list[str]) -> int:
    kind, out = words[0], Path(words[words.index("--out") + 1])
    journal = Path(os.environ["JOURNAL"])
    label = f"{kind}-{'-'.join(out.parts[-2:])}"
    mark = f"{os.getpid()}-{time.time_ns()}"
    (journal / f"begin {label} {mark}").touch()
    if any(word in " ".join(words) for word in os.environ.get("FAILING", "").split()):
        print("first line of the reason\nlast line of the reason")
        return 3
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".busy").open("w") as busy:
        try:
            fcntl.flock(busy, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            (journal / f"collision {label} {mark}").touch()
            return 4
        if work(kind, out, words):
            (journal / f"done {label} {mark}").touch()
    return 0


def work(kind: str, out: Path, words: list[str]) -> bool:
    """Write what the command leaves, whole or not at all; return whether there was work to do."""
    result = out / ("episodes.jsonl" if kind == "evaluate" else "result.txt")
    if result.exists():
        return False
    time.sleep(random.random() * float(os.environ.get("SECONDS", "0.02")))
    if kind == "retrieve":
        shutil.copyfile(os.environ["MATCHES"], out / "matches.parquet")
    if kind == "evaluate":
        (out / "evaluation.json").write_text("{}")
    temporary = out / ".result.tmp"
    temporary.write_text(_episodes(words) if kind == "evaluate" else "done\n")
    temporary.replace(result)
    return True


def _episodes(words: list[str]) -> str:
    """Successes that depend on task, state and seed alone."""
    count = int(words[words.index("--episodes") + 1])
    first = int(words[words.index("--first") + 1]) if "--first" in words else 0
    chance = random.Random(words[words.index("--task") + 1] + words[words.index("--seed") + 1])
    successes = [chance.random() < 0.5 for _ in range(first + count)]
    rows = [
        {"state": state, "success": successes[state], "partial": float(successes[state])}
        for state in range(first, first + count)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
