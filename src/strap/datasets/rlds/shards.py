"""List the files that hold the episodes: the shards of the splits in `dataset_info.json`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strap.datasets.rlds.description import (
    DATASET_INFO,
    expect_integer,
    expect_list,
    expect_name,
    expect_object,
    expect_text,
    value_of,
    wrong_value_error,
)
from strap.datasets.rlds.records import SMALLEST_RECORD
from strap.datasets.untrusted import MAX_TRAJECTORIES, path_inside, require_at_most
from strap.errors import StrapError

TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
TFRECORD = "tfrecord"
MAX_SPLITS = 1000
"""the most splits of a dataset; usual ones have one or two"""
MAX_SHARDS = 100_000
"""the most shards of a dataset: shard numbers have five digits"""
MAX_FILE_NAME = 1024
"""the longest name of a shard, folders included, in characters"""
_SHARD_NAME = re.compile(r".*-(?P<split>[^-.]+)\.[^-]+-\d{5}-of-\d{5}")


@dataclass(frozen=True)
class RecordShard:
    """One TFRecord file of a split."""

    split: str
    file: Path
    length: int | None
    """number of episodes; None if no description says it and the file must be read"""


def list_shards(folder: Path, name: str, info: Mapping[str, Any]) -> list[RecordShard]:
    """Return the shards listed in `dataset_info.json`, else those found by their file names.

    The declared numbers of episodes are checked against the sizes of the files, so that a wrong
    number cannot make a list of ids that is larger than the files.
    """
    description = folder / DATASET_INFO
    shards: list[RecordShard] = []
    splits = expect_list(value_of(info, "splits", []), "'splits'", description)
    require_at_most(len(splits), MAX_SPLITS, "splits", description)
    splits = [expect_object(split, f"split {i}", description) for i, split in enumerate(splits)]
    titles = [expect_name(s.get("name"), "the name of a split", description) for s in splits]
    _require_distinct(titles, "split", description)
    for title, split in zip(titles, splits, strict=True):
        shards += _shards_of_split(folder, {"DATASET": name, "SPLIT": title}, split, info)
        require_at_most(len(shards), MAX_SHARDS, "shards", description)
    shards = shards or _shards_found(folder)
    _require_distinct([str(shard.file) for shard in shards], "shard", description)
    total = sum(shard.length or 0 for shard in shards)
    require_at_most(total, MAX_TRAJECTORIES, "episodes", description)
    for shard in shards:
        _require_size(shard)
    return shards


def _shards_of_split(
    folder: Path, names: Mapping[str, str], split: Mapping[str, Any], info: Mapping[str, Any]
) -> list[RecordShard]:
    description, title = folder / DATASET_INFO, names["SPLIT"]
    what = f"'shardLengths' of split {title!r}"
    lengths = expect_list(value_of(split, "shardLengths", []), what, description)
    require_at_most(len(lengths), MAX_SHARDS, "shards", description)
    if not lengths:
        return [shard for shard in _files_like_shards(folder) if shard.split == title]
    what_template = f"'filepathTemplate' of split {title!r}"
    template = expect_text(value_of(split, "filepathTemplate", ""), what_template, description)
    values = {**names, "FILEFORMAT": _file_format(info, description)}
    shards = []
    for i, length in enumerate(lengths):
        file = _shard_file(folder, template or TEMPLATE, {**values, **_numbers(i, len(lengths))})
        shards.append(RecordShard(title, file, expect_integer(length, what, description)))
    return shards


def _file_format(info: Mapping[str, Any], description: Path) -> str:
    name = expect_text(value_of(info, "fileFormat", ""), "'fileFormat'", description) or TFRECORD
    if name.lower() != TFRECORD:
        raise wrong_value_error(
            name, "'fileFormat'", f"'{TFRECORD}', the only one that can be read", description
        )
    return name


def _numbers(index: int, count: int) -> dict[str, str]:
    return {
        "SHARD_X_OF_Y": f"{index:05d}-of-{count:05d}",
        "SHARD_INDEX": f"{index:05d}",
        "NUM_SHARDS": f"{count:05d}",
    }


def _shard_file(folder: Path, template: str, values: Mapping[str, str]) -> Path:
    """Return the file for a template and values; raise if it is too long or outside the folder."""
    description = folder / DATASET_INFO
    what = "'filepathTemplate'"
    if len(template) > MAX_FILE_NAME:
        raise wrong_value_error(template, what, f"at most {MAX_FILE_NAME} characters", description)
    name = re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), template)
    if len(name) > MAX_FILE_NAME:
        raise wrong_value_error(
            name, what, f"file names of at most {MAX_FILE_NAME} characters", description
        )
    return path_inside(folder, name, named_by=f"'{description}'")


def _require_distinct(names: Sequence[str], what: str, description: Path) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise StrapError(
                f"'{description}' lists the {what} '{name}' twice, so its episodes would be read "
                "twice; correct the names of the splits or their 'filepathTemplate'"
            )
        seen.add(name)


def _require_size(shard: RecordShard) -> None:
    """Raise if the size of a shard's file does not fit its declared number of episodes."""
    try:
        size = shard.file.stat().st_size
    except OSError:
        return  # reading an episode will raise that the shard is missing
    if shard.length is None and not size and shard.file.is_file():
        raise StrapError(f"'{shard.file}' is empty; download it again, or remove it")
    if shard.length == 0 and size:
        raise StrapError(
            f"'{shard.file}' has {size:,} bytes, but {DATASET_INFO} promises no record in it: they "
            "are of different downloads; get both again"
        )
    if shard.length is not None and shard.length * SMALLEST_RECORD > size:
        raise StrapError(
            f"'{shard.file}' has {size:,} bytes, too few for the {shard.length:,} records that "
            f"{DATASET_INFO} promises: truncated, or of another download; get both again"
        )


def _shards_found(folder: Path) -> list[RecordShard]:
    """Return the shards found by their file names; raise if there are none."""
    shards = _files_like_shards(folder)
    if not shards:
        raise StrapError(f"'{folder}' lists no shards and holds none; download the records")
    return shards


def _files_like_shards(folder: Path) -> list[RecordShard]:
    names = {path: _SHARD_NAME.fullmatch(path.name) for path in sorted(folder.iterdir())}
    return [RecordShard(found["split"], path, None) for path, found in names.items() if found]
