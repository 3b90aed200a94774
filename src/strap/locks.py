"""Locks that die with their holder: `flock` on an open file."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from strap.atomic import remove_leftovers, writing
from strap.errors import StrapError

LOCK = ".lock"
"""the file by which one process holds a folder"""
UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class Lock:
    """A lock file, held until `release` or until the process ends, however it ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def __del__(self) -> None:
        self.release()

    def fileno(self) -> int:
        """Return the open file's descriptor: a process that inherits it holds the lock too."""
        return self._descriptor

    def is_current(self) -> bool:
        """Return whether the file of that name is still the one that is locked."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let go; twice does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def try_lock(path: Path) -> Lock | None:
    """Take the lock, or None when somebody holds it."""
    return _lock(path, wait=False)


def is_held(path: Path) -> bool:
    """Return whether somebody holds the lock; asking creates nothing."""
    if not path.is_file():
        return False
    lock = try_lock(path)
    if lock is not None:
        lock.release()
    return lock is None


@contextmanager
def alone(lock_file: Path, doing: str) -> Iterator[None]:
    """Hold a lock for the block, and remove its file afterwards; an error where it is held.

    Args:
        lock_file: `.lock` in the folder that is written, or a hidden file beside the output.
        doing: what the holder does, for the message: "training into 'policy'".
    """
    made = not lock_file.parent.exists()
    while True:
        lock = try_lock(lock_file)
        if lock is None:
            raise StrapError(
                f"another process is {doing}: wait until it has ended, or choose another output"
            )
        if lock.is_current():
            break
        lock.release()  # its last holder removed the file while this one waited for it
    try:
        yield
    finally:
        lock_file.unlink(missing_ok=True)
        lock.release()
        if made:  # a call that failed before it wrote anything leaves no empty folder
            with suppress(OSError):
                lock_file.parent.rmdir()


def is_free(folder: Path) -> bool:
    """Return whether nothing but leftovers of killed writers lies there; those are removed."""
    if not folder.is_dir():
        return not folder.exists()
    remove_leftovers(folder)
    return not any(file.name != LOCK for file in folder.iterdir())


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock and hold it for the block."""
    lock = _lock(path, wait=True)
    assert lock is not None
    try:
        yield
    finally:
        lock.release()


def _lock(path: Path, *, wait: bool) -> Lock | None:
    import fcntl  # here: reading a store must work where there is no flock

    with writing(path.parent):
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
                f"the file system of '{path.parent}' has no file locks ({error.strerror}): choose "
                "an output folder on another one"
            ) from error
        raise
    return Lock(path, descriptor)
