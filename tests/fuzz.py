"""Damaged inputs for as long as one likes: every one is refused in a line, or read as data.

    make fuzz                                       10 minutes
    python tests/fuzz.py --minutes 1 --seed 7       others
    python tests/fuzz.py --cases 500 --only store   of inputs whose name has `store` in it
    python tests/fuzz.py --case 7.123               one again, with all it said; its files stay

Datasets of every format, embedding stores, runs and policies are damaged in their bytes and in
their structure, with and without their checksums repaired, and used as a user would. Each case runs
in a child with limits (`fuzzing/children.py`). A traceback, a signal, a hang or more than 2 GiB of
memory is a failure.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # no thread may run when children are forked
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from tests.fuzzing.command import main

    sys.exit(main())
