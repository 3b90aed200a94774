"""Log a training: on the terminal, as JSON lines, and for TensorBoard."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strap.atomic import explain_write_errors, replacing


class Log:
    """Appends rows to CKPT/log.jsonl; rows after the step to resume from are dropped.

    TensorBoard's file contains the same rows. It is rewritten when a training resumes, so there is
    always only one file.
    """

    def __init__(self, folder: Path, *, first_step: int, steps: int, quiet: bool = False) -> None:
        self.file = folder / "log.jsonl"
        self.steps, self.quiet = steps, quiet
        kept = [row for row in read_log(folder) if row["step"] <= first_step]
        with replacing(self.file) as temporary:
            temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))
        self._writer = _tensorboard(folder / "tensorboard")
        for row in kept:
            self._add_to_tensorboard(row)
        self._last = (time.perf_counter(), first_step)

    def write(self, step: int, **values: float) -> None:
        """Write one row; a row with a loss also gets the steps per second since the last one."""
        if "loss" in values:
            before, at = self._last
            now = time.perf_counter()
            values["steps_per_second"] = round((step - at) / max(now - before, 1e-9), 2)
            self._last = (now, step)
        row = {"step": step, **values, "time": round(time.time(), 3)}
        with explain_write_errors(self.file), self.file.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        self._add_to_tensorboard(row)
        if not self.quiet:
            print(f"step {step} of {self.steps}: {describe(values)}", file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Write TensorBoard's buffered rows to disk."""
        if self._writer is not None:
            with explain_write_errors(self.file):
                self._writer.flush()

    def pause(self) -> None:
        """Exclude the time since the last row (evaluating, saving) from the steps per second."""
        self._last = (time.perf_counter(), self._last[1])

    def close(self) -> None:
        """Close TensorBoard's file."""
        if self._writer is not None:
            with explain_write_errors(self.file):
                self._writer.close()

    def _add_to_tensorboard(self, row: Mapping[str, Any]) -> None:
        if self._writer is None:
            return
        with explain_write_errors(self.file):
            for name, value in row.items():
                if name not in ("step", "time"):
                    self._writer.add_scalar(name, value, row["step"], walltime=row.get("time"))


def describe(values: Mapping[str, float]) -> str:
    """Format values for the terminal: `loss 1.234, held out 0.5`."""
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in values.items())


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a training's log, without an unfinished last line."""
    file = folder / "log.jsonl"
    rows = []
    for line in file.read_text().splitlines() if file.is_file() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    with explain_write_errors(folder):
        writer: Any = SummaryWriter(str(folder))
    return writer
