"""Run an experiment: plan and schedule the unfinished cells, and copy each when it is finished."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from strap.atomic import read_json
from strap.errors import StrapError
from strap.experiments.cellfolders import (
    copy_cell,
    describe_state,
    drop_weights,
    finish_cell,
    keep_matches,
    note_stage,
    read_cell,
)
from strap.experiments.cells import Cell
from strap.experiments.datafolder import as_relative
from strap.experiments.gpu_sharing import sharing_gpu
from strap.experiments.plan import Kind, Planner, Stage
from strap.experiments.scheduler import Outcome, Scheduler


@dataclass(frozen=True)
class RunSettings:
    """How an experiment is run on this machine; no setting changes a result."""

    trainings: int = 1
    evaluations: int = 1
    retrievals: int = 1
    keep: Path | None = None
    """folder to which finished cells are copied"""
    kept: Path | None = None
    """folder of cells that were finished elsewhere"""
    checkpoints: bool = False
    """keep the weights of evaluated cells"""
    share_gpu: bool = True
    seconds: float | None = None
    """after this time, start only evaluations of policies that are trained or being trained"""
    stages: tuple[Kind, ...] = ()
    """start only commands of these kinds; empty: of all kinds"""
    evaluate_last: bool = False
    """start evaluations after all trainings instead of during them"""

    def __post_init__(self) -> None:
        for name in ("trainings", "evaluations", "retrievals"):
            if getattr(self, name) < 1:
                raise StrapError(f"{name} is {getattr(self, name)}: it must be at least 1")

    @property
    def slots(self) -> dict[str, int]:
        """Kind of stage -> how many run at once; stages of other kinds run one at a time."""
        return {
            "train": self.trainings,
            "evaluate": self.evaluations,
            "retrieve": self.retrievals,
        }


def run_cells(
    cells: Sequence[Cell],
    planner: Planner,
    settings: RunSettings,
    tell: Callable[[str], None] = print,
) -> Outcome:
    """Run all cells that are not finished yet.

    Args:
        cells: the cells to run.
        planner: plans the commands for the data and the work folder.
        settings: how many commands run at once, and what is kept.
        tell: called with each line of progress.
    """
    planner.work.mkdir(parents=True, exist_ok=True)
    if settings.kept is not None:
        copied = sum(copy_cell(cell, settings.kept, planner.work) for cell in cells)
        tell(f"{copied} finished cells taken from '{settings.kept}'")
    missing = []
    for cell in cells:
        if _is_finished(cell, planner):
            _archive_cell(cell, planner, settings)
        else:
            missing.append(cell)
    tell(f"{len(cells)} cells, {len(cells) - len(missing)} of them finished")
    if not missing:
        return Outcome()
    planned = planner.plan(missing)
    stages = _still_needed(planned)
    with sharing_gpu(enabled=settings.share_gpu) as environment:
        chosen = _select_kinds(stages, settings.stages)
        if len(chosen) < len(stages):
            tell(f"{len(stages) - len(chosen)} commands are left for another run")
        _require_same_commands(chosen, planner)
        if settings.evaluate_last:
            chosen = _evaluate_last(chosen)
        scheduler = Scheduler(
            chosen,
            slots=settings.slots,
            on_success=_make_on_success(planner, settings, planned),
            tell=tell,
            environment=environment,
            seconds=settings.seconds,
            kind_after_deadline="evaluate",
        )
        outcome = scheduler.run()
    for cell in missing:  # includes cells that another runner finished
        if _is_finished(cell, planner):
            _archive_cell(cell, planner, settings)
    return outcome


def _require_same_commands(stages: Iterable[Stage], planner: Planner) -> None:
    """Raise if a policy to evaluate was trained by another command."""
    places = {"DATA": planner.data.path, "WORK": planner.work}
    evaluated = {name for stage in stages if stage.kind == "evaluate" for name in stage.needs}
    wrong = []
    for stage in stages:
        if stage.name not in evaluated or not (stage.note.is_file() and stage.output.exists()):
            continue
        now = as_relative(stage.command[len(planner.program) :], places)
        noted = read_json(stage.note)
        noted = noted.get("command") if isinstance(noted, dict) else None
        if noted != now:
            words = shlex.join(map(str, noted)) if isinstance(noted, list) else "…"
            wrong.append((stage.output, f"`strap {words}` instead of `strap {shlex.join(now)}`"))
    if wrong:
        places_of_others = "".join(f", '{output}'" for output, _ in wrong[1:])
        raise StrapError(
            f"'{wrong[0][0]}'{places_of_others}: trained with other options or on other data than "
            f"the experiment's file says (the first by {wrong[0][1]}): remove these folders to "
            "train them again, choose another --out, or undo the change"
        )


def _still_needed(stages: Sequence[Stage]) -> list[Stage]:
    """Return the stages without those that only finished stages need.

    For example, a trained policy's frames are not needed any more. `stages` are in the order of
    their needs.
    """
    needed: dict[str, Stage] = {}
    wanted: set[str] = set()
    for stage in reversed(stages):
        if stage.kind == "evaluate" or stage.name in wanted:
            needed[stage.name] = stage
            wanted.update(() if stage.is_finished() else stage.needs)
    kept = [stage for stage in stages if stage.name in needed]
    return [replace(s, after=tuple(n for n in s.after if n in needed)) for s in kept]


def _select_kinds(stages: Sequence[Stage], kinds: Collection[Kind]) -> list[Stage]:
    """Return the stages of the given kinds, except those that need unfinished ones of other kinds.

    Without kinds, return all. Finished stages are included and wait for nothing. `stages` are in
    the order of their needs.
    """
    if not kinds:
        return list(stages)
    chosen: dict[str, Stage] = {}
    for stage in stages:
        if stage.is_finished():
            chosen[stage.name] = replace(stage, needs=(), after=())
        elif stage.kind in kinds and chosen.keys() >= set(stage.needs):
            chosen[stage.name] = stage
    return list(chosen.values())


def _evaluate_last(stages: Sequence[Stage]) -> list[Stage]:
    """Return the stages, with evaluations that start after all trainings."""
    trainings = tuple(stage.name for stage in stages if stage.kind in ("pretrain", "train"))
    return [
        replace(stage, after=(*stage.after, *trainings)) if stage.kind == "evaluate" else stage
        for stage in stages
    ]


def _is_finished(cell: Cell, planner: Planner) -> bool:
    """Return whether the cell is finished; a cell made from other data is an error."""
    result = read_cell(planner.work, cell)
    if result is not None and result.manifest["data"] != planner.data.fingerprints:
        raise StrapError(
            f"'{result.path}' was made from other data than '{planner.data.path}' holds: choose "
            "another --out, or give the same data"
        )
    return result is not None


def _make_on_success(
    planner: Planner, settings: RunSettings, stages: Sequence[Stage]
) -> Callable[[Stage, float], None]:
    named = {stage.name: stage for stage in stages}

    def on_success(stage: Stage, seconds: float) -> None:
        if stage.kind != "evaluate" or stage.cell is None:
            if stage.kind == "train":
                keep_matches(stage, planner, named)
            note_stage(stage, seconds, planner)
            return
        finish_cell(stage, seconds, planner, named)
        _archive_cell(stage.cell, planner, settings)

    return on_success


def _archive_cell(cell: Cell, planner: Planner, settings: RunSettings) -> None:
    """Copy a finished cell to the folder of kept cells, and remove its weights."""
    if settings.keep is not None:
        copy_cell(cell, planner.work, settings.keep)
    if not settings.checkpoints:
        drop_weights(cell, planner)


def format_plan(
    cells: Sequence[Cell],
    planner: Planner,
    kept: Path | None = None,
    kinds: Collection[Kind] = (),
) -> str:
    """Describe the plan: cells, then the remaining commands, with short paths.

    A cell that a run would refuse is shown with the reason, and without commands.
    """
    places = [planner.work, *([kept] if kept else [])]
    states = {cell: describe_state(places, cell) for cell in cells}
    missing = [cell for cell in cells if not states[cell]]
    finished = [cell for cell in cells if states[cell] == "finished"]
    lines = [f"{len(cells)} cells, {len(finished)} of them finished"]
    lines += [f"  {cell.name}  {state}".rstrip() for cell, state in states.items()]
    if refused := len(cells) - len(missing) - len(finished):
        lines += [
            "",
            f"a run would refuse the {refused} that differ or are unusable (here: the cell, there: "
            "the experiment's file): choose another --out, undo the change, or remove them",
        ]
    stages = [
        s for s in _select_kinds(_still_needed(planner.plan(missing)), kinds) if not s.is_finished()
    ]
    counts = Counter(stage.kind for stage in stages)
    listing = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    lines += ["", f"{len(stages)} commands: {listing or 'none'}"]
    shortened = {"DATA": planner.data.path, "WORK": planner.work}
    for stage in stages:
        words = as_relative(stage.command[len(planner.program) :], shortened)
        lines.append(f"  strap {shlex.join(words)}")
    return "\n".join(lines)
