"""Files that are whole or absent: temporary name, then rename; and the manifests beside them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from strap.errors import StrapError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success it takes its place, else it is removed.

    A reader, or a process killed half-way, sees the old file or the new one, never a part.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            _sync(temporary)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def is_free(folder: Path) -> bool:
    """Whether nothing but the temporary files of killed writers lies there; those are removed."""
    if not folder.is_dir():
        return not folder.exists()
    left = list(folder.iterdir())
    if not all(file.name.startswith(".") and file.name.endswith(".tmp") for file in left):
        return False
    for file in left:
        file.unlink(missing_ok=True)
    return True


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's errors about writing `path` into one that says what to do."""
    try:
        yield
    except OSError as error:
        if _full(error):
            raise StrapError(
                f"no space left to write '{path}': free some space or choose another output, then "
                "run the same command again (what was finished is kept)"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise StrapError(
                f"cannot write '{path}': {error.strerror}; choose an output folder you may write to"
            ) from error
        raise


def _full(error: OSError) -> bool:
    # HDF5 reports a full disk as text, without an errno.
    codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return error.errno in codes or "No space left" in str(error) or "errno = 28" in str(error)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON, with an error that names the file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise StrapError(f"no such file: '{path}'; check the path") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StrapError(f"cannot read '{path}' as JSON: {error}") from error


def fingerprint_files(files: Iterable[Path], root: Path) -> str:
    """A hash of names, sizes and modification times: cheap, and changes when a file does."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(files):
        stat = file.stat()
        name = file.relative_to(root).as_posix() if file != root else file.name
        digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def fingerprint_json(value: Any) -> str:
    """A hash of a JSON-able value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def cache_folder() -> Path:
    """Where stores go that were given no place: $STRAP_CACHE, else the user's cache folder."""
    if own := os.environ.get("STRAP_CACHE"):
        return Path(own).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "strap"


def versions() -> dict[str, str]:
    """Python, platform and the packages that decide results, as installed (none is imported)."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("strap-robot", "numpy", "numba", "h5py", "pyarrow", "torch", "transformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


Progress = Callable[[str, int, int], None]
"""Called as (what is being done, how many done, of how many)."""


def silent(what: str, done: int, total: int) -> None:
    """The progress callback that shows nothing."""
