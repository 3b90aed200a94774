"""Fingerprints of inputs and versions of packages, which artefacts record as their origin."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from strap.errors import StrapError


def fingerprint_files(files: Iterable[Path], root: Path) -> str:
    """Return a hash of the files' names, sizes and modification times, without reading them."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(files):
        try:
            stat = file.stat()
        except OSError as error:
            raise StrapError(f"cannot read '{file}' ({error.strerror}): copy it again") from error
        name = file.relative_to(root).as_posix() if file != root else file.name
        digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def fingerprint_content(file: Path) -> str:
    """Return a hash of a file's content; "" if the file does not exist."""
    if not file.is_file():
        return ""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def fingerprint_json(value: Any) -> str:
    """Return a hash of a value that can be written as JSON."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of Python, the platform and the packages that influence results."""
    found = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for name in ("strap-robot", "numpy", "numba", "h5py", "pyarrow", "torch", "transformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
