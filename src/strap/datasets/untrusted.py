"""Checks for files that are not trusted, shared by all formats.

- An error that a library raises becomes a `StrapError` that names the file.
- A path in metadata must stay inside the dataset's folder.
- A size in metadata is compared with a limit before memory of that size is allocated.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from strap.errors import StrapError

MAX_IMAGE_PIXELS = 1 << 26
"""the largest image that is decoded, in pixels: 8192 × 8192"""
MAX_FRAME_BYTES = 1 << 28
"""the largest row (one frame) of any array: 256 MiB, a colour image of MAX_IMAGE_PIXELS"""
MAX_CHUNK_BYTES = 1 << 30
"""the largest chunk that is decoded at once: 1 GiB"""
MAX_ARRAY_BYTES = 1 << 30
"""the largest array that is read at once: one trajectory's actions or proprioception, 1 GiB"""
MAX_TRAJECTORIES = 10_000_000
"""the most trajectories of one dataset; DROID, the largest in use, has 76,000"""
MAX_METADATA_BYTES = 1 << 30
"""the largest metadata file that is read into memory"""

REMEDY = "copy or download it again, or leave it out"


@contextmanager
def explain_read_errors(
    place: Path | str, format: str, *, part: str = "", remedy: str = REMEDY
) -> Iterator[None]:
    """Turn every error raised while `place` is read into a `StrapError` that names `place`.

    Libraries raise many kinds of errors on damaged files (`KeyError`, `OSError`, `RuntimeError`,
    …), which all mean the same to a user. A `StrapError` passes unchanged.

    Args:
        place: the file or folder that is read.
        format: the format's name, for the message.
        part: what is read in the file, such as "demo_0, 'actions'".
        remedy: what the user can do about the error.
    """
    where = f"'{place}', {part}" if part else f"'{place}'"
    try:
        yield
    except StrapError:
        raise
    except PermissionError as error:
        raise StrapError(f"cannot read {where}: permission denied") from error
    except MemoryError as error:
        raise StrapError(
            f"{where} needs more memory than is free: its {format} metadata is damaged, or it "
            "needs a machine with more memory"
        ) from error
    except Exception as error:
        raise StrapError(
            f"cannot read {where} as {format} ({describe_error(error)}): {remedy}"
        ) from error


def describe_error(error: BaseException) -> str:
    """Return an error's type and message as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


def path_inside(root: Path, name: str, *, named_by: str) -> Path:
    """Return `root / name`; raise if a name from metadata leads out of `root`.

    Only the name is checked. Links are allowed: they are the user's own.
    """
    parts = PurePosixPath(name).parts
    leaves = PurePosixPath(name).is_absolute() or PureWindowsPath(name).is_absolute()
    if leaves or ".." in parts or "\0" in name or re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name):
        raise StrapError(
            f"{named_by} names the file {name!r}, which is outside the dataset's folder '{root}': "
            "datasets may only name files in their own folder; correct the metadata"
        )
    return root / name


def require_at_most(value: float, limit: float, what: str, place: Path | str) -> None:
    """Raise if a file declares more than is allowed."""
    if value > limit:
        raise StrapError(
            f"'{place}' declares {value:,} {what}; at most {limit:,} are read: "
            "its metadata is damaged"
        )


def stat_regular_file(file: Path, what: str) -> os.stat_result:
    """Return the status of a file of episodes; raise if it is missing or not a regular file."""
    try:
        status = file.stat()
    except OSError as error:
        raise missing_file_error(file, what, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise StrapError(f"'{file}' is not a file but a folder, pipe or device; download it again")
    return status


def missing_file_error(file: Path, what: str, cause: OSError | None = None) -> StrapError:
    """Return the error for a missing file of episodes; `what` is its kind, such as "video"."""
    reason = f" ({cause.strerror})" if cause else ""
    return StrapError(
        f"missing {what} '{file}'{reason}; download it, or open the dataset with missing='skip' "
        "(--missing skip) to leave its episodes out"
    )


def read_metadata(file: Path, *, limit: int = MAX_METADATA_BYTES) -> Any:
    """Return the content of a JSON file of at most `limit` bytes."""
    with explain_read_errors(file, "JSON"):
        if file.exists() and not file.is_file():
            raise StrapError(f"'{file}' is not a file but a folder or a device; replace it")
        require_at_most(file.stat().st_size, limit, "bytes of JSON", file)
        return json.loads(file.read_bytes())
