"""A recording for Rerun's viewer: queries and their best matches, along the warping paths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from strap.atomic import replacing
from strap.datasets.base import Dataset
from strap.errors import StrapError, unknown
from strap.extras import missing_extra
from strap.features.cameras import compared_cameras
from strap.figures.retrieval import Tracing, has_costs, pair_frames
from strap.position_columns import positions
from strap.progress import Progress, silent
from strap.runs import Run
from strap.types import Array, Match, Trajectory

TIMELINE = "query_frame"
QUALITY = 85
"""JPEG quality of the frames"""


def write_recording(
    path: str | Path,
    run: Run,
    target: Dataset,
    priors: Sequence[Dataset],
    *,
    ranks: int = 3,
    trace: Tracing = lambda _: None,
    progress: Progress = silent,
) -> Path:
    """Write a .rrd file that shows each query frame with the frames its matches pair with it.

    Args:
        path: the file.
        run: the run whose matches are recorded.
        target: the run's target.
        priors: the run's prior datasets.
        ranks: number of matches of each query.
        trace: returns the warping path of a match.
        progress: called with (what, done, total).
    """
    try:
        import rerun
    except ImportError as error:
        raise missing_extra("--rerun needs rerun-sdk", "rerun") from error
    if not len(run.matches):
        raise StrapError(f"'{run.path}' has no matches to record")
    path = Path(path).expanduser()
    if path.suffix.lower() != ".rrd":
        raise unknown("kind of recording", path.suffix or path.name, (".rrd",))
    by_name = run.matches.locate(priors)
    camera = compared_cameras(run.manifest, target)[0]
    cameras = {name: compared_cameras(run.manifest, prior)[0] for name, prior in by_name.items()}
    graded = has_costs(run.matches)
    with replacing(path) as temporary:
        stream = rerun.RecordingStream("strap")
        stream.save(str(temporary))
        for done, query in enumerate(run.matches.queries):
            progress("recording queries", done, len(run.matches.queries))
            shown = np.arange(len(query))
            name = f"query_{done + 1:02d}"
            source = target[query.trajectory_id]
            _log(stream, f"{name}/demonstration", source, camera, query.start + shown)
            for match in [match for match in run.matches if match.query == query][:ranks]:
                paired = pair_frames(trace(match), shown, len(query), len(match.segment))
                trajectory = by_name[match.dataset][match.segment.trajectory_id]
                entity = f"{name}/match_{match.rank:02d}"
                frames = match.segment.start + paired
                _log(stream, entity, trajectory, cameras[match.dataset], frames)
                text = rerun.TextDocument(_describe(match, graded=graded))
                stream.log(entity, text, static=True)
        stream.flush()
        stream.disconnect()
    progress("recording queries", len(run.matches.queries), len(run.matches.queries))
    return path


def _describe(match: Match, *, graded: bool) -> str:
    text = f"{match.instruction}\n{match.dataset}\n{match.segment}"
    cost = f"{match.cost_per_frame:.4g} for each frame of the query"
    return f"{text}\ncost: {cost}" if graded else text


def _log(stream: Any, entity: str, trajectory: Trajectory, camera: str, frames: Array) -> None:
    """Log the image of every frame, and the end effector's position if it is known."""
    import rerun

    first = int(frames.min())
    images = trajectory.frames(camera, first, int(frames.max()) + 1)
    path = _positions(trajectory)
    for moment, frame in enumerate(frames):
        stream.set_time(TIMELINE, sequence=moment)
        image = rerun.Image(np.ascontiguousarray(images[frame - first]))
        stream.log(f"{entity}/camera", image.compress(jpeg_quality=QUALITY))
        if path is not None:
            stream.log(f"{entity}/end_effector", rerun.Points3D([path[frame]], radii=0.01))


def _positions(trajectory: Trajectory) -> Array | None:
    try:
        found = positions(trajectory)
    except StrapError:
        return None
    return found if found.shape[1] == 3 else None
