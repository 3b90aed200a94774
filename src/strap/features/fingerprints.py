"""Fingerprints of what decides features besides the data; no weights are loaded for them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from strap.encoders.custom import import_encoder
from strap.errors import StrapError
from strap.features.options import FeatureOptions
from strap.features.sources import RetrievalInput, find_encoder
from strap.provenance import fingerprint_files, fingerprint_json
from strap.retrieval import METHODS, Method


def fingerprint_features(
    sources: Sequence[RetrievalInput], method: Method, options: FeatureOptions, folder: Path
) -> dict[str, str]:
    """Return what the encoders and stores of a retrieval are, by their names.

    A model or store that is missing has no fingerprint: a finished run does without it.

    Args:
        sources: the target and the priors.
        method: which method compares them.
        options: what they are compared by.
        folder: where stores are looked for.
    """
    found: dict[str, str] = {}
    if METHODS[method].features == "encoder":
        found |= _fingerprint_encoder(sources, options, folder)
    if method == "language" or options.fuses_instructions:
        found |= _fingerprint_folder(options.text_encoder)
    return found


def _fingerprint_encoder(
    sources: Sequence[RetrievalInput], options: FeatureOptions, folder: Path
) -> dict[str, str]:
    named = [source.store for source in sources if source.store]
    found = {
        store.path.resolve().as_posix(): fingerprint_json(
            [
                dict(store.config.encoder),
                store.config.dtype,
                store.config.cameras,
                store.source.opening,
            ]
        )
        for store in named
    }
    encoder = options.encoder
    if encoder and ":" in encoder and not Path(encoder).exists():
        with suppress(Exception):  # what is wrong with it is said where it has to embed
            found[encoder] = fingerprint_json(dict(import_encoder(encoder).config))
    elif encoder:
        found |= _fingerprint_folder(encoder)
    elif not named:
        with suppress(StrapError):  # no store is there
            config = find_encoder(sources, options, folder, "auto").config
            found["encoder"] = fingerprint_json(dict(config))
    return found


def _fingerprint_folder(model: str) -> dict[str, str]:
    """Return the fingerprint of a model's folder; nothing where it is no folder here."""
    place = Path(model).expanduser()
    if not place.is_dir():
        return {}
    files = [file for file in place.rglob("*") if file.is_file()]
    return {place.resolve().as_posix(): fingerprint_files(files, place)}
