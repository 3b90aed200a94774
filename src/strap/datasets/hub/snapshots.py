"""Find a commit of a dataset's repository in the hub's cache, and fetch its missing files."""

from __future__ import annotations

import re
import shutil
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from strap.datasets.hub.names import HubName
from strap.datasets.hub.refusals import (
    describe_failure,
    files_error,
    is_unreachable,
    name_error,
)
from strap.errors import StrapError, name_some
from strap.extras import missing_extra
from strap.progress import Progress, silent

INFO = "meta/info.json"
"""the file that every LeRobot dataset has; fetched last of `meta/`, so if it exists, `meta/` is
complete"""
OLDEST_CLIENT = (0, 34)
"""the oldest supported version of huggingface_hub, that of LeRobot 0.4"""
DOWNLOADS = 8
"""files fetched at a time"""
PATHS_PER_REQUEST = 500
"""files whose sizes are requested at a time"""
COMMIT_TIMEOUT = 10.0
"""seconds after which a request to resolve a name to a commit is given up"""
NOTE_BYTES = 50_000_000
"""downloads from this size on are announced if no progress is shown"""
MB = 1_000_000
_FOLDER = re.compile(r"datasets--([\w.-]+?)--([\w.-]+)", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)


@dataclass(frozen=True)
class Snapshot:
    """A commit of a repository, and its folder in the hub's cache, which can be incomplete."""

    repo: str
    commit: str
    cache: Path
    """the folder of the hub's cache"""

    @property
    def path(self) -> Path:
        """The folder with the files of the commit."""
        folder = f"datasets--{self.repo.replace('/', '--')}"
        return self.cache / folder / "snapshots" / self.commit

    @property
    def name(self) -> HubName:
        """The repository at this commit."""
        return HubName(self.repo, self.commit)

    def fetch(self, files: Sequence[str], progress: Progress = silent) -> None:
        """Fetch the files that are not in the cache; fetched files stay there.

        Args:
            files: paths inside the repository.
            progress: called with (what, megabytes fetched, total megabytes).
        """
        absent = [f for f in dict.fromkeys(files) if not (self.path / f).exists()]
        if not absent:
            return
        _require_client(f"'{self.repo}' is only partly here, without {name_some(absent)}")
        with self._explaining(absent):
            sizes = self._sizes(absent)
        if unknown := [file for file in absent if file not in sizes]:
            raise StrapError(
                f"the hub's dataset '{self.name}' has no file '{unknown[0]}', which its meta/ "
                "names: choose other episodes, or leave out those whose files are missing "
                "(--missing skip)"
            )
        total = sum(sizes.values())
        self._require_space(total)
        if progress is silent and total >= NOTE_BYTES:
            warnings.warn(f"fetching {total / MB:,.0f} MB of '{self.repo}'", stacklevel=2)
        meter = _Meter(f"fetching {self.repo} (MB)", total, progress)
        with self._explaining(absent):
            self._download(sizes, meter)

    def list_files(self) -> frozenset[str] | None:
        """Return all files of the repository; None if the hub cannot be reached."""
        try:
            from huggingface_hub import HfApi
        except ModuleNotFoundError:
            return None
        options: dict[str, Any] = {"repo_type": "dataset", "revision": self.commit}
        try:
            tree = HfApi().list_repo_tree(self.repo, recursive=True, **options)
            return frozenset(entry.path for entry in tree)
        except Exception as error:
            if is_unreachable(error):
                return None
            listing = "the list of its files"
            raise files_error(self.name, listing, str(self.cache), error) from error

    @contextmanager
    def _explaining(self, files: Sequence[str]) -> Iterator[None]:
        """Turn the client's errors on these files into a one-line `StrapError`."""
        try:
            yield
        except Exception as error:
            lacking = [file for file in files if not (self.path / file).exists()] or files
            raise files_error(self.name, name_some(lacking), str(self.cache), error) from error

    def _sizes(self, files: Sequence[str]) -> dict[str, int]:
        """Return file -> bytes; files that the repository does not have are left out."""
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile

        options: dict[str, Any] = {"repo_type": "dataset", "revision": self.commit}
        batches = (
            list(files[start : start + PATHS_PER_REQUEST])
            for start in range(0, len(files), PATHS_PER_REQUEST)
        )
        answers = (HfApi().get_paths_info(self.repo, batch, **options) for batch in batches)
        return {f.path: f.size for found in answers for f in found if isinstance(f, RepoFile)}

    def _require_space(self, total: int) -> None:
        place = next(p for p in (self.cache, *self.cache.parents) if p.exists())
        free = shutil.disk_usage(place).free
        if total > free:
            raise StrapError(
                f"fetching '{self.repo}' needs {total / 1e9:.1f} GB, and only {free / 1e9:.1f} GB "
                f"are free in '{self.cache}': fetch less (--episodes, --tasks, --cameras), or "
                "choose another folder with HF_HOME"
            )

    def _download(self, sizes: Mapping[str, int], meter: _Meter) -> None:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

        options: dict[str, Any] = {"repo_type": "dataset", "revision": self.commit}
        options["cache_dir"] = self.cache
        # Clients before 1.2 show progress only in their own bars: then whole files are counted.
        reports_bytes = "tqdm_class" in signature(hf_hub_download).parameters
        if reports_bytes:
            options["tqdm_class"] = meter.bar()
        else:
            disable_progress_bars()

        def download(file: str) -> None:
            hf_hub_download(self.repo, file, **options)
            if not reports_bytes:
                meter.add(sizes[file])

        with ThreadPoolExecutor(DOWNLOADS, thread_name_prefix="fetch") as pool:
            try:
                for done in [pool.submit(download, file) for file in sizes]:
                    done.result()
                meter.finish()
            except BaseException:
                meter.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def find_snapshot(path: Path) -> Snapshot | None:
    """Return the commit of a folder in a hub cache; None if the path is not such a folder."""
    path = path.absolute()
    if not _COMMIT.fullmatch(path.name) or path.parent.name != "snapshots":
        return None
    named = _FOLDER.fullmatch(path.parents[1].name)
    return named and Snapshot(f"{named[1]}/{named[2]}", path.name, path.parents[2])


def fetch_snapshot(name: HubName, progress: Progress = silent) -> Snapshot:
    """Return the current commit of a name, after fetching its `meta/` into the cache.

    If the hub does not answer, the commit that was fetched last under this name is used. Files of
    `meta/` that cannot be fetched are an error.
    """
    _require_client(f"no such dataset: '{name}' is not a file or folder here")
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        options: dict[str, Any] = {"revision": name.revision, "timeout": COMMIT_TIMEOUT}
        commit = HfApi().dataset_info(name.repo, expand=["sha"], **options).sha
        snapshot = Snapshot(name.repo, str(commit), _cache_folder())
        _fetch_metadata(snapshot, progress)
        if name.revision != snapshot.commit:  # so that the cache records the revision's commit
            hf_hub_download(name.repo, INFO, repo_type="dataset", revision=name.revision)
        return snapshot
    except StrapError:
        raise
    except Exception as error:
        cached = _find_cached(name)
        if cached is None:
            raise name_error(name, error) from error
        if not isinstance(error, OfflineModeIsEnabled) and name.revision != cached.commit:
            warnings.warn(
                f"the hub does not report the current commit of '{name}' "
                f"({describe_failure(error)}): commit {cached.commit[:12]}, which was fetched "
                "before, is used",
                stacklevel=2,
            )
        return cached


def _fetch_metadata(snapshot: Snapshot, progress: Progress) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.hf_api import RepoFile

    options: dict[str, Any] = {"repo_type": "dataset", "revision": snapshot.commit}
    tree = HfApi().list_repo_tree(snapshot.repo, "meta", recursive=True, **options)
    files = [entry.path for entry in tree if isinstance(entry, RepoFile)]
    if INFO not in files:
        raise EntryNotFoundError(INFO)
    snapshot.fetch([file for file in files if file != INFO], progress)
    snapshot.fetch([INFO])


def _find_cached(name: HubName) -> Snapshot | None:
    """Return the commit that was fetched under this name before; None if there is none."""
    from huggingface_hub import try_to_load_from_cache

    with suppress(OSError, ValueError):
        options: dict[str, Any] = {"repo_type": "dataset", "revision": name.revision}
        found = try_to_load_from_cache(name.repo, INFO, **options)
        return find_snapshot(Path(found).parents[1]) if isinstance(found, str) else None
    return None


def _cache_folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser().absolute()


def _require_client(lack: str) -> None:
    """Raise if huggingface_hub is not installed or too old; `lack` says what is missing."""
    try:
        from huggingface_hub import __version__ as version
    except ModuleNotFoundError:
        version = ""
    if tuple(map(int, re.findall(r"\d+", version)[:2])) >= OLDEST_CLIENT:
        return
    has = f"{version} is installed" if version else "it is not installed"
    raise missing_extra(
        f"{lack}; fetching it from the Hugging Face hub needs huggingface_hub "
        f"{'.'.join(map(str, OLDEST_CLIENT))} or newer, and {has}",
        "hub",
    )


class _Meter:
    """A counter of the bytes of several downloads, which reports them as one progress."""

    def __init__(self, what: str, total: int, progress: Progress) -> None:
        self._what, self._total, self._progress = what, total, progress
        self._megabytes = max(1, total // MB)
        self._done = 0
        self._shown = -1
        self._is_stopped = False
        self._lock = threading.Lock()

    def add(self, count: float) -> None:
        """Count bytes; raise if the downloads have been stopped."""
        with self._lock:
            if self._is_stopped:
                raise StrapError(f"{self._what}: stopped")
            self._done += int(count)
            shown = min(self._done, self._total) // MB
            if shown != self._shown:
                self._shown = shown
                self._progress(self._what, shown, self._megabytes)

    def finish(self) -> None:
        """Report that everything has been fetched."""
        self._progress(self._what, self._megabytes, self._megabytes)

    def stop(self) -> None:
        """Stop running downloads: they fail when they report their next bytes."""
        with self._lock:
            self._is_stopped = True

    def bar(self) -> Any:
        """Return a class that replaces tqdm, to which the client reports a download's bytes."""
        meter = self

        class Bar:
            def __init__(self, *_: object, initial: int = 0, **__: object) -> None:
                self.update(initial)

            def __enter__(self) -> Bar:
                return self

            def __exit__(self, *_: object) -> None: ...

            def update(self, n: float | None = 1) -> None:
                meter.add(n or 0)

            def update_transfer(self, n: float | None = 1) -> None: ...

            def set_postfix_str(self, *_: object, **__: object) -> None: ...

            def set_transfer_postfix_str(self, *_: object, **__: object) -> None: ...

            def close(self) -> None: ...

        return Bar
