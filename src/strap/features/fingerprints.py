"""Fingerprints of the encoders and stores of a retrieval, computed without loading weights."""

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
    """Return the fingerprints of a retrieval's encoders and stores, by name or path.

    A missing model or store has no fingerprint: a finished run does not need it any more.

    Args:
        sources: the target and the priors.
        method: the retrieval method.
        options: which features it compares.
        folder: where stores are searched for.
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
        with suppress(Exception):  # if the encoder is broken, embedding reports why
            found[encoder] = fingerprint_json(dict(import_encoder(encoder).config))
    elif encoder:
        found |= _fingerprint_folder(encoder)
    elif not named:
        with suppress(StrapError):  # there is no store
            config = find_encoder(sources, options, folder, "auto").config
            found["encoder"] = fingerprint_json(dict(config))
    return found


def _fingerprint_folder(model: str) -> dict[str, str]:
    """Return path -> fingerprint of a model's folder; empty if the model is not a local folder."""
    place = Path(model).expanduser()
    if not place.is_dir():
        return {}
    files = [file for file in place.rglob("*") if file.is_file()]
    return {place.resolve().as_posix(): fingerprint_files(files, place)}
