"""An encoder's features of datasets: from stores that are there already, else embedded now."""

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
    """A dataset that takes part in a retrieval, and its store where one was named."""

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
        """Open a dataset, or a store and the dataset that it was made from."""
        path = Path(path).expanduser()
        if not is_store(path):
            return cls(selection.apply(opening.open(path, progress)))
        store = open_store(path)
        if not Path(store.dataset).exists():
            raise StrapError(
                f"store '{path}' holds the embeddings of '{store.dataset}', which is not there: "
                f"name the dataset where it is now, with --stores '{path.parent}' beside it"
            )
        return cls(selection.apply(_open_as_embedded(store, opening, progress)), store)


def _open_as_embedded(store: EmbeddingStore, given: OpenOptions, progress: Progress) -> Dataset:
    """Open a store's dataset as it was read for it; raise where an option says otherwise."""
    asked, told = given.arguments(), store.source.opening
    made = {name: asked[name] for name in asked if name != "orientation"} if told is None else told
    made = {**made, **{name: asked[name] for name in asked if name == "missing"}}  # no vector's
    dataset = open_dataset(store.dataset, **made, progress=progress)
    orientation = _orientation(dataset)
    if told is None and store.manifest.get("orientation", orientation) != orientation:
        orientation = store.manifest["orientation"]  # all that an older store tells
        dataset = open_dataset(store.dataset, **{**made, "orientation": orientation})
    _require_said(store, "--orientation", asked.get("orientation"), orientation)
    if not dataset.format.startswith(asked.get("format", "")):
        _require_said(store, "--format", asked["format"], made.get("format", dataset.format))
    for role, paths in asked.get("fields", {}).items():
        _require_said(store, f"--rlds-{role}", paths, made.get("fields", {}).get(role))
    return dataset


def _orientation(dataset: Dataset) -> str | None:
    return dataset[dataset.ids[0]].orientation if len(dataset) else None


def _require_said(store: EmbeddingStore, option: str, asked: Any, made: Any) -> None:
    """Raise where a store was made with another value of an option than is asked for."""
    if asked is not None and asked != made:
        asked, made = (" ".join(v) if isinstance(v, list) else v for v in (asked, made))
        raise StrapError(
            f"store '{store.path}' was made with {f'{option} {made}' if made else f'no {option}'}, "
            f"not {asked}: leave {option} out (the dataset of a store is read as it was for the "
            f"store), or name the dataset '{store.dataset}' in place of the store"
        )


def encoder_stores(
    sources: Sequence[RetrievalInput],
    options: FeatureOptions,
    folder: Path,
    *,
    device: str,
    progress: Progress,
) -> list[EmbeddingStore]:
    """Return a store of every source, all by one encoder.

    A store that was named is used, and completed where it lacks something; else one that lies in
    `folder` or beside the dataset, whatever its name; else the dataset is embedded into `folder`.
    """
    for source in sources:
        if not len(source.dataset):
            raise StrapError(f"dataset '{source.dataset.path}' is empty: it holds no trajectory")
    compared = match_cameras(sources, options.cameras)
    encoder = find_encoder(sources, options, folder, device)
    found = []
    for source, cameras in zip(sources, compared, strict=True):
        store = source.store or _find(source.dataset, encoder.config, cameras, options, folder)
        if store is None or not is_embedded(store, source.dataset):
            store = _embed(source, store, encoder.load(), cameras, options, folder, progress)
        found.append(open_store(store.path, cameras=cameras))
    return found


@dataclass
class _Encoder:
    """The encoder of a retrieval, loaded when something has to be embedded."""

    config: Mapping[str, Any]
    device: str
    loaded: Encoder | None = None
    store: EmbeddingStore | None = None
    """the store that says which encoder"""

    def load(self) -> Encoder:
        if self.loaded is None:
            encoder = EncoderSpec.from_config(self.config).load(self.device)
            if dict(encoder.config) != dict(self.config):
                keys = [k for k, v in self.config.items() if encoder.config.get(k) != v]
                place = self.store.path if self.store else ""
                raise StrapError(
                    f"store '{place}' was made by '{self.config['name']}' with other "
                    f"{', '.join(keys) or 'settings'} than the one that is installed here: embed "
                    "the target where that one is, and name its store (--target STORE)"
                )
            self.loaded = encoder
        return self.loaded


def find_encoder(
    sources: Sequence[RetrievalInput], options: FeatureOptions, folder: Path, device: str
) -> _Encoder:
    """Return the encoder that was asked for, else the one of the stores."""
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
        raise StrapError(f"the stores are by different encoders ({which}): say --encoder NAME")
    if not kinds:
        raise StrapError(
            "which features are compared is not said, and no store of the priors is there: name "
            "an encoder with --encoder (dinov2-base, clip-vit-b16, efficientnet-lite0, …)"
        )
    store = next(iter(kinds.values()))
    return _Encoder(store.config.encoder, device, store=store)


def _find(
    dataset: Dataset,
    config: Mapping[str, Any],
    cameras: Sequence[str],
    options: FeatureOptions,
    folder: Path,
) -> EmbeddingStore | None:
    """Return a store that has all that is asked for; else one that can be completed."""
    orientation = dataset[dataset.ids[0]].orientation
    fitting = [
        store
        for store in _stores_of(dataset, folder)
        if dict(store.config.encoder) == dict(config)
        and store.config.dtype in (options.dtype, "float32")
        and set(cameras) <= set(store.config.cameras)
        and store.manifest.get("orientation", orientation) == orientation
    ]
    whole = [store for store in fitting if is_embedded(store, dataset)]
    return next(iter(whole or fitting), None)


def _stores_of(dataset: Dataset, folder: Path) -> Iterator[EmbeddingStore]:
    """Yield the encoders' stores of the dataset that lie in `folder` or beside it."""
    beside, files = dataset.path.parent, dataset.fingerprint()
    for place in dict.fromkeys((folder.resolve(), beside.resolve())):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if not is_store(path):
                continue
            with suppress(StrapError):  # a damaged one is none
                store = open_store(path)
                by_encoder = "name" in store.config.encoder and "fused" not in store.config.encoder
                same_files = store.manifest.get("fingerprint") == files
                if by_encoder and (store.dataset == dataset.name or same_files):
                    yield store


def reopen_stores(manifest: Mapping[str, Any], datasets: Sequence[Dataset]) -> list[EmbeddingStore]:
    """Return the stores that a run compared, with the cameras that it compared.

    Args:
        manifest: the run's.
        datasets: its target and its priors.
    """
    paths, arguments = manifest.get("stores"), manifest["arguments"]
    if not isinstance(paths, dict) or not all(isinstance(paths.get(d.name), str) for d in datasets):
        raise StrapError("the run compares no stored features: retrieve with --method strap")
    told = manifest.get("store_cameras")
    cameras: Mapping[str, Any] = told if isinstance(told, dict) else {}
    found = []
    for dataset in datasets:
        store = open_store(paths[dataset.name])
        chosen = cameras.get(dataset.name)
        if chosen is None and "fused" not in store.config.encoder:  # older runs don't tell
            is_named = str(store.path) in arguments.get("named_stores", ())
            asked = tuple(arguments["cameras"])
            own = is_named and not asked
            chosen = store.config.cameras if own else choose_cameras(dataset, asked)
        found.append(open_store(store.path, cameras=chosen) if chosen else store)
    return found


def match_cameras(sources: Sequence[RetrievalInput], asked: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the cameras of each source, the target first, that are compared with the others'.

    Those asked for; else a named store's own. Where no store was named they are the agent view or
    all of a source, of the first source whose choice all the others have too.
    """
    if asked:
        return [choose_cameras(source.dataset, asked) for source in sources]
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
    is_said = all(len(cameras) == 1 for cameras in known) if named else not free
    if not is_said:
        _require_same_view(sources, found)
    return found


def _require_same_view(
    sources: Sequence[RetrievalInput], cameras: Sequence[tuple[str, ...]]
) -> None:
    """Raise where sources would be compared by different cameras; the agent views are one."""
    views = [AGENT_VIEWS if set(chosen) <= set(AGENT_VIEWS) else chosen for chosen in cameras]
    for source, chosen, view in zip(sources, cameras, views, strict=True):
        if set(view) != set(views[0]):
            pair = (sources[0].dataset, source.dataset)
            first, other = (set(dataset[dataset.ids[0]].cameras) for dataset in pair)
            both = ", ".join(sorted(first & other))
            raise StrapError(
                f"target '{pair[0].path}' has camera {', '.join(cameras[0])} to compare and prior "
                f"'{pair[1].path}' has {', '.join(chosen)}: name with --cameras what both have "
                f"({both or 'they share no name'}), or embed each by its own (`strap embed "
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
    """Embed what the store lacks, or all into a new one."""
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
    named = naming(progress, dataset)
    return embed(dataset, encoder, place, cameras=cameras, dtype=dtype, progress=named)


def naming(progress: Progress, dataset: Dataset) -> Progress:
    """Return a progress callback that names the dataset too, where it is not named."""

    def named(what: str, done: int, total: int) -> None:
        is_named = dataset.label in what.split()
        progress(what if is_named else f"{what} {dataset.label}", done, total)

    return named
