from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from strap.pipeline import RetrievalOptions, run_retrieval
from strap.policies import frozen_vision
from strap.synthetic import Planted
from strap.training import FrameCache
from strap.training.cache_builder import CacheOptions, build_cache
from strap.training.data import open_training_data

OPTIONS = CacheOptions(image_size=32, language="words")


@pytest.fixture(scope="package", autouse=True)
def _quick_frozen_vision() -> Iterator[None]:
    """Read frozen vision's network once, and fit its projection to 64 frames instead of 512."""
    network = frozen_vision.read_network()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frozen_vision, "read_network", lambda: deepcopy(network))
        patch.setattr(frozen_vision, "SAMPLE", 64)
        yield


@pytest.fixture(scope="session")
def run(planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A retrieval on generated data."""
    out = tmp_path_factory.mktemp("run") / "run"
    stores = out.parent / "stores"
    options = RetrievalOptions(encoder="pixels", top_k=6)
    run_retrieval(planted.target, [planted.prior], out, options, stores=stores)
    return out


@pytest.fixture(scope="session")
def cache(run: Path, tmp_path_factory: pytest.TempPathFactory) -> FrameCache:
    """Its frames, decoded."""
    return build_cache(open_training_data(run), tmp_path_factory.mktemp("frames"), OPTIONS)


@pytest.fixture(scope="session")
def frozen(run: Path, tmp_path_factory: pytest.TempPathFactory) -> FrameCache:
    """The same as feature maps, all of the prior included."""
    source = open_training_data(run, whole_prior=True)
    options = replace(OPTIONS, vision="frozen")
    return build_cache(source, tmp_path_factory.mktemp("maps"), options)
