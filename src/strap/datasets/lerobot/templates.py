"""Make file names from templates in `info.json`, such as `data/chunk-{chunk_index:03d}/….parquet`.

`str.format` is not safe for a template from an untrusted file: it can read attributes of objects,
or write a number three billion digits wide. Here a template may contain only literal text and known
names, each with a width of at most two digits.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np

from strap.datasets.lerobot.values import short_repr
from strap.datasets.untrusted import path_inside
from strap.errors import StrapError

VIDEO_FOLDERS = ("videos", "video")
"""possible names of the folder of videos"""

MAX_TEMPLATE_LENGTH = 1000
"""the most characters of a template"""
_WIDTH = re.compile(r"(0?[0-9]{1,2})?d?", re.ASCII)


@dataclass(frozen=True)
class Template:
    """A parsed template."""

    parts: tuple[tuple[str, str | None, str], ...]
    """(literal text, the name after it or None, the name's format)"""
    named_by: str
    """the file and key of the template, for errors"""

    @property
    def names(self) -> frozenset[str]:
        """The names that the template uses."""
        return frozenset(field for _, field, _ in self.parts if field is not None)

    @property
    def folder(self) -> str:
        """The first folder of all its files; empty if it differs between files."""
        folder, slash, _ = self.parts[0][0].partition("/")
        return folder if slash else ""

    def moved(self, folder: str) -> Template:
        """Return the template with its first folder replaced."""
        (literal, field, width), *rest = self.parts
        first = (folder + literal.removeprefix(self.folder), field, width)
        return replace(self, parts=(first, *rest))

    def path(self, root: Path, values: Mapping[str, int | str]) -> Path:
        """Return the file for these values; raise if it is outside `root`."""
        name = "".join(
            literal + (format(values[field], width) if field is not None else "")
            for literal, field, width in self.parts
        )
        return path_inside(root, name, named_by=self.named_by)


def parse_template(template: Any, names: Collection[str], file: Path, key: str) -> Template:
    """Return the parsed template from `key` of `file`.

    Raise if it is not a template, uses other names than `names`, or has a format other than a
    width. `video_key`, a text, has no width.
    """

    def refused(reason: str) -> StrapError:
        return StrapError(
            f"'{file}': cannot make a file name from {key} {short_repr(template)} ({reason}); "
            f"correct it; known names: {', '.join(names)}"
        )

    if not isinstance(template, str) or not 0 < len(template) <= MAX_TEMPLATE_LENGTH:
        raise refused(f"it must be a text of 1 to {MAX_TEMPLATE_LENGTH} characters")
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        raise refused(str(error)) from error
    parts = []
    for literal, field, width, conversion in parsed:
        if field is not None and field not in names:
            raise refused(f"{short_repr(field)} is not a known name")
        if conversion is not None:
            raise refused(f"the conversion {short_repr(conversion)} is not allowed")
        if width and (field == "video_key" or not _WIDTH.fullmatch(width)):
            raise refused(
                f"the width {short_repr(width)} is not allowed: two digits at most, as in 06d"
            )
        parts.append((literal, field, width or ""))
    return Template(tuple(parts), f"'{file}': {key}")


def read_templates(
    info: Mapping[str, Any],
    file: Path,
    columns: Mapping[str, Any],
    videos: Sequence[str],
    *,
    per_episode_files: bool,
) -> Iterator[tuple[str, Template]]:
    """Yield the templates in use; raise if two episodes or cameras would get the same file.

    In v3.0 episodes may share a file, but different chunk or file numbers may not.
    """
    numbers = ["chunk_index", "episode_index", "episode_chunk"]
    if not per_episode_files:
        numbers = ["file_index", *numbers]
    places = {"data_path": ["data"], "video_path": [f"videos/{key}" for key in videos]}
    for key, used_by in places.items():
        if not used_by:
            continue
        names = numbers if key == "data_path" else ["video_key", *numbers]
        template = parse_template(info.get(key), names, file, key)
        needed = ["video_key"] if len(used_by) > 1 else []
        if per_episode_files:
            needed += ["episode_index"] if len(columns["episode_index"]) > 1 else []
        else:
            needed += [
                name
                for name in ("chunk_index", "file_index")
                if any(len(np.unique(columns[f"{place}/{name}"])) > 1 for place in used_by)
            ]
        if absent := [name for name in needed if name not in template.names]:
            raise StrapError(
                f"'{file}': {key} {short_repr(info[key])} gives several files the same name: it "
                f"lacks {{{absent[0]}}}; correct it"
            )
        yield key, template


def find_videos(
    templates: Mapping[str, Template], root: Path
) -> tuple[dict[str, Template], tuple[str, ...]]:
    """Return the templates, with `video_path` moved to the folder that exists, and notes on that.

    If the folder in `video_path` is missing, the other one of `VIDEO_FOLDERS` is used if it exists.
    """
    template = templates.get("video_path")
    if (
        template is None
        or template.folder not in VIDEO_FOLDERS
        or (root / template.folder).exists()
    ):
        return dict(templates), ()
    found = [name for name in VIDEO_FOLDERS if (root / name).is_dir()]
    if not found:
        return dict(templates), ()
    note = f"videos are read from '{found[0]}/', but meta/info.json says '{template.folder}/'"
    return {**templates, "video_path": template.moved(found[0])}, (note,)
