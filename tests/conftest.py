from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.stores import write_dataset

import strap
from strap.encoders import PixelEncoder
from strap.store import EmbeddingStore
from strap.synthetic import Planted, make_planted

# No test waits for a hub; what loads weights must know before it is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
# Where there is no GPU its kernels run in Triton's interpreter; it must know before it is loaded.
try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Triton's LLVM and that of Mesa's OpenGL only live together when Triton's was there first.
with contextlib.suppress(ImportError):
    import triton  # noqa: F401

# A job that a shell runs in the background ignores Ctrl-C, and so would every command it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine draws slowly; that says nothing about the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

ROOT = Path(__file__).parent
SLOW = {
    *("libero", "policies", "representations"),
    *("test_chaos", "test_decoding", "test_demo", "test_dtw_gpu", "test_dtw_search", "test_fuzz"),
    *("test_embedding_engines", "test_embeddings", "test_encoders", "test_report"),
    *("test_page_blocks", "test_site"),
    *("test_search_cluster", "test_sketches", "test_lerobot", "test_lerobot_videos"),
    *("test_dtw_sample", "test_resuming", "test_end_to_end", "test_walks", "test_extras"),
    *("test_chaining", "test_borders", "test_package"),
    *("test_page", "test_run_views", "test_server", "test_report_page", "test_other_pages"),
    *("test_runner", "test_cli", "test_hub", "test_store", "test_lerobot_names", "test_fusion"),
    *("test_dataset_identity", "test_retrieval_methods", "test_completion", "test_results_page"),
    *("test_exports", "test_score_command", "test_roughness", "test_shown_text"),
    *("test_reporting", "test_command", "test_plan", "test_untrusted_runs", "test_choices"),
    *("test_guards", "test_alignments", "test_contents", "test_augmentation", "test_zarr"),
    *("test_fusion_weights", "test_top_k_auto", "test_workers", "test_side_by_side"),
    "test_finished_runs",
}
"""folders and modules of tests that `make check` leaves out"""
TOGETHER = {
    *("libero", "policies", "representations"),
    *("test_dtw_gpu", "test_dtw_sample", "test_page_blocks", "test_package"),
    *("test_offline_kit", "test_serving", "test_page", "test_report", "test_run_views"),
}
"""folders and modules whose tests run in one process: what they share (environments, caches, a GPU)
is made once; a module that is named beside its folder is not together with the rest of it"""
LONGEST = (
    *("policies", "libero", "test_page_blocks", "test_dtw_gpu", "test_page", "representations"),
    *("test_end_to_end", "test_chaos", "test_fuzz", "test_embedding_engines", "test_demo"),
    *("test_extras", "test_walks", "test_runner", "test_search_cluster"),
)
"""folders and modules that begin first, so that at the end no process works alone"""


def is_slow(path: Path) -> bool:
    """Whether a file is one of the slow modules, or in a slow folder."""
    return bool(SLOW & {part.removesuffix(".py") for part in path.parts[len(ROOT.parts) :]})


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave slow modules unread where their tests are left out: many import torch."""
    return (config.option.markexpr == "not slow" and is_slow(collection_path)) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow folders and modules; where several processes share, order all."""
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: begin_rank(item.path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return one process more than there are processors: a fifth of the time a test waits.

    None, which leaves it to xdist, where its variable says how many.
    """
    is_said = "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ
    return None if is_said else len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each test to the next free process, those of `TOGETHER` as one, the longest first.

    xdist's own groups do nothing with pytest 9.2 (pytest-xdist issue 1386), and of its own accord
    it begins with the groups of most tests.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            parts = nodeid.partition("::")[0].removesuffix(".py").split("/")
            return next((part for part in reversed(parts) if part in TOGETHER), nodeid)

    config.option.loadscopereorder = False  # they come as pytest_collection_modifyitems has them
    return Scheduling(config, log)


def begin_rank(path: Path) -> int:
    """Return the place in the order of beginning: `LONGEST`, other slow modules, all others."""
    parts = [part.removesuffix(".py") for part in path.parts[len(ROOT.parts) :]]
    ranks = [LONGEST.index(part) for part in parts if part in LONGEST]
    return min(ranks, default=len(LONGEST) + (not is_slow(path)))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores never land in the user's cache."""
    monkeypatch.setenv("STRAP_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """Generated LIBERO-like datasets with known matches; read only."""
    return make_planted(tmp_path_factory.mktemp("planted"))


@pytest.fixture
def own_planted(tmp_path: Path) -> Planted:
    """The same, for a test that changes the files."""
    return make_planted(tmp_path / "planted")


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen trajectories of two cameras; read only."""
    return write_dataset(tmp_path_factory.mktemp("data") / "a.hdf5")


@pytest.fixture(scope="session")
def undisturbed(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> EmbeddingStore:
    """Its store, embedded by one process that nobody killed."""
    out = tmp_path_factory.mktemp("undisturbed") / "store"
    return strap.embed(strap.open_dataset(dataset), PixelEncoder(4), out, batch=16)
