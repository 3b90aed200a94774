"""BC and STRAP on three LIBERO-10 tasks, full and frozen vision: what docs/results.md shows.

    python runs/libero_policy.py collect  WORK    demonstrations               (simulator)
    python runs/libero_policy.py prepare  WORK    embed, retrieve, decode
    python runs/libero_policy.py train    WORK    ResNet policies              (GPU; torch alone)
    python runs/libero_policy.py frozen   WORK    frozen-feature policies      (CPU)
    python runs/libero_policy.py evaluate WORK    20 fixed initial states each (simulator)
    python runs/libero_policy.py report   WORK    tables and pictures into WORK

Each stage leaves out what is done. `collect` records 8 demonstrations of each target task, of which
5 are trained on and 3 held out, and the prior, all of LIBERO-90: 25 of each task that is a part of
a target, 2 of each of the other 84. Policies go to WORK/policies/<task>-<method>-resnet. `--tasks`,
`--methods` choose some.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from libero_tasks import SHARED, TARGETS

ROOT = Path(__file__).resolve().parents[1]
METHODS = ("bc", "strap")
VISIONS = ("resnet", "frozen")
PART, OTHER, TARGET, HELD_OUT = 25, 2, 8, 3
"""demonstrations of a prior task that is a part of a target, of others, of a target; held out"""
STEPS = {"bc": 5_000, "strap": 10_000}
"""until well after the held-out likelihood has stopped improving"""


def collect(call: argparse.Namespace) -> None:
    """Demonstrations of the targets and of the prior."""
    from strap.libero import collect
    from strap.libero.tasks import list_tasks

    others = [task.name for task in list_tasks("libero_90") if task.name not in SHARED]
    for suite, tasks, demos in (
        ("libero_10", list(TARGETS.values()), TARGET),
        ("libero_90", list(SHARED), PART),
        ("libero_90", others, OTHER),
    ):
        out = call.work / "demos" / suite
        done = collect(
            suite, demos=demos, out=out, tasks=tasks, workers=call.workers, progress=show
        )
        print(suite, done)


def prepare(call: argparse.Namespace) -> None:
    """Runs and frame caches."""
    from strap.runs import RetrievalOptions, run_retrieval
    from strap.training.cache_builder import CacheOptions, build_cache
    from strap.training.data import open_training_data

    options = RetrievalOptions(encoder=call.encoder, top_k=call.top_k)
    for task in call.tasks:
        demos = call.work / "demos"
        run = run_retrieval(
            demos / "libero_10" / f"{TARGETS[task]}_demo.hdf5",
            [demos / "libero_90"],
            call.work / "runs" / task,
            options,
            stores=call.work / "stores",
            progress=show,
        )
        source = open_training_data(run.path)
        cache = build_cache(source, call.work / "frames" / task, CacheOptions(), progress=show)
        print(f"{cache.path}: {cache.rows} frames", flush=True)


def train(call: argparse.Namespace) -> None:
    """ResNet policies."""
    from strap.policies import policy_preset
    from strap.training import train, training_preset
    from strap.training.cache import open_cache

    for task in call.tasks:
        cache = open_cache(call.work / "frames" / task)
        for method in call.methods:
            name = f"{task}-{method}-resnet"
            settings = replace(
                training_preset("fixed"),
                method=method,
                steps=call.steps or STEPS[method],
                holdout=call.holdout,
                seed=call.seed,
                eval_every=500,
                log_every=500,
                decay=True,
                compile="on" if call.compile else "auto",
                graphs=not call.no_graphs,
            )
            done = train(
                cache,
                call.work / "policies" / name,
                policy=policy_preset("fixed"),
                training=settings,
                device=call.device,
            )
            print(f"{name}: {done}", flush=True)


def frozen(call: argparse.Namespace) -> None:
    """Frozen-feature policies, from the runs."""
    from strap.policies import policy_preset
    from strap.training import train, training_preset
    from strap.training.cache_builder import CacheOptions, build_cache
    from strap.training.data import open_training_data

    for task in call.tasks:
        source = open_training_data(call.work / "runs" / task)
        options = CacheOptions(vision="frozen")
        cache = build_cache(source, call.work / "maps" / task, options, progress=show)
        for method in call.methods:
            settings = replace(
                training_preset("fixed", vision="frozen"),
                method=method,
                holdout=call.holdout,
                seed=call.seed,
            )
            if call.steps:
                settings = replace(settings, steps=call.steps)
            name = f"{task}-{method}-frozen"
            done = train(
                cache,
                call.work / "policies" / name,
                policy=policy_preset("fixed", vision="frozen"),
                training=settings,
                device=call.device,
            )
            print(f"{name}: {done}", flush=True)


def evaluate(call: argparse.Namespace) -> None:
    """Twenty fixed initial states each."""
    from strap.evaluation import EvaluationSettings, evaluate

    for task, name, checkpoint in checkpoints(call):
        settings = EvaluationSettings(
            task=TARGETS[task],
            episodes=call.episodes,
            workers=call.workers,
            device=call.device,
            which=call.which,
            acting=call.acting,
            blend=call.blend,
        )
        place = call.work / call.evaluations / name
        done = evaluate(checkpoint, settings, place, progress=show)
        print(f"{name}: {done}", flush=True)


def report(call: argparse.Namespace) -> None:
    """Write the tables and pictures into the work folder."""
    from libero_report import write

    write(call.work, call.tasks)


def checkpoints(call: argparse.Namespace) -> Iterator[tuple[str, str, Path]]:
    """(task, name, folder) of every policy that is there."""
    for task in call.tasks:
        for vision in call.visions:
            for method in call.methods:
                name = f"{task}-{method}-{vision}"
                if (call.work / "policies" / name / "config.json").is_file():
                    yield task, name, call.work / "policies" / name


def show(what: str, done: int, total: int) -> None:
    """Progress, sparsely."""
    if done == total or done % max(1, total // 10) == 0:
        print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)


def main() -> None:
    """Run one stage."""
    stages: dict[str, Callable[[argparse.Namespace], None]] = {
        "collect": collect,
        "prepare": prepare,
        "train": train,
        "frozen": frozen,
        "evaluate": evaluate,
        "report": report,
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=stages)
    parser.add_argument("work", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--encoder", default="efficientnet-lite0@128")
    parser.add_argument("--top-k", type=int, default=160)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--holdout", type=int, default=HELD_OUT)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--which", choices=("last", "best"), default="last")
    parser.add_argument("--acting", choices=("", "mode", "sample"), default="")
    parser.add_argument("--blend", type=int, default=0)
    parser.add_argument("--evaluations", default="evaluations", help="folder of the records")
    parser.add_argument("--visions", nargs="+", choices=VISIONS, default=list(VISIONS))
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--no-graphs", action="store_true")
    call = parser.parse_args()
    stages[call.stage](call)


if __name__ == "__main__":
    main()
