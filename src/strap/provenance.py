"""What an artefact was made from: fingerprints of its inputs, versions of the packages."""

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
    """Return a hash of names, sizes and modification times: cheap, and changes when a file does."""
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
    """Return a hash of what a file holds; empty where there is none."""
    if not file.is_file():
        return ""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def fingerprint_json(value: Any) -> str:
    """Return a hash of a JSON-able value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def versions() -> dict[str, str]:
    """Return the installed versions of what decides results: Python, platform and packages."""
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
