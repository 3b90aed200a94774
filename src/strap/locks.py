"""File locks by `flock`, which are released when their process ends."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from strap.atomic import explain_write_errors, remove_leftovers
from strap.errors import StrapError

LOCK = ".lock"
"""Name of the lock file of a folder that only one process can write."""
UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class Lock:
    """A locked file. The lock is held until `release`, or until the process ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def __del__(self) -> None:
        self.release()

    def fileno(self) -> int:
        """Return the file's descriptor; a process that inherits it holds the lock too."""
        return self._descriptor

    def is_current(self) -> bool:
        """Return whether the locked file still has its name, and was not removed or replaced."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def try_lock(path: Path) -> Lock | None:
    """Take the lock and return it; None if another process holds it."""
    return _lock(path, wait=False)


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock; no file is created."""
    if not path.is_file():
        return False
    lock = try_lock(path)
    if lock is not None:
        lock.release()
    return lock is None


@contextmanager
def exclusive_lock(lock_file: Path, doing: str) -> Iterator[None]:
    """Hold a lock for the block and remove its file afterwards; raise if another process holds it.

    Args:
        lock_file: `.lock` in the folder that is written, or a hidden file beside the output.
        doing: what the holder does, for the error message: "training into 'policy'".
    """
    is_new_folder = not lock_file.parent.exists()
    while True:
        lock = try_lock(lock_file)
        if lock is None:
            raise StrapError(
                f"another process is {doing}: wait until it has ended, or choose another output"
            )
        if lock.is_current():
            break
        lock.release()  # the previous holder removed the file before we locked it
    try:
        yield
    finally:
        lock_file.unlink(missing_ok=True)
        lock.release()
        if is_new_folder:  # a call that fails before it writes anything leaves no empty folder
            with suppress(OSError):
                lock_file.parent.rmdir()


def is_empty_folder(folder: Path) -> bool:
    """Return whether a folder is absent or empty; leftovers of killed writers are removed first."""
    if not folder.is_dir():
        return not folder.exists()
    remove_leftovers(folder)
    return not any(file.name != LOCK for file in folder.iterdir())


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Wait for the lock, and hold it for the block."""
    lock = _lock(path, wait=True)
    assert lock is not None
    try:
        yield
    finally:
        lock.release()


def _lock(path: Path, *, wait: bool) -> Lock | None:
    import fcntl  # imported here, because reading a store must work without flock

    with explain_write_errors(path.parent, creating=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        if error.errno in UNSUPPORTED:
            raise StrapError(
                f"the file system of '{path.parent}' does not support file locks "
                f"({error.strerror}): choose an output folder on another file system"
            ) from error
        raise
    return Lock(path, descriptor)
