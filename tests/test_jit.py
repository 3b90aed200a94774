"""Compiled functions are kept on disk as long as what they call stays as it is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import strap

KILLED_BEFORE_CODE_IS_WRITTEN = """
import os
import numba.core.caching
numba.core.caching.IndexDataCacheFile._save_data = lambda *_: os._exit(9)
"""
CALL = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(message).9s", stream=sys.stdout)
import numpy as np
from strap.dtw.cpu.float32_bounds import _center_all
frames, squares = np.array([[3.0, 4.0]]), np.empty(1)
_center_all(frames, np.zeros(2), 1.0, np.empty((1, 2), np.float32), squares)
print(squares[0], sum(_center_all.stats.cache_hits.values()))
"""


def test_code_is_compiled_again_when_what_it_calls_in_another_module_has_changed(
    tmp_path: Path,
) -> None:
    shutil.copytree(
        Path(strap.__file__).parent,
        tmp_path / "strap",
        ignore=shutil.ignore_patterns("__pycache__"),
    )

    def call(before: str = "") -> str:
        words = [sys.executable, "-c", before + CALL]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True).stdout

    assert call() == "compiling\n25.0 0\n"
    assert call() == "25.0 1\n"
    (tmp_path / "strap/dtw/.#an-editors-lock.py").symlink_to("nobody")
    called = tmp_path / "strap/dtw/cpu/rounding.py"
    text = called.read_text()
    assert text.count("mean[k]) * scale") == 1
    called.write_text(text.replace("mean[k]) * scale", "mean[k]) * scale * 2"))
    assert call(KILLED_BEFORE_CODE_IS_WRITTEN) in ("", "compiling\n")
    assert call() == "compiling\n100.0 0\n"
    assert call() == "100.0 1\n"
    kept = list((tmp_path / "strap/dtw/cpu/__pycache__").glob("*._center_all-*"))
    assert len(kept) == 2  # the older index and code are gone
