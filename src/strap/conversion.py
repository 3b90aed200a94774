"""Conversion of a dataset to another format, resumable after each trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from strap.datasets.base import Codec, Dataset, Format
from strap.datasets.hdf5 import SUFFIXES
from strap.datasets.labels import with_labels
from strap.errors import StrapError, unknown
from strap.progress import Progress, silent


def format_of(out: Path, format: Format | None = None) -> Format:
    """Return the output format: `format`, else robomimic for `.hdf5` and LeRobot for a folder."""
    if format is not None and format not in get_args(Format):
        raise unknown("output format", format, get_args(Format))
    if format is None and out.suffix == ".zarr":
        raise StrapError(
            f"cannot write '{out}': Zarr is read only; name a .hdf5 file (robomimic) or a folder "
            "(LeRobot)"
        )
    return format or ("robomimic" if out.suffix in SUFFIXES else "lerobot")


def convert(
    dataset: Dataset,
    out: str | Path,
    *,
    format: Format | None = None,
    ids: Sequence[str] | None = None,
    fps: float | None = None,
    codec: Codec = "h264",
    progress: Progress = silent,
) -> Path:
    """Write a dataset in another format. The same call again resumes an interrupted conversion.

    Skill labels are copied, if the dataset has them. A finished output is left as it is. An
    unfinished output of another dataset, or with other options, is started again.

    Args:
        dataset: the dataset to convert.
        out: a `.hdf5` file (robomimic) or a folder (LeRobot v3.0); it appears when it is complete.
        format: `robomimic` or `lerobot`; by default chosen by the output's name.
        ids: convert only these trajectories.
        fps: the frame rate to write; by default the dataset's.
        codec: LeRobot: `h264` or `av1`.
        progress: called with (what, done, total).
    """
    from strap.datasets.lerobot import write_lerobot
    from strap.datasets.robomimic import write_robomimic

    out = Path(out).expanduser()
    out = out if out.name else out.resolve()  # `.` has no name
    chosen = list(ids or dataset.ids)
    if len(set(chosen)) < len(chosen):
        raise StrapError("a trajectory is named twice: name each once")
    if not chosen:
        raise StrapError(f"dataset '{dataset.path}' is empty: there is nothing to convert")
    selected = dataset.select(chosen)
    selected.fetch(progress=progress)
    first = selected[chosen[0]]
    source = {
        "dataset": dataset.name,
        "format": dataset.format,
        "fingerprint": dataset.fingerprint(),
        "ids": chosen,
        "first": first.identity(),
        **({} if fps is None else {"fps": fps}),
    }
    if format_of(out, format) == "lerobot":
        return write_lerobot(
            out,
            with_labels(selected),
            fps=fps,
            codec=codec,
            robot_type=dataset.robot_type,
            source=source,
            total=len(chosen),
            progress=progress,
        )
    metadata = dataset.metadata if dataset.format in ("robomimic", "libero") else {}
    return write_robomimic(
        out,
        (replace(each, fps=fps or each.fps) for each in with_labels(selected)),
        total=len(chosen),
        metadata=metadata,
        orientation=first.orientation,
        source=source,
        progress=progress,
    )
