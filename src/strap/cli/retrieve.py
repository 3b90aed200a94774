"""`strap retrieve`."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from strap.cli.options import Cutting, Json, Opening, print_json
from strap.cli.progress import showing
from strap.datasets import OpenOptions
from strap.datasets.selection import Selection
from strap.datasets.slicing import CHUNK, HISTORY
from strap.embeddings import Dtype
from strap.encoders.language import TEXT_ENCODER
from strap.errors import StrapError, printable
from strap.pipeline import run_retrieval
from strap.progress import Progress
from strap.retrieval import Method, Rule, Shared, TopK
from strap.retrieval.options import TOP_K
from strap.run_options import Augmented, RetrievalOptions
from strap.runs import REPORT, Run
from strap.search import Engine


@dataclass(frozen=True)
class Command:
    """Find the parts of big datasets that look like parts of your demonstrations.

    Embeds what is not embedded yet, cuts the target into segments, searches every prior trajectory,
    and writes matches.parquet and the augmented dataset (target ∪ retrieved) into RUN. Killed,
    it goes on where it was; run again, it does nothing that is done. Then: `strap view RUN`, `strap
    train RUN`.
    """

    EXAMPLES: ClassVar = (
        "strap retrieve --target demos --prior big-dataset --encoder dinov2-base --out my-run",
        "strap retrieve --target lerobot/pusht --prior stores/big --top-k 200 --out my-run",
        "strap retrieve --target data --target-episodes 0:5 --prior data --prior-episodes 5: …",
    )
    GROUPS: ClassVar = {
        "what is given, what is made": (
            *("target", "prior", "out", "augmented", "history", "chunk", "report", "overwrite"),
            "json",
        ),
        "which trajectories and cameras": (
            *("target_tasks", "target_episodes", "prior_tasks", "prior_episodes", "cameras"),
        ),
        "what is retrieved, and how much": (
            *("method", "top_k", "fraction", "threshold", "max_cost", "max_roughness"),
            *("shared", "matches_per_trajectory", "length_ratio", "padding", "rule", "seed"),
        ),
        "what is compared": (
            *("encoder", "fuse", "steps", "metric", "text_encoder", "learning_steps"),
        ),
        "how demonstrations are cut": (
            *("segmentation", "epsilon", "unit", "norm", "min_length", "window", "position"),
            "boundaries",
        ),
        "where it runs, where embeddings lie": (
            *("stores", "dtype", "device", "backend", "engine", "workers", "address", "explain"),
        ),
        "how the datasets are read": (
            *("format", "orientation", "missing"),
            *("rlds_camera", "rlds_language", "rlds_action"),
        ),
    }

    target: Path
    """the new task's demonstrations: a dataset, a name on the hub, or a store"""
    prior: tuple[Path, ...]
    """one or more big datasets, or OWNER/NAME on the hub, or stores of them"""
    out: Path
    """the run folder"""
    segmentation: Cutting
    encoder: str = ""
    """which model: dinov2-base, clip-vit-b16, efficientnet-lite0, …, pixels (no model), a hub id or
    a local folder (default: that of the priors' stores, where there are any)"""
    method: Method = "strap"
    """strap: segments, by dynamic time warping; d-t: whole trajectories, likewise; d-s: single
    frames, by the encoder's features; br, fr: single frames, by features learned from images and
    actions, or from optical flow; random: any segments; language: whole trajectories by their
    instruction"""
    top_k: TopK | None = None
    """how many matches to keep in all (default: 100); auto: those that cost no more than the same
    query does in the other demonstrations of the target"""
    fraction: float | None = None
    """instead of --top-k: the cheapest share of all that could be retrieved"""
    threshold: float | None = None
    """instead: what is at least so similar; 1: the lowest cost of all, 0: the highest"""
    max_cost: float | None = None
    """keep nothing that costs more than this for each frame of its query"""
    max_roughness: float | None = None
    """drop matches that move more than so many times as jerkily as their query"""
    fuse: tuple[str, ...] = ()
    """compare these too, beside the encoder's features: gripper, position, movement, language (the
    instruction), or any proprioception as NAME or 'NAME[0:3]'; gripper=0.5 weighs it half; auto:
    chosen on the target's demonstrations, and said why"""
    target_tasks: tuple[str, ...] = ()
    """only the target's trajectories with these instructions, or parts of them"""
    target_episodes: str = ""
    """of those, only the ones at these positions: 0:5 or 0:10,17"""
    prior_tasks: tuple[str, ...] = ()
    """as --target-tasks, for each prior dataset"""
    prior_episodes: str = ""
    """as --target-episodes, for each prior dataset"""
    cameras: tuple[str, ...] = ()
    """of target and prior (default: LIBERO's agent view where there is one, else the mean of all);
    where names differ, embed each dataset with its own and give the stores; br, fr: one"""
    steps: Annotated[Literal["strap", "fmp", "classic"] | None, tyro.conf.arg(name="step-set")] = (
        None
    )
    """moves of a warping path, in (query, trajectory) frames: strap (1,1) (1,2), the authors'; fmp
    (1,1) (1,2) (2,1), the textbook's; classic (1,1) (1,0) (0,1), the paper's equation 1 (default:
    strap; d-t: classic)"""
    metric: Literal["l2", "cosine"] | None = None
    """the cost of one frame against another (default: l2; single states: cosine)"""
    rule: Rule = "even"
    """even: exactly top-k, spread evenly; released: the authors' floor, usually fewer (strap, d-t,
    language)"""
    shared: Shared = "self"
    """trajectories in both target and prior: self hides a query's own trajectory from it, all
    hides them from every query, keep hides none"""
    matches_per_trajectory: int = 1
    """strap: at most so many matches of a query in each prior trajectory, none overlapping
    another"""
    length_ratio: tuple[float, float] | None = None
    """strap: a match's least and greatest length in lengths of its query: 1 1.5"""
    padding: int = 5
    """d-s, br, fr: frames kept before a retrieved frame, and from it on"""
    learning_steps: int | None = None
    """br, fr: optimiser steps of the features that they learn (default: 30,000)"""
    text_encoder: str = TEXT_ENCODER
    """--method or --fuse language: what embeds instructions: minilm, clip, words (no model), a hub
    id, a folder"""
    seed: int = 0
    """random: the seed of the draw"""
    backend: Literal["auto", "gpu", "cpu", "reference"] = "auto"
    """what computes the matches; auto: a GPU where there is one"""
    engine: Engine = "local"
    """where to search: on this machine, or on a Ray cluster"""
    workers: int = 2
    """tasks at a time on a Ray cluster that is started here"""
    address: str | None = None
    """a Ray cluster's address (default: one is started here)"""
    explain: bool = False
    """print how many (query, trajectory) pairs each bound removed"""
    dtype: Dtype = "float16"
    """how embeddings are stored"""
    opening: Opening = field(default_factory=OpenOptions)
    history: int = HISTORY
    """frames kept before a retrieved segment"""
    chunk: int = CHUNK
    """frames kept after a retrieved segment"""
    augmented: Augmented = "auto"
    """target ∪ retrieved as a dataset: robomimic's HDF5, lerobot's folder, auto: as the target is;
    none: `strap train` reads the original datasets"""
    report: Literal["page", "none"] = "page"
    """page: show the matches in RUN/report.html; none: don't"""
    stores: Path | None = None
    """where embeddings are looked for and kept; stores beside a dataset are found too (default:
    the user's cache folder, or $STRAP_CACHE)"""
    device: str = "auto"
    """where networks run: auto, cpu, cuda"""
    overwrite: bool = False
    """replace a run that was made with other options"""
    json: Json = False
    """print the outcome as JSON"""

    def options(self) -> RetrievalOptions:
        """Return what decides the outcome, but for the data."""
        says_how_much = self.fraction is not None or self.threshold is not None
        given = {
            name: getattr(self, name)
            for name in RetrievalOptions.__dataclass_fields__
            if hasattr(self, name)
        }
        given["top_k"] = TOP_K if self.top_k is None and not says_how_much else self.top_k
        return RetrievalOptions(
            **given,
            target_selection=Selection(self.target_tasks, self.target_episodes),
            prior_selection=Selection(self.prior_tasks, self.prior_episodes),
        )

    def run(self) -> None:
        """Retrieve, then show what was found."""
        with showing() as progress:
            run = run_retrieval(
                self.target,
                self.prior,
                self.out,
                self.options(),
                stores=self.stores,
                overwrite=self.overwrite,
                device=self.device,
                engine=self.engine,
                workers=self.workers,
                address=self.address,
                progress=progress,
            )
            page = self._write_page(run, progress)
        if self.json:
            print_json({"run": str(run.path), "reused": run.reused, **run.manifest})
        else:
            print(summary(run))
            if self.explain:
                print(explanation(run))
            if page is not None:
                print(f"report: {page}")

    def _write_page(self, run: Run, progress: Progress) -> Path | None:
        """Write the run's page where it has none; what keeps it from it is no reason to fail."""
        from strap.cli.report import write_report
        from strap.view.run_views import RunView

        if self.report == "none" or not len(run.matches):
            return None
        page = run.path / REPORT
        if run.reused and page.is_file():
            return page
        try:
            return write_report(RunView.open(run.path), page, progress=progress).path
        except StrapError as error:
            warnings.warn(f"no report was written: {error}", stacklevel=2)
            return None


def explanation(run: Run) -> str:
    """Return how many pairs each step of the search removed, for a terminal."""
    search = run.manifest.get("search")
    if not search:
        return "how it was searched was not noted: run again with --overwrite"
    if not search["pairs"]:
        return "every pair was evaluated: the reference backend uses no bounds"
    pairs = search["pairs"]
    rows = [
        ("pairs that fit", search["pairs"]),
        ("removed by sketches, their frames not read", search["by_sketches"]),
        ("removed by the bound from all dimensions", search["by_bounds"]),
        ("evaluated exactly", search["evaluated"]),
    ]
    return "\n".join(f"{count:12,d} {100 * count / pairs:6.1f} %  {what}" for what, count in rows)


def summary(run: Run) -> str:
    """Return the matches and where they come from, for a terminal."""
    lines = [str(run.matches), ""]
    tasks = Counter(match.instruction or "(no instruction)" for match in run.matches)
    lines += [f"{count:6d}  {task}" for task, count in tasks.most_common(20)]
    found = f"{len(run.matches)} matches of {run.manifest['queries']} queries"
    state = " (nothing had changed: nothing was done)" if run.reused else ""
    lines += ["", f"{found} → {run.path}{state}"]
    reasons = run.manifest.get("reasons", {})
    lines += [printable(f"{name}: {reason}") for name, reason in reasons.items()]
    lines += [f"embeddings: {place}" for place in run.manifest.get("stores", {}).values()]
    if run.augmented:
        lines.append(f"augmented dataset: {run.augmented}")
    return "\n".join(lines)
