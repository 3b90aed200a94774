"""Atomic writing of files: they are written under a temporary name, then renamed."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strap.errors import StrapError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEMPORARY = ".tmp"
"""Ending of temporary names: of files being written and of folders being removed."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP),
)


@contextmanager
def replacing(path: Path, *, sweep: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, else it is removed.

    Even if this process is killed, readers see either the old file or the new one, never a part.
    The temporary file is locked while it is written, so that later calls can tell it from a
    leftover of a killed process, which they remove.

    Args:
        path: the file to write.
        sweep: remove temporary files of `path` that killed processes left. Loops that write many
            files into one folder pass False and call `remove_leftovers` once.
    """
    with explain_write_errors(path):
        make_folder(path.parent)
        if sweep:
            remove_leftovers(path.parent, path.name)
        with explain_write_errors(path, creating=True):
            temporary, descriptor = _locked_temporary(path)
        try:
            yield temporary
            os.fsync(descriptor)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)


def _locked_temporary(path: Path) -> tuple[Path, int]:
    """Create an empty, locked file with an unpredictable name beside `path`."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY}")
        descriptor = os.open(temporary, flags, 0o666)
        if _try_flock(descriptor) and temporary.exists():
            return temporary, descriptor
        os.close(descriptor)  # another process removed it as a leftover before it was locked


def _try_flock(descriptor: int) -> bool:
    """Try to lock a file and return whether it worked; True on systems without file locks."""
    try:
        import fcntl  # not on every platform

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files and folders that killed processes left in a folder.

    Files that are being written are locked by their writers and stay.

    Args:
        folder: the folder to clean, without its subfolders.
        name: remove only temporary files of the file with this name.
    """
    prefix = "." if name is None else f".{name}."
    try:
        found = [entry for entry in os.scandir(folder) if entry.name.endswith(TEMPORARY)]
    except OSError:
        return
    for entry in found:
        if not entry.name.startswith(prefix):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            _remove_unlocked(Path(entry.path))


def _remove_unlocked(file: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if _try_flock(descriptor):
                file.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def remove_folder(folder: Path) -> None:
    """Remove a folder: rename it first, so that its name is free at once, then delete its files.

    If the process is killed in between, `remove_leftovers` removes the rest.
    """
    if not folder.exists():
        return
    doomed = folder.with_name(f".{folder.name.lstrip('.')}.{secrets.token_hex(4)}{TEMPORARY}")
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array as `.npy`."""
    import numpy as np  # imported here, because not every writer needs it

    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, if they do not exist."""
    with explain_write_errors(folder, creating=True):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def explain_write_errors(path: Path, *, creating: bool = False) -> Iterator[None]:
    """Turn the system's errors when writing `path` into a StrapError that says what to do.

    Args:
        path: the file or folder that is written.
        creating: the block only creates `path`, so that a missing file or folder is an error of
            writing, too: nothing can be created in `/proc`.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        if _is_disk_full(error):
            raise StrapError(
                f"no space left to write '{path}': free some space or choose another output, then "
                "run the same command again (what was finished is kept)"
            ) from error
        refused = (*REFUSED, errno.ENOENT) if creating else REFUSED
        if isinstance(error, OSError) and error.errno in refused:
            raise StrapError(
                f"cannot write '{path}': {error.strerror}; choose an output folder that you may "
                "write to"
            ) from error
        raise


def _is_disk_full(error: OSError | RuntimeError) -> bool:
    # HDF5 reports a full disk only in the text of its error, and as RuntimeError if it happens when
    # a file is closed.
    code = re.search(r"errno = (\d+)", str(error))
    known = getattr(error, "errno", None) in FULL or (code and int(code[1]) in FULL)
    return bool(known or "No space left" in str(error))


def write_json(path: Path, value: Any, *, sweep: bool = True) -> None:
    """Write JSON atomically; `sweep` as in `replacing`."""
    with replacing(path, sweep=sweep) as temporary:
        temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON, with an error that names the file."""
    try:
        text = path.read_text()
        value = json.loads(text)
        if "\\ud" in text.lower():  # a lone surrogate can be read, but not written again
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except FileNotFoundError as error:
        raise StrapError(f"no such file: '{path}'; check the path") from error
    except (OSError, ValueError, RecursionError) as error:
        raise StrapError(
            f"cannot read '{path}' as JSON ({error}): restore it from a copy, or create it again"
        ) from error
