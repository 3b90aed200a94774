"""`strap retrieve`."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from strap.cli.options import (
    Json,
    OpenArgument,
    SegmentationArgument,
    print_json,
    require_used_cuts,
)
from strap.cli.progress import show_progress
from strap.datasets import OpenOptions
from strap.datasets.selection import Selection
from strap.datasets.slicing import FRAMES_AFTER, FRAMES_BEFORE
from strap.embeddings import Dtype
from strap.encoders.language import TEXT_ENCODER
from strap.errors import StrapError, printable
from strap.pipeline import run_retrieval
from strap.progress import Progress
from strap.retrieval import METHODS, Method, Rule, Shared, TopK
from strap.retrieval.options import TOP_K
from strap.run_options import Augmented, RetrievalOptions
from strap.runs import REPORT, Run
from strap.search import Engine


@dataclass(frozen=True)
class Command:
    """Find the parts of big datasets that look like parts of your demonstrations.

    Embeds the datasets if necessary, cuts the target into segments, searches every prior
    trajectory, and writes matches.parquet and the augmented dataset (target ∪ retrieved) into the
    run folder. Run the same command again to resume an interrupted run; a finished one is not
    repeated. Then: `strap view RUN`, `strap train RUN`.
    """

    EXAMPLES: ClassVar = (
        "strap retrieve --target demos --prior big-dataset --encoder dinov2-base --out my-run",
        "strap retrieve --target lerobot/pusht --prior stores/big --top-k 200 --out my-run",
        "strap retrieve --target data --target-episodes 0:5 --prior data --prior-episodes 5: …",
    )
    GROUPS: ClassVar = {
        "input and output": (
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
        "hardware and storage": (
            *("stores", "dtype", "device", "backend", "engine", "workers", "address", "explain"),
        ),
        "how the datasets are read": (
            *("format", "orientation", "missing"),
            *("rlds_camera", "rlds_language", "rlds_action"),
        ),
    }

    target: Path
    """demonstrations of the new task: a dataset, a name on the hub, or a store"""
    prior: tuple[Path, ...]
    """what to search: one or more datasets, OWNER/NAME on the hub, or stores"""
    out: Path
    """the run folder"""
    segmentation: SegmentationArgument
    encoder: str = ""
    """the model: dinov2-base, clip-vit-b16, efficientnet-lite0, …, pixels (no model), a hub id or a
    local folder (default: the encoder of the priors' stores, if stores are given)"""
    method: Method = "strap"
    """strap: segments, by dynamic time warping; d-t: whole trajectories, by dynamic time warping;
    d-s: single frames, by the encoder's features; br, fr: single frames, by features learned from
    images and actions (br) or from optical flow (fr); random: random segments; language: whole
    trajectories, by their instruction"""
    top_k: TopK | None = None
    """how many matches to keep in all (default: 100); auto: those that cost no more than their
    query costs in the other demonstrations of the target"""
    fraction: float | None = None
    """instead of --top-k: keep this share of all candidates, the cheapest"""
    threshold: float | None = None
    """instead of --top-k: keep this similarity or more; 1 is the lowest cost of all, 0 the
    highest"""
    max_cost: float | None = None
    """drop matches that cost more than this per frame of their query"""
    max_roughness: float | None = None
    """drop matches that are more than this many times as jerky as their query"""
    fuse: tuple[str, ...] = ()
    """also compare these features: gripper, position, movement, language (the instruction), or any
    proprioception as NAME or 'NAME[0:3]'; gripper=0.5: with weight 0.5; auto: choose them on
    the target's demonstrations"""
    target_tasks: tuple[str, ...] = ()
    """use only target trajectories with these instructions, or parts of them"""
    target_episodes: str = ""
    """of these trajectories, use only those at these positions: 0:5 or 0:10,17"""
    prior_tasks: tuple[str, ...] = ()
    """as --target-tasks, for each prior dataset"""
    prior_episodes: str = ""
    """as --target-episodes, for each prior dataset"""
    cameras: tuple[str, ...] = ()
    """cameras of target and prior (default: LIBERO's agent view if there is one, else the mean of
    all); if their names differ, embed each dataset with its own and give the stores; br, fr: one"""
    steps: Annotated[Literal["strap", "fmp", "classic"] | None, tyro.conf.arg(name="step-set")] = (
        None
    )
    """steps of a warping path, in (query, trajectory) frames: strap (1,1) (1,2), the authors'; fmp
    (1,1) (1,2) (2,1), the textbook's; classic (1,1) (1,0) (0,1), the paper's equation 1 (default:
    strap; d-t: classic)"""
    metric: Literal["l2", "cosine"] | None = None
    """the distance between two frames (default: l2; for d-s, br and fr cosine)"""
    rule: Rule = "even"
    """even: exactly top-k, spread over the queries; released: rounded as in the authors' code,
    usually fewer (strap, d-t, language)"""
    shared: Shared = "self"
    """trajectories that are in both target and prior: self: hidden from their own queries; all:
    hidden from every query; keep: searched like any other"""
    matches_per_trajectory: int = 1
    """strap: the most matches of a query in one prior trajectory; they do not overlap"""
    length_ratio: tuple[float, float] | None = None
    """strap: least and greatest length of a match, relative to its query: 1 1.5"""
    padding: int = 5
    """d-s, br, fr: how many frames to keep before a retrieved frame, and from that frame on"""
    learning_steps: int | None = None
    """br, fr: optimiser steps for learning the features (default: 30,000)"""
    text_encoder: str = TEXT_ENCODER
    """--method or --fuse language: the model that embeds instructions: minilm, clip, words (no
    model), a hub id or a local folder"""
    seed: int = 0
    """random: seed of the draw"""
    backend: Literal["auto", "gpu", "cpu", "reference"] = "auto"
    """what computes the search; auto: a GPU if there is one"""
    engine: Engine = "local"
    """where to search: on this machine, or on a Ray cluster"""
    workers: int = 2
    """tasks at the same time on a Ray cluster that is started here"""
    address: str | None = None
    """address of a Ray cluster (default: start one on this machine)"""
    explain: bool = False
    """print how many (query, trajectory) pairs each bound excluded"""
    dtype: Dtype = "float16"
    """number format of the stored embeddings"""
    opening: OpenArgument = field(default_factory=OpenOptions)
    history: int = FRAMES_BEFORE
    """how many frames to keep before a retrieved segment"""
    chunk: int = FRAMES_AFTER
    """how many frames to keep after a retrieved segment"""
    augmented: Augmented = "auto"
    """format of target ∪ retrieved; auto: as the target; none: do not write it, `strap train` reads
    the original datasets"""
    report: Literal["page", "none"] = "page"
    """page: show the matches in RUN/report.html; none: do not"""
    stores: Path | None = None
    """the folder for embeddings; stores beside a dataset are found too (default: the user's cache
    folder, or $STRAP_CACHE)"""
    device: str = "auto"
    """where networks run: auto, cpu or cuda"""
    overwrite: bool = False
    """replace a run that was made with other options"""
    json: Json = False
    """print the outcome as JSON"""

    def options(self) -> RetrievalOptions:
        """Return the options that, with the data, determine the result."""
        is_full = self.segmentation.method == "full"
        if is_full or not METHODS[self.method].has_whole_queries:  # else `resolved` checks
            # The roughness is that of the position, whatever the cuts are.
            used = () if self.max_roughness is None else ("position",)
            require_used_cuts(self.segmentation, used)
        has_other_amount = self.fraction is not None or self.threshold is not None
        given = {
            name: getattr(self, name)
            for name in RetrievalOptions.__dataclass_fields__
            if hasattr(self, name)
        }
        given["top_k"] = TOP_K if self.top_k is None and not has_other_amount else self.top_k
        return RetrievalOptions(
            **given,
            target_selection=Selection(self.target_tasks, self.target_episodes),
            prior_selection=Selection(self.prior_tasks, self.prior_episodes),
        )

    def run(self) -> None:
        """Retrieve, then print the matches."""
        with show_progress() as progress:
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
        """Write the run's page if it is missing; an error there is only a warning."""
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
    """Return how many pairs each step of the search excluded, as text for a terminal."""
    search = run.manifest.get("search")
    if not search:
        return "the run has no record of its search: run again with --overwrite"
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
    """Return the matches and the tasks they come from, as text for a terminal."""
    lines = [str(run.matches), ""]
    tasks = Counter(match.instruction or "(no instruction)" for match in run.matches)
    lines += [f"{count:6d}  {task}" for task, count in tasks.most_common(20)]
    found = f"{len(run.matches)} matches of {run.manifest['queries']} queries"
    state = " (up to date: nothing to do)" if run.reused else ""
    lines += ["", f"{found} → {run.path}{state}"]
    reasons = run.manifest.get("reasons", {})
    lines += [printable(f"{name}: {reason}") for name, reason in reasons.items()]
    lines += [f"embeddings: {place}" for place in run.manifest.get("stores", {}).values()]
    if run.augmented:
        lines.append(f"augmented dataset: {run.augmented}")
    return "\n".join(lines)
