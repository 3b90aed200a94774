"""Open a run, a dataset or an augmented dataset as the clips that a training reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strap.choices import ChoicesMode, ChosenMatches, choose_matches
from strap.datasets import Dataset, OpenOptions, open_dataset
from strap.datasets.selection import Selection
from strap.errors import StrapError
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json
from strap.training.cache import RetrievedSpan
from strap.types import Matches, Trajectory


@dataclass(frozen=True)
class Clip:
    """Frames start … stop−1 of a trajectory that will be cached."""

    dataset: Dataset
    id: str
    role: str
    """target or prior"""
    start: int
    stop: int

    def trajectory(self) -> Trajectory:
        """Return the whole trajectory of the clip."""
        return self.dataset[self.id]


@dataclass(frozen=True)
class Context:
    """The number of frames to keep before and after a retrieved segment, if there are that many."""

    history: int
    chunk: int


@dataclass(frozen=True)
class TrainingData:
    """The clips of a training, and the retrieved segments in them."""

    clips: tuple[Clip, ...]
    retrieved: tuple[RetrievedSpan, ...]
    context: Context | None = None
    """frames around the retrieved segments; None if the clips are whole trajectories"""
    chosen: ChosenMatches | None = None
    """for a run: the matches that remain; the others are missing from `retrieved`"""

    def fingerprint(self) -> str:
        """Return a hash of the files, the options of reading them, the clips and the matches."""
        datasets = {clip.dataset.name: clip.dataset for clip in self.clips}
        content: list[Any] = [
            [name, dataset.fingerprint(), dataset.format, dataset.read_as]
            for name, dataset in datasets.items()
        ]
        content += [[c.dataset.name, c.id, c.role, c.start, c.stop] for c in self.clips]
        content += [astuple(found) for found in self.retrieved]
        return fingerprint_json(content)

    def fetch(self, cameras: Sequence[str] | None, progress: Progress) -> None:
        """Download missing files of hub datasets, for the given cameras or all."""
        ids: dict[str, dict[str, None]] = {}
        for clip in self.clips:
            ids.setdefault(clip.dataset.name, {})[clip.id] = None
        for name, dataset in {clip.dataset.name: clip.dataset for clip in self.clips}.items():
            dataset.full_dataset.select(list(ids[name])).fetch(cameras, progress)


def open_training_data(
    path: str | Path,
    *,
    prior: Sequence[str | Path] = (),
    whole_prior: bool = False,
    selection: Selection | None = None,
    opening: OpenOptions | None = None,
    choices: ChoicesMode = "use",
    progress: Progress = silent,
) -> TrainingData:
    """Open a run folder, a dataset of demonstrations, or an augmented dataset.

    Args:
        path: the run or dataset to train on.
        prior: for a dataset: datasets to pre-train on, or to train on in addition.
        whole_prior: for a run: include its whole prior, not only the retrieved segments.
        selection: for a dataset: which of its demonstrations to train on.
        opening: how to read datasets.
        choices: for a run: apply its choices among matches, or `ignore` them.
        progress: called with (what, done, total) during downloads from the hub.
    """
    path, opening = Path(path).expanduser(), opening or OpenOptions()
    selection = selection or Selection()
    if (path / "matches.parquet").is_file():
        _require_no_selection(selection, f"'{path}' is a run")
        _require_no_overrides(prior, opening, f"'{path}' is a run")
        return _read_run(path, choices, whole_prior=whole_prior)
    dataset = opening.open(path, progress)
    if not len(dataset):
        raise StrapError(f"dataset '{path}' is empty: it holds no trajectory")
    if "is_pad" in dataset[dataset.ids[0]].extras:
        _require_no_selection(selection, f"'{path}' is an augmented dataset")
        _require_no_overrides(prior, OpenOptions(), f"'{path}' is an augmented dataset")
        return _read_augmented(dataset)
    clips = _whole_clips(selection.apply(dataset), "target")
    for other in prior:
        clips += _whole_clips(opening.open(other, progress), "prior")
    return TrainingData(tuple(clips), ())


def _require_no_selection(selection: Selection, what: str) -> None:
    if selection != Selection():
        raise StrapError(
            f"{what}, which was made for the demonstrations in it: choose others with "
            "`strap retrieve --target-tasks --target-episodes`; --tasks and --episodes are for a "
            "dataset of demonstrations"
        )


def _require_no_overrides(prior: Sequence[str | Path], opening: OpenOptions, what: str) -> None:
    """Raise if a run or augmented dataset is given another prior, or options for reading."""
    if prior:
        raise StrapError(
            f"{what}, which has its own prior: leave --prior out; it is for a dataset of "
            "demonstrations with --recipe ft or mt"
        )
    if replace(opening, missing="error") != OpenOptions():
        raise StrapError(
            f"{what}, whose datasets are read with the options of `strap retrieve`: leave "
            "--format, --orientation and --rlds-… out, or retrieve again with them"
        )


def open_whole_datasets(
    paths: Sequence[str | Path],
    opening: OpenOptions | None = None,
    selection: Selection | None = None,
    progress: Progress = silent,
) -> TrainingData:
    """Open whole datasets for a cache that many trainings use parts of."""
    clips: list[Clip] = []
    opening = opening or OpenOptions()
    given = [Path(path).expanduser() for path in paths]
    for path in dict.fromkeys(path.resolve() if path.exists() else path for path in given):
        opened = opening.open(path, progress)
        dataset = (selection or Selection()).apply(opened)
        if not len(dataset):
            raise StrapError(f"dataset '{path}' is empty: it holds no trajectory")
        clips += _whole_clips(dataset, "target")
    return TrainingData(tuple(clips), ())


def _read_run(path: Path, choices: ChoicesMode, *, whole_prior: bool) -> TrainingData:
    from strap.runs import open_run

    run = open_run(path)
    chosen = choose_matches(path, run.matches, choices)
    arguments = run.manifest["arguments"]
    if not run.has_datasets():
        if whole_prior:
            raise StrapError(
                f"datasets of '{path}' are gone ({', '.join(arguments['prior'])}): this recipe "
                "trains on all of the prior; restore them, or use --recipe strap"
            )
        if run.augmented is None:
            raise StrapError(
                f"datasets of '{path}' are gone and it holds no augmented dataset: restore them "
                f"({', '.join([arguments['target'], *arguments['prior']])})"
            )
        return _with_choices(_read_augmented(open_dataset(run.augmented)), chosen)
    target, priors = run.datasets()
    clips, context = _whole_clips(target, "target"), None
    if whole_prior:
        for dataset in priors:
            clips += _whole_clips(dataset, "prior")
    else:
        context = Context(int(arguments["history"]), int(arguments["chunk"]))
        clips += _clips_around(chosen.matches, priors, context)
    retrieved = _locate_matches(chosen.matches, clips)
    return TrainingData(tuple(clips), retrieved, context, chosen)


def _with_choices(data: TrainingData, chosen: ChosenMatches) -> TrainingData:
    """Return an augmented dataset's clips without those of dropped matches.

    An augmented dataset holds one clip per match, in the order of matches.parquet.
    """
    if len(data.retrieved) != chosen.total:
        raise StrapError(
            f"the augmented dataset holds {len(data.retrieved)} segments, but matches.parquet has "
            f"{chosen.total}: it was made from other matches; run `strap retrieve` again"
        )
    spans = [data.retrieved[row] for row in chosen.rows]
    kept = {span.clip for span in spans}
    numbers = [n for n, clip in enumerate(data.clips) if clip.role == "target" or n in kept]
    places = {number: place for place, number in enumerate(numbers)}
    return replace(
        data,
        clips=tuple(data.clips[number] for number in numbers),
        retrieved=tuple(replace(span, clip=places[span.clip]) for span in spans),
        chosen=chosen,
    )


def _whole_clips(dataset: Dataset, role: str) -> list[Clip]:
    return [Clip(dataset, t.id, role, 0, t.length) for t in dataset]


def _clips_around(matches: Matches, priors: Sequence[Dataset], context: Context) -> list[Clip]:
    """Return clips of the retrieved frames and their context; merge overlapping ones."""
    by_name = matches.locate(priors)
    spans: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for match in matches:
        key = (match.dataset, match.segment.trajectory_id)
        span = (match.segment.start - context.history, match.segment.stop + context.chunk)
        spans.setdefault(key, []).append(span)
    clips = []
    for (name, trajectory_id), found in sorted(spans.items()):
        length = by_name[name][trajectory_id].length
        for start, stop in _merge_spans(found):
            span = max(start, 0), min(stop, length)
            clips.append(Clip(by_name[name], trajectory_id, "prior", *span))
    return clips


def _merge_spans(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _locate_matches(matches: Matches, clips: Sequence[Clip]) -> tuple[RetrievedSpan, ...]:
    """Return the retrieved spans: find the clip that contains each match."""
    where: dict[tuple[str, str], list[int]] = {}
    for index, clip in enumerate(clips):
        if clip.role == "prior":
            where.setdefault((clip.dataset.name, clip.id), []).append(index)
    spans = []
    for match in matches:
        segment = match.segment
        holding = [
            i
            for i in where.get((match.dataset, segment.trajectory_id), ())
            if clips[i].start <= segment.start and segment.stop <= clips[i].stop
        ]
        if not holding:
            raise StrapError(
                f"match {segment} is not in any prior dataset of the run: if the datasets were "
                "changed, run `strap retrieve` again"
            )
        location = (holding[0], segment.start, segment.stop, match.cost)
        query = match.query
        spans.append(RetrievedSpan(*location, query.trajectory_id, query.start, query.stop))
    return tuple(spans)


def _read_augmented(dataset: Dataset) -> TrainingData:
    """Read the demonstrations and segments that `augment` wrote, without repeated frames."""
    clips: list[Clip] = []
    spans: list[RetrievedSpan] = []
    contexts: list[Context] = []
    for trajectory in dataset:
        is_real = ~_flags(trajectory, "is_pad")
        real = _require_any(np.flatnonzero(is_real), trajectory)
        start, stop = int(real[0]), int(real[-1]) + 1
        origin = _origin(trajectory)
        role = "target" if origin.get("cost") is None else "prior"
        clips.append(Clip(dataset, trajectory.id, role, start, stop))
        if role == "target":
            continue
        inside = _require_any(
            np.flatnonzero(is_real & ~_flags(trajectory, "is_context")), trajectory
        )
        first, last = int(inside[0]), int(inside[-1])
        found = (len(clips) - 1, first, last + 1, _cost(origin, trajectory))
        spans.append(RetrievedSpan(*found, *_query(origin, trajectory)))
        contexts.append(Context(first, trajectory.length - last - 1))
    if not any(clip.role == "target" for clip in clips):
        clips = [replace(clip, role="target") for clip in clips]
    return TrainingData(tuple(clips), tuple(spans), contexts[0] if contexts else None)


def _flags(trajectory: Trajectory, name: str) -> npt.NDArray[np.bool_]:
    """Return the flags of a trajectory's frames [frame] that `augment` wrote."""
    values = np.asarray(trajectory.extras[name][:]) if name in trajectory.extras else np.zeros(0)
    if values.size != trajectory.length or values.dtype.kind not in "biu":
        raise _damaged(trajectory, f"'{name}' does not have one flag per frame")
    return values.ravel().astype(np.bool_)


def _require_any(frames: npt.NDArray[np.int64], trajectory: Trajectory) -> npt.NDArray[np.int64]:
    if not frames.size:
        raise _damaged(trajectory, "it has no frame to train on")
    return frames


def _cost(origin: Mapping[str, Any], trajectory: Trajectory) -> float:
    try:
        return float(origin["cost"])
    except (TypeError, ValueError) as error:
        raise _damaged(trajectory, "the cost of its match is not a number") from error


def _query(origin: Mapping[str, Any], trajectory: Trajectory) -> tuple[str, int, int]:
    """Return the query of a segment: the demonstration's id, its start and stop."""
    try:
        bounds = int(origin["query_start"]), int(origin["query_stop"])
        return str(origin["query_trajectory"]), *bounds
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(trajectory, "it does not name the query of its match") from error


def _damaged(trajectory: Trajectory, problem: str) -> StrapError:
    return StrapError(
        f"'{trajectory.source.path}', {trajectory.id}: {problem}: the augmented dataset is "
        "damaged; create it again"
    )


def _origin(trajectory: Trajectory) -> dict[str, Any]:
    """Return the source of a segment: one mapping in LeRobot, `source_*` attributes in HDF5."""
    if provenance := trajectory.attributes.get("provenance"):
        return dict(provenance)
    prefix = "source_"
    return {
        key.removeprefix(prefix): value
        for key, value in trajectory.attributes.items()
        if key.startswith(prefix)
    }
