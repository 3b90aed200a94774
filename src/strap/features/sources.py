"""An encoder's features of a retrieval's datasets: found in existing stores or embedded now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from strap.datasets import Dataset, OpenOptions, open_dataset
from strap.datasets.selection import Selection
from strap.embeddings import AGENT_VIEWS, Dtype, choose_cameras, embed, is_embedded
from strap.encoders import Encoder, EncoderSpec, load_encoder
from strap.errors import StrapError
from strap.features.options import FeatureOptions
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json
from strap.store import EmbeddingStore, is_store, open_store, slug


@dataclass(frozen=True)
class RetrievalInput:
    """A dataset that takes part in a retrieval, with its store if the user named one."""

    dataset: Dataset
    store: EmbeddingStore | None = None

    @classmethod
    def open(
        cls,
        path: str | Path,
        opening: OpenOptions,
        selection: Selection,
        progress: Progress = silent,
    ) -> RetrievalInput:
        """Open a dataset, or a store together with the dataset that it was made from."""
        path = Path(path).expanduser()
        if not is_store(path):
            return cls(selection.apply(opening.open(path, progress)))
        store = open_store(path)
        if not Path(store.dataset).exists():
            raise StrapError(
                f"store '{path}' holds the embeddings of '{store.dataset}', which does not exist: "
                f"give the dataset's new path, with --stores '{path.parent}'"
            )
        return cls(selection.apply(_open_as_embedded(store, opening, progress)), store)


def _open_as_embedded(store: EmbeddingStore, given: OpenOptions, progress: Progress) -> Dataset:
    """Open a store's dataset with the options it was embedded with; raise if others are given."""
    requested, recorded = given.arguments(), store.source.opening
    if recorded is None:  # an older store records only the orientation
        used = {name: value for name, value in requested.items() if name != "orientation"}
    else:
        used = dict(recorded)
    if "missing" in requested:  # the vectors do not depend on it
        used["missing"] = requested["missing"]
    dataset = open_dataset(store.dataset, **used, progress=progress)
    orientation = _orientation(dataset)
    if recorded is None and store.manifest.get("orientation", orientation) != orientation:
        orientation = store.manifest["orientation"]
        dataset = open_dataset(store.dataset, **{**used, "orientation": orientation})
    _require_same(store, "--orientation", requested.get("orientation"), orientation)
    if not dataset.format.startswith(requested.get("format", "")):
        _require_same(store, "--format", requested["format"], used.get("format", dataset.format))
    for role, paths in requested.get("fields", {}).items():
        _require_same(store, f"--rlds-{role}", paths, used.get("fields", {}).get(role))
    return dataset


def _orientation(dataset: Dataset) -> str | None:
    return dataset[dataset.ids[0]].orientation if len(dataset) else None


def _require_same(store: EmbeddingStore, option: str, requested: Any, used: Any) -> None:
    """Raise if an option is given with another value than the store was made with."""
    if requested is not None and requested != used:
        requested, used = (" ".join(v) if isinstance(v, list) else v for v in (requested, used))
        raise StrapError(
            f"store '{store.path}' was made with {f'{option} {used}' if used else f'no {option}'}, "
            f"not {requested}: leave {option} out (the dataset of a store is read as it was then), "
            f"or name the dataset '{store.dataset}' in place of the store"
        )


def encoder_stores(
    sources: Sequence[RetrievalInput],
    options: FeatureOptions,
    folder: Path,
    *,
    device: str,
    progress: Progress,
) -> list[EmbeddingStore]:
    """Return a store of every source, all made by one encoder.

    For each source, the first of these is used: the store that the user named; a store of any name
    in `folder` or beside the dataset; a new store in `folder`. What a store lacks is embedded.
    """
    for source in sources:
        if not len(source.dataset):
            raise StrapError(f"dataset '{source.dataset.path}' is empty: it holds no trajectory")
    compared = match_cameras(sources, options.cameras)
    encoder = find_encoder(sources, options, folder, device)
    found = []
    for source, cameras in zip(sources, compared, strict=True):
        store = source.store or _find_store(
            source.dataset, encoder.config, cameras, options, folder
        )
        if store is None or not is_embedded(store, source.dataset):
            store = _embed(source, store, encoder.load(), cameras, options, folder, progress)
        found.append(open_store(store.path, cameras=cameras))
    return found


@dataclass
class _Encoder:
    """The encoder of a retrieval; its weights are loaded when something has to be embedded."""

    config: Mapping[str, Any]
    device: str
    loaded: Encoder | None = None
    store: EmbeddingStore | None = None
    """the store whose encoder is used, if the user named no encoder"""

    def load(self) -> Encoder:
        if self.loaded is None:
            encoder = EncoderSpec.from_config(self.config).load(self.device)
            if dict(encoder.config) != dict(self.config):
                keys = [k for k, v in self.config.items() if encoder.config.get(k) != v]
                place = self.store.path if self.store else ""
                raise StrapError(
                    f"store '{place}' was made by '{self.config['name']}' with other "
                    f"{', '.join(keys) or 'settings'} than the installed encoder has: embed the "
                    "target on a machine with that encoder, and give the store (--target STORE)"
                )
            self.loaded = encoder
        return self.loaded


def find_encoder(
    sources: Sequence[RetrievalInput], options: FeatureOptions, folder: Path, device: str
) -> _Encoder:
    """Return the encoder that the options name, or else the stores' encoder."""
    named = [source.store for source in sources if source.store]
    if options.encoder:
        encoder = load_encoder(options.encoder, device=device)
        for store in named:
            if dict(store.config.encoder) != dict(encoder.config):
                name = store.config.encoder.get("name")
                raise StrapError(
                    f"store '{store.path}' was made by encoder '{name}' "
                    f"with other settings than '{options.encoder}': leave out --encoder to use "
                    "the store's, or name the dataset instead of the store"
                )
        return _Encoder(encoder.config, device, encoder)
    stores = named or [s for source in sources[1:] for s in _stores_of(source.dataset, folder)]
    kinds = {fingerprint_json(dict(store.config.encoder)): store for store in stores}
    if len(kinds) > 1:
        which = ", ".join(f"'{s.path}' ({s.config.encoder.get('name')})" for s in kinds.values())
        raise StrapError(
            f"the stores were made with different encoders ({which}): choose one with --encoder "
            "NAME"
        )
    if not kinds:
        raise StrapError(
            "no encoder is named, and no prior is a store that names one: give one with --encoder "
            "(dinov2-base, clip-vit-b16, efficientnet-lite0, …)"
        )
    store = next(iter(kinds.values()))
    return _Encoder(store.config.encoder, device, store=store)


def explain_encoder(
    sources: Sequence[RetrievalInput], options: FeatureOptions, folder: Path
) -> str | None:
    """Return which encoder is used and why, if the user named neither an encoder nor a store."""
    if options.encoder or any(source.store for source in sources):
        return None
    try:
        found = find_encoder(sources, options, folder, "auto")
    except StrapError:  # embedding reports the error
        return None
    place = found.store.path if found.store else ""
    return f"{found.config.get('name')}, that of the existing store '{place}' (no --encoder given)"


def _find_store(
    dataset: Dataset,
    config: Mapping[str, Any],
    cameras: Sequence[str],
    options: FeatureOptions,
    folder: Path,
) -> EmbeddingStore | None:
    """Return an existing store with these features; one that has every trajectory comes first."""
    orientation = dataset[dataset.ids[0]].orientation
    fitting = [
        store
        for store in _stores_of(dataset, folder)
        if dict(store.config.encoder) == dict(config)
        and store.config.dtype in (options.dtype, "float32")
        and set(cameras) <= set(store.config.cameras)
        and store.manifest.get("orientation", orientation) == orientation
    ]
    complete = [store for store in fitting if is_embedded(store, dataset)]
    return next(iter(complete or fitting), None)


def _stores_of(dataset: Dataset, folder: Path) -> Iterator[EmbeddingStore]:
    """Yield the stores with an encoder's features of the dataset, in `folder` or beside it."""
    beside, files = dataset.path.parent, dataset.fingerprint()
    for place in dict.fromkeys((folder.resolve(), beside.resolve())):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if not is_store(path):
                continue
            with suppress(StrapError):  # skip damaged stores
                store = open_store(path)
                by_encoder = "name" in store.config.encoder and "fused" not in store.config.encoder
                same_files = store.manifest.get("fingerprint") == files
                if by_encoder and (store.dataset == dataset.name or same_files):
                    yield store


def reopen_stores(manifest: Mapping[str, Any], datasets: Sequence[Dataset]) -> list[EmbeddingStore]:
    """Return the stores that a run compared, with the cameras that it compared.

    Args:
        manifest: the run's manifest.
        datasets: the run's target and priors.
    """
    paths, arguments = manifest.get("stores"), manifest["arguments"]
    if not isinstance(paths, dict) or not all(isinstance(paths.get(d.name), str) for d in datasets):
        raise StrapError("the run compares no stored features: retrieve with --method strap")
    recorded = manifest.get("store_cameras")
    cameras: Mapping[str, Any] = recorded if isinstance(recorded, dict) else {}
    found = []
    for dataset in datasets:
        store = open_store(paths[dataset.name])
        chosen = cameras.get(dataset.name)
        if chosen is None and "fused" not in store.config.encoder:  # an older run's manifest
            requested = tuple(arguments["cameras"])
            if str(store.path) in arguments.get("named_stores", ()) and not requested:
                chosen = store.config.cameras
            else:
                chosen = choose_cameras(dataset, requested)
        found.append(open_store(store.path, cameras=chosen) if chosen else store)
    return found


def match_cameras(
    sources: Sequence[RetrievalInput], requested: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return the cameras of each source that are compared, the target's first.

    They are the requested cameras, if there are any. Otherwise a named store has its own cameras,
    and a dataset has those of a named store, if there is one whose cameras all datasets have. If
    no store is named, all datasets get the default cameras (the agent view or all) of the first
    dataset whose default all the others have too, or else each its own default.
    """
    if requested:
        return [choose_cameras(source.dataset, requested) for source in sources]
    named = [source.store.config.cameras for source in (*sources[1:], sources[0]) if source.store]
    free = [source.dataset for source in sources if source.store is None]
    choices = [choose_cameras(dataset, None) for dataset in free]
    known = [set(dataset[dataset.ids[0]].cameras) for dataset in free]
    for common in named or choices:
        if all(set(common) <= cameras for cameras in known):
            choices = [tuple(common)] * len(free)
            break
    by_dataset = iter(choices)
    found = [s.store.config.cameras if s.store else next(by_dataset) for s in sources]
    # Named stores may have different cameras on purpose; so may a dataset with a single camera.
    is_deliberate = all(len(cameras) == 1 for cameras in known) if named else not free
    if not is_deliberate:
        _require_same_view(sources, found)
    return found


def _require_same_view(
    sources: Sequence[RetrievalInput], cameras: Sequence[tuple[str, ...]]
) -> None:
    """Raise if the sources' cameras differ; all names of the agent view count as the same."""
    views = [AGENT_VIEWS if set(chosen) <= set(AGENT_VIEWS) else chosen for chosen in cameras]
    for source, chosen, view in zip(sources, cameras, views, strict=True):
        if set(view) != set(views[0]):
            pair = (sources[0].dataset, source.dataset)
            first, other = (set(dataset[dataset.ids[0]].cameras) for dataset in pair)
            both = ", ".join(sorted(first & other))
            raise StrapError(
                f"target '{pair[0].path}' has camera {', '.join(cameras[0])} to compare and prior "
                f"'{pair[1].path}' has {', '.join(chosen)}: name with --cameras those that both "
                f"have ({both or 'they share no name'}), or embed each with its own (`strap embed "
                "--cameras`) and give the stores as --target and --prior"
            )


def _embed(
    source: RetrievalInput,
    store: EmbeddingStore | None,
    encoder: Encoder,
    cameras: tuple[str, ...],
    options: FeatureOptions,
    folder: Path,
    progress: Progress,
) -> EmbeddingStore:
    """Embed what the store lacks; if there is no store, embed the dataset into a new one."""
    dataset, dtype = source.dataset, options.dtype
    if store is not None:
        place, cameras = store.path, store.config.cameras
        dtype = cast(Dtype, store.config.dtype)
    else:
        first = dataset[dataset.ids[0]]
        identity = [dataset.name, dict(encoder.config), cameras, dtype, first.orientation]
        name = str(encoder.config["name"]).replace("/", "_")
        folder_name = f"{slug(Path(dataset.label).stem)}-{name}-{fingerprint_json(identity)[:12]}"
        place = folder / folder_name
    named = name_dataset(progress, dataset)
    return embed(dataset, encoder, place, cameras=cameras, dtype=dtype, progress=named)


def name_dataset(progress: Progress, dataset: Dataset) -> Progress:
    """Return a progress callback that adds the dataset's name to texts which lack it."""

    def named(what: str, done: int, total: int) -> None:
        is_named = dataset.label in what.split()
        progress(what if is_named else f"{what} {dataset.label}", done, total)

    return named
