"""Resolve names inside an HDF5 file, through links within that file only.

Hard links and soft links are other names of an object in the same file, and are followed. External
links can name any file on the machine, and are never followed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import h5py

from strap.errors import StrapError

Node: TypeAlias = h5py.Group | h5py.Dataset | None
"""the object of a name; None if it is neither a group nor an array"""
MAX_SOFT_LINKS = 64
"""the most soft links on the way to one object; more count as a circle"""
MAX_GROUP_DEPTH = 32
"""the deepest nesting of groups in a demonstration"""
MAX_MEMBERS = 10_000
"""the most arrays and groups in a demonstration"""


def member_names(group: h5py.Group, place: str, file: Path) -> list[str]:
    """Return the names in a group, in the file's order; raise if one is not a valid name."""
    names = [bytes(name).decode("utf-8", "surrogateescape") for name in group.id]
    for name in names:
        is_text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace") == name
        if not is_text or "/" in name or "\0" in name or name in ("", ".", ".."):
            raise StrapError(
                f"'{file}': '{place}' holds the name {name!a}, which is not a valid name of "
                "a group or an array; the file is damaged: copy it again or leave it out"
            )
    return names


def has_member(group: h5py.Group, name: str) -> bool:
    """Return whether a group holds a name, even if it is a broken link."""
    return bool(group.id.links.exists(name.encode()))


def resolve_link(group: h5py.Group, path: str, file: Path) -> Node:
    """Return the object at `path` in a group, following hard and soft links of this file."""
    start = f"{group.name}/{path}".lstrip("/")
    node: Node = group
    pending = deque(_parts(path.encode()))
    soft_links = 0
    while pending:
        name = pending.popleft()
        if not isinstance(node, h5py.Group) or not node.id.links.exists(name):
            raise StrapError(
                f"'{file}': '{start}' points to nothing: '{_shown(name)}' does not exist; "
                "restore what the link points to, or remove the link"
            )
        kind = node.id.links.get_info(name).type
        if kind == h5py.h5l.TYPE_HARD:
            node = _open(node, name)
            continue
        _require_soft(node, name, kind, start, file)
        soft_links += 1
        if soft_links > MAX_SOFT_LINKS:
            raise StrapError(f"'{file}': the links of '{start}' form a loop; remove one of them")
        target = node.id.links.get_val(name)
        node = node.file["/"] if target.startswith(b"/") else node
        pending.extendleft(reversed(_parts(target)))
    return node


def members_under(
    group: h5py.Group, place: str, file: Path
) -> Iterator[tuple[str, h5py.Group | h5py.Dataset]]:
    """Yield (path, object) of every array and group below a group, following links."""
    members = _walk(group, place, file, (_address(group),))
    for count, (name, node) in enumerate(members, 1):
        if count > MAX_MEMBERS:
            raise StrapError(
                f"'{file}': '{place}' has more than {MAX_MEMBERS:,} arrays and groups, links "
                "included; the file is damaged, or too many of its links point to groups: leave "
                "it out"
            )
        if node is None:
            raise StrapError(
                f"'{file}': '{place}/{name}' is neither an array nor a group; the file is damaged: "
                "copy it again, or remove it"
            )
        yield name, node


def _walk(
    group: h5py.Group, place: str, file: Path, ancestors: tuple[int, ...]
) -> Iterator[tuple[str, Node]]:
    """Yield (path, object) of every member of a group, each followed by its own members."""
    for name in member_names(group, place, file):
        node = resolve_link(group, name, file)
        yield name, node
        if not isinstance(node, h5py.Group):
            continue
        address = _address(node)
        if address in ancestors or len(ancestors) > MAX_GROUP_DEPTH:
            raise StrapError(
                f"'{file}': '{place}/{name}' is a group that contains itself, or groups are nested "
                f"more than {MAX_GROUP_DEPTH} deep; remove the link"
            )
        for path, below in _walk(node, f"{place}/{name}", file, (*ancestors, address)):
            yield f"{name}/{path}", below


def _address(group: h5py.Group) -> int:
    return int(h5py.h5o.get_info(group.id).addr)


def _open(group: h5py.Group, name: bytes) -> Node:
    found = h5py.h5o.open(group.id, name)
    if isinstance(found, h5py.h5g.GroupID):
        return h5py.Group(found)
    return h5py.Dataset(found) if isinstance(found, h5py.h5d.DatasetID) else None


def _require_soft(group: h5py.Group, name: bytes, kind: int, start: str, file: Path) -> None:
    if kind == h5py.h5l.TYPE_SOFT:
        return
    if kind == h5py.h5l.TYPE_EXTERNAL:
        other, inside = group.id.links.get_val(name)
        raise StrapError(
            f"'{file}': '{start}' is an external link to '{_shown(inside)}' in the file "
            f"'{_shown(other)}': files must not refer to other files. If you trust it, copy what "
            "it points to into this file (h5py: Group.copy with expand_external=True)"
        )
    raise StrapError(
        f"'{file}': '{start}' is a link of an unknown kind ({kind}); make it a hard or a soft link"
    )


def _parts(path: bytes) -> list[bytes]:
    return [part for part in path.split(b"/") if part not in (b"", b".")]


def _shown(text: bytes) -> str:
    return text.decode("utf-8", "replace")
