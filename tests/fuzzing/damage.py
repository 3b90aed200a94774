"""Damage to a file or folder: its bytes, its structure, its checksums, the file itself."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzzing import structure
from tests.fuzzing.checksums import repair_checksums


@dataclass(frozen=True)
class Damage:
    """What was done, in words."""

    kind: str
    """without numbers, so that cases can be counted by it"""
    file: str
    """where"""


def damage(rng: random.Random, root: Path, *, has_checksums: bool) -> Damage:
    """Change one file of `root` (a file or a folder) in one way."""
    file = _choose_file(rng, root)
    change = structure.find_mutator(file)
    where = rng.random()
    if where < 0.06:
        kind = f"file {_change_file(rng, file, root)}"
    elif change is None or where < 0.45:
        kind = f"bytes {_change_bytes(rng, file)}"
    else:
        kind = change(rng, file)
    if has_checksums and file.is_file() and rng.random() < 0.7 and repair_checksums(file):
        kind += ", checksums repaired"
    name = "" if file == root else file.relative_to(root).as_posix()
    return Damage(f"{_role(name or root.name)}: {kind}", name)


def _role(name: str) -> str:
    """A file's name without numbers and cameras: what kind of file it is."""
    own = name.rpartition("/")[2]
    if re.fullmatch(r"[\d.]+", own):
        return "chunk"
    stem, dot, ending = own.partition(".")
    return re.sub(r"\d+", "N", stem) + dot + re.sub(r"(?<=-)\d+", "N", ending)


def _choose_file(rng: random.Random, root: Path) -> Path:
    """Every kind of file is as likely as any other, however many there are of it."""
    if root.is_file():
        return root
    kinds: dict[str, list[Path]] = {}
    for file in sorted(file for file in root.rglob("*") if file.is_file()):
        kinds.setdefault(re.sub(r"\d+", "N", file.relative_to(root).as_posix()), []).append(file)
    return rng.choice(rng.choice(list(kinds.values())))


def _change_bytes(rng: random.Random, file: Path) -> str:
    content = bytearray(file.read_bytes())
    change = rng.choice(list(BYTES))
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        if content:
            BYTES[change](rng, content)
    file.write_bytes(content)
    return change


def _span(rng: random.Random, content: bytearray) -> tuple[int, int]:
    """Some bytes in a row; half of the time near the front, where headers are."""
    size = len(content)
    start = rng.randrange(min(size, 512) if rng.random() < 0.5 else size)
    return start, min(size, start + rng.choice((1, 2, 4, 8, 16, 64, 256)))


def _flip(rng: random.Random, content: bytearray) -> None:
    start, _ = _span(rng, content)
    content[start] ^= 1 << rng.randrange(8)


def _fill(value: int) -> Callable[[random.Random, bytearray], None]:
    def fill(rng: random.Random, content: bytearray) -> None:
        start, stop = _span(rng, content)
        content[start:stop] = bytes([value]) * (stop - start)

    return fill


def _truncate(rng: random.Random, content: bytearray) -> None:
    del content[rng.randrange(len(content)) :]


def _duplicate(rng: random.Random, content: bytearray) -> None:
    start, stop = _span(rng, content)
    content[stop:stop] = content[start:stop]


def _insert(rng: random.Random, content: bytearray) -> None:
    start, stop = _span(rng, content)
    content[start:start] = rng.randbytes(stop - start)


def _delete(rng: random.Random, content: bytearray) -> None:
    start, stop = _span(rng, content)
    del content[start:stop]


def _swap(rng: random.Random, content: bytearray) -> None:
    size = rng.choice((4, 16, 64))
    if len(content) >= 2 * size:
        one, other = sorted(rng.sample(range(len(content) // size), 2))
        first, second = slice(one * size, (one + 1) * size), slice(other * size, (other + 1) * size)
        content[first], content[second] = content[second], content[first]


def _randomize(rng: random.Random, content: bytearray) -> None:
    start, stop = _span(rng, content)
    content[start:stop] = rng.randbytes(stop - start)


BYTES: dict[str, Callable[[random.Random, bytearray], None]] = {
    "flipped": _flip,
    "zeroed": _fill(0),
    "set to 0xff": _fill(0xFF),
    "made random": _randomize,
    "cut off": _truncate,
    "duplicated": _duplicate,
    "inserted": _insert,
    "deleted": _delete,
    "swapped": _swap,
}


def _change_file(rng: random.Random, file: Path, root: Path) -> str:
    change = rng.choice(("removed", "emptied", "made a folder", "made a loop", "replaced"))
    others = [] if root.is_file() else sorted(f for f in root.rglob("*") if f.is_file())
    if change == "replaced":
        content = rng.choice(others).read_bytes() if others else b"\x89PNG\r\n\x1a\n" + bytes(64)
        file.write_bytes(content)
        return change
    file.unlink()
    if change == "emptied":
        file.touch()
    elif change == "made a folder":
        file.mkdir()
    elif change == "made a loop":
        file.symlink_to(file.name)
    return change


def copy_input(source: Path, target: Path) -> None:
    """Copy a file or a folder, times included."""
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)
