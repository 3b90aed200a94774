"""A retrieval run on disk: from two datasets to matches and an augmented dataset, restartable.

RUN/
  segments.json      the queries and how they were cut
  matches.parquet    what was found
  augmented.hdf5     target ∪ retrieved
  manifest.json      arguments, fingerprints of the inputs, versions, timings; written last
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from strap.atomic import read_json, remove_leftovers, write_json, writing
from strap.augmentation import augment
from strap.datasets import Dataset, OpenOptions
from strap.datasets.slicing import CHUNK, HISTORY
from strap.embeddings import Dtype, choose_cameras, embed
from strap.encoders import Encoder, load_encoder
from strap.errors import StrapError
from strap.folders import cache_folder
from strap.locks import LOCK, alone, is_free
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json, versions
from strap.retrieval import MatchOptions, Rule, Shared, retrieve_matches
from strap.search import Engine, Execution
from strap.segments import Segmentation, segment, write_segments
from strap.store import EmbeddingStore, slug
from strap.types import Matches


@dataclass(frozen=True)
class RetrievalOptions:
    """Everything that decides the outcome of a retrieval, besides the data."""

    encoder: str
    top_k: int = 100
    segmentation: Segmentation = field(default_factory=Segmentation)
    cameras: tuple[str, ...] = ()
    steps: str = "strap"
    metric: str = "l2"
    backend: str = "auto"
    rule: Rule = "even"
    shared: Shared = "self"
    matches_per_trajectory: int = 1
    length_ratio: tuple[float, float] | None = None
    dtype: Dtype = "float16"
    opening: OpenOptions = field(default_factory=OpenOptions)
    history: int = HISTORY
    chunk: int = CHUNK


@dataclass(frozen=True)
class Run:
    """A finished run folder."""

    path: Path
    matches: Matches
    manifest: Mapping[str, Any]
    reused: bool
    """nothing had changed since the run was made, so nothing was done"""

    @property
    def augmented(self) -> Path:
        """The augmented dataset."""
        return self.path / "augmented.hdf5"

    def datasets(self) -> tuple[Dataset, list[Dataset]]:
        """The target and the priors, opened as they were for the run, and unchanged since."""
        arguments = self.manifest["arguments"]
        saved: dict[str, Any] = dict(arguments["opening"])
        saved |= {name: tuple(saved[name]) for name in ("camera", "language", "action")}
        opening = OpenOptions(**saved)
        target, *priors = (opening.open(p) for p in (arguments["target"], *arguments["prior"]))
        for dataset in (target, *priors):
            if dataset.fingerprint() != self.manifest["inputs"].get(dataset.name):
                raise StrapError(
                    f"'{dataset.path}' has changed since '{self.path}' was made: run "
                    "`strap retrieve` again"
                )
        return target, priors

    def has_datasets(self) -> bool:
        """Whether the datasets that the run was made from are still where they were."""
        arguments = self.manifest["arguments"]
        return all(Path(place).exists() for place in (arguments["target"], *arguments["prior"]))


def run_retrieval(
    target: str | Path,
    prior: Sequence[str | Path],
    out: str | Path,
    options: RetrievalOptions,
    *,
    stores: str | Path | None = None,
    overwrite: bool = False,
    device: str = "auto",
    engine: Engine = "local",
    workers: int = 2,
    address: str | None = None,
    progress: Progress = silent,
) -> Run:
    """Embed what is missing, segment, search, write matches and the augmented dataset.

    Args:
        target: the demonstrations of the new task.
        prior: one or more big datasets.
        out: the run folder. The same call again does nothing; a changed dataset is noticed and
            the run made anew; other options need `overwrite` or another folder.
        options: what to retrieve and how.
        stores: where embedding stores are kept and looked for; by default the user's cache.
        overwrite: replace a run made with other options.
        device: where the encoder's model runs.
        engine: where to search: `local`, or `ray` for a cluster.
        workers: how many tasks at a time on a Ray cluster of this machine's own.
        address: a Ray cluster's address; by default one is started on this machine's loopback.
        progress: called with (what, done, total).
    """
    out = Path(out).expanduser()
    ours = options.opening.open(target)
    priors = [options.opening.open(path) for path in prior]
    if not priors:
        raise StrapError("no prior dataset: give at least one with --prior")
    arguments = _arguments(ours, priors, options)
    inputs = {dataset.name: dataset.fingerprint() for dataset in (ours, *priors)}
    with writing(out), alone(out / LOCK, f"retrieving into '{out}'"):
        remove_leftovers(out)
        if done := _finished(out, arguments, inputs, overwrite=overwrite):
            return done
        (out / "manifest.json").unlink(missing_ok=True)
        folder = Path(stores).expanduser() if stores else cache_folder() / "stores"
        execution = Execution(engine, workers, address)
        report = _fill(out, ours, priors, options, folder, device, execution, progress)
        manifest = {"format": "strap-run", "arguments": arguments, "inputs": inputs, **report}
        write_json(out / "manifest.json", manifest)
        return replace(open_run(out), reused=False)


def _fill(
    out: Path,
    ours: Dataset,
    priors: Sequence[Dataset],
    options: RetrievalOptions,
    stores: Path,
    device: str,
    execution: Execution,
    progress: Progress,
) -> dict[str, Any]:
    """Write segments, matches and the augmented dataset; return what the manifest says of them."""
    clock = _Clock()
    with clock("segment"):
        queries = segment(ours, **_fields(options.segmentation))
        write_segments(
            out / "segments.json", queries, dataset=ours, segmentation=options.segmentation
        )
    with clock("embed"):
        encoder = load_encoder(options.encoder, device=device)
        own, *others = (
            embed_beside(stores, dataset, encoder, options, progress) for dataset in (ours, *priors)
        )
    with clock("search"):
        found = retrieve_matches(
            queries, own, others, MatchOptions.of(options), execution, progress
        )
        matches = found.matches
        matches.to_parquet(out / "matches.parquet")
    with clock("augment"):
        augment(
            ours,
            priors,
            matches,
            out / "augmented.hdf5",
            history=options.history,
            chunk=options.chunk,
            progress=progress,
        )
    return {
        "stores": {store.dataset: store.path.as_posix() for store in (own, *others)},
        "queries": len(queries),
        "matches": len(matches),
        "search": asdict(found.statistics),
        "versions": versions(),
        "seconds": clock.seconds,
    }


def open_run(path: str | Path) -> Run:
    """Open a finished run."""
    path = Path(path).expanduser()
    if not (path / "manifest.json").is_file():
        raise StrapError(
            f"'{path}' is no finished run (it has no manifest.json): make it with `strap retrieve`"
        )
    manifest = read_json(path / "manifest.json")
    if wrong := _wrong_in(manifest):
        raise StrapError(
            f"'{path / 'manifest.json'}' is damaged ({wrong}): put back a copy of it, or run "
            "`strap retrieve` again with --overwrite"
        )
    return Run(path, Matches.from_parquet(path / "matches.parquet"), manifest, reused=True)


def _wrong_in(manifest: Any) -> str | None:
    """What of a manifest is not as runs write it, where some command would stumble over it."""
    if not isinstance(manifest, dict) or manifest.get("format") != "strap-run":
        return "it is no manifest of a run"
    arguments: Any = manifest.get("arguments")
    inputs: Any = manifest.get("inputs")
    seconds: Any = manifest.get("seconds")
    if not all(isinstance(value, dict) for value in (arguments, inputs, seconds)):
        return "arguments, inputs or seconds are missing"
    opening = arguments.get("opening")
    if not isinstance(opening, dict) or not set(opening) <= set(OpenOptions.__dataclass_fields__):
        return "'opening' does not say how the datasets were opened"
    texts = [arguments.get("target"), *inputs.values()]
    texts += [opening.get(name) or "" for name in ("format", "orientation", "missing")]
    lists = [arguments.get("prior"), arguments.get("cameras")]
    lists += [opening.get(name) for name in ("camera", "language", "action")]
    if not all(isinstance(own, list) for own in lists) or not arguments["prior"]:
        return "'prior' or another list is missing"
    if not all(isinstance(text, str) for text in (*texts, *(t for own in lists for t in own))):
        return "a path or name is no text"
    counts = [manifest.get("queries"), arguments.get("history"), arguments.get("chunk")]
    if not all(type(n) is int for n in counts) or not all(
        isinstance(n, int | float) for n in seconds.values()
    ):
        return "'queries', 'history', 'chunk' or a duration is no number"
    return None


def embed_beside(
    folder: Path, dataset: Dataset, encoder: Encoder, options: RetrievalOptions, progress: Progress
) -> EmbeddingStore:
    """The dataset's store in `folder`, named after both, embedded as far as it lacks something."""
    if not len(dataset):
        raise StrapError(f"dataset '{dataset.path}' is empty: it holds no trajectory")
    cameras = choose_cameras(dataset, options.cameras)
    first = dataset[dataset.ids[0]]
    identity = [dataset.name, dict(encoder.config), cameras, options.dtype, first.orientation]
    name = f"{slug(dataset.path.stem)}-{options.encoder.replace('/', '_')}"
    store = folder / f"{name}-{fingerprint_json(identity)[:12]}"

    def named(what: str, done: int, total: int) -> None:
        progress(f"{what} {dataset.path.name}", done, total)

    return embed(dataset, encoder, store, cameras=cameras, dtype=options.dtype, progress=named)


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _arguments(
    target: Dataset, priors: Sequence[Dataset], options: RetrievalOptions
) -> dict[str, Any]:
    plain: dict[str, Any] = asdict(options)
    boundaries = plain["segmentation"]["boundaries"]
    plain["segmentation"]["boundaries"] = str(boundaries) if boundaries else None
    plain = json.loads(json.dumps(plain))  # as it will be read back
    return {"target": target.name, "prior": [dataset.name for dataset in priors], **plain}


def _finished(
    out: Path, arguments: Mapping[str, Any], inputs: Mapping[str, str], *, overwrite: bool
) -> Run | None:
    """The run that lies there, when it is what would be made; None when it must be made."""
    if not (out / "manifest.json").is_file():
        if out.is_dir() and not (out / "segments.json").is_file() and not is_free(out):
            raise StrapError(f"'{out}' holds other files; choose a new folder for the run")
        return None
    try:
        run = open_run(out)
    except StrapError:
        if overwrite:  # whatever it was
            return None
        raise
    old = run.manifest.get("arguments", {})
    changed = [key for key in arguments if old.get(key) != arguments[key]]
    if changed and not overwrite:
        what = "; ".join(f"{key} {old.get(key)} → {arguments[key]}" for key in changed)
        raise StrapError(
            f"'{out}' holds a run with other arguments ({what}): choose another --out, or pass "
            "--overwrite to replace it"
        )
    if changed or dict(run.manifest.get("inputs", {})) != dict(inputs):
        return None
    return run if run.augmented.is_file() else None


class _Clock:
    """Seconds spent in each part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[part] = round(time.perf_counter() - start, 3)
