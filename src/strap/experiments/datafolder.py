"""Find an experiment's datasets in the data folder, and compute their fingerprints."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from strap.errors import StrapError
from strap.experiments.description import Experiment
from strap.provenance import fingerprint_files, fingerprint_json


@dataclass(frozen=True)
class DataFolder:
    """The datasets of an experiment, which are below one folder."""

    path: Path
    target: str
    prior: tuple[str, ...]
    fingerprints: dict[str, str]
    """dataset -> a hash of its files' names and sizes, the same on every machine"""
    stamp: str
    """a hash of the folder's path and the files' times, by which runs and caches know their data"""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the target and the priors."""
        return self.target, *self.prior

    def locate(self, name: str) -> str:
        """Return a dataset's path as an argument of a command."""
        return str(self.path / name)


def open_data(experiment: Experiment, folder: Path, *, must_exist: bool = True) -> DataFolder:
    """Find the experiment's datasets below a folder.

    Args:
        experiment: contains the target's name and the priors' names or patterns.
        folder: the folder of the datasets.
        must_exist: whether missing datasets are errors; if False, they keep the file's names.
    """
    folder = folder.expanduser().resolve()
    prior = [name for pattern in experiment.prior for name in _find(folder, pattern, must_exist)]
    (target,) = _find(folder, experiment.target, must_exist)[:1]
    if target in prior or len(set(prior)) != len(prior):
        raise StrapError(
            f"target '{target}' and priors {', '.join(prior)} below '{folder}' name a dataset "
            "twice: name each once"
        )
    names = (target, *prior)
    hashes = {name: fingerprint(folder / name) for name in names}
    times = [fingerprint_files(list_files(folder / name), folder) for name in names]
    stamp = fingerprint_json([str(folder), times])
    return DataFolder(folder, target, tuple(prior), hashes, stamp)


def _find(folder: Path, pattern: str, must_exist: bool) -> list[str]:
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise StrapError(
            f"dataset '{pattern}' is not below the data folder: give its path relative to that "
            "folder"
        )
    found = sorted(path.relative_to(folder).as_posix() for path in folder.glob(pattern))
    if not found and must_exist:
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        there = ", ".join(names[:12]) or "nothing"
        raise StrapError(
            f"'{folder}' holds no dataset '{pattern}' (it holds {there}): give the folder of the "
            "datasets with --data"
        )
    return found or [pattern]


def fits_pattern(name: str, pattern: str) -> bool:
    """Return whether a dataset's name fits a pattern of the experiment.

    >>> fits_pattern("a/b/c.hdf5", "a/**/*.hdf5"), fits_pattern("a/b.hdf5", "*.hdf5")
    (True, False)
    """
    return _fits(PurePosixPath(name).parts, PurePosixPath(pattern).parts)


def _fits(parts: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    if not wanted:
        return not parts
    if wanted[0] == "**":  # any number of folders
        return any(_fits(parts[count:], wanted[1:]) for count in range(len(parts) + 1))
    fits = bool(parts) and fnmatchcase(parts[0], wanted[0])
    return fits and _fits(parts[1:], wanted[1:])


def fingerprint(dataset: Path) -> str:
    """Return a hash of a dataset's file names and sizes; a copy has the same hash."""
    digest = hashlib.blake2b(digest_size=16)
    for file in list_files(dataset):
        name = file.relative_to(dataset).as_posix()
        digest.update(f"{name}\0{file.stat().st_size}\n".encode())
    return digest.hexdigest()


def list_files(dataset: Path) -> list[Path]:
    """Return the files of a dataset, sorted."""
    return [dataset] if dataset.is_file() else sorted(p for p in dataset.rglob("*") if p.is_file())


def as_relative(words: tuple[str, ...], places: dict[str, Path]) -> list[str]:
    """Return a command's arguments, with the path of each place replaced by its name.

    >>> as_relative(("/data/libero_10", "--out", "/else/x"), {"DATA": Path("/data")})
    ['DATA/libero_10', '--out', '/else/x']
    """
    inner_first = sorted(places.items(), key=lambda item: -len(str(item[1])))
    shown = []
    for word in words:
        for name, place in inner_first:
            if word == str(place) or word.startswith(f"{place}/"):
                word = name + word[len(str(place)) :]
                break
        shown.append(word)
    return shown


def relative_matches(table: Any, data: Path) -> Any:
    """Return a table of matches with dataset paths relative to the data folder."""
    import pyarrow as pa

    names = [
        Path(name).relative_to(data).as_posix() if Path(name).is_relative_to(data) else name
        for name in table.column("dataset").to_pylist()
    ]
    place = table.schema.get_field_index("dataset")
    return table.set_column(place, "dataset", pa.array(names, pa.string()))
