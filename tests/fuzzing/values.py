"""Values nobody expects, and JSON documents with one of them somewhere."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

HUGE = 10**15
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**63,
    -(2**63),
    10**30,
    HUGE,
    0.5,
    1e308,
    -1e-300,
    float("nan"),
    float("inf"),
    "",
    "x",
    "é",
    "\x1b]0;title\x07\x1b[31m",
    "../../../../etc/hostname",
    "/etc/hostname",
    "%s{0}{chunk:3000000000d}",
    "a\0b",
    "\ud800",
    "9" * 5000,
    "float16",
    "|O",
    [],
    [[]],
    [None],
    [1, 2, 3],
    [-1],
    [HUGE, HUGE],
    ["x"],
    {},
    {"": {}},
    {"x": [1]},
)
DEEP, LONG = "\x00deep", "\x00long"
"""stand for what is written as text: brackets within brackets, and a million numbers"""

Place = tuple[Any, ...]


def change_json_value(rng: random.Random, value: Any) -> tuple[str, Any]:
    """A JSON value with one change somewhere in it, and what kind of change."""
    places = list(_places(value))
    place = rng.choice(places)
    change = rng.choice(list(CHANGES))
    return change, _changed(value, place, lambda node: CHANGES[change](rng, node))


def _places(value: Any, at: Place = ()) -> list[Place]:
    """Where every node lies; of a long list the first few and the last."""
    found = [at]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += _places(inner, (*at, key))
    elif isinstance(value, list):
        for index in {*range(min(4, len(value))), *range(max(0, len(value) - 1), len(value))}:
            found += _places(value[index], (*at, index))
    return found


def _changed(value: Any, place: Place, change: Any) -> Any:
    if not place:
        return change(value)
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = _changed(value[place[0]], place[1:], change)
    return copy


def _nudge(rng: random.Random, node: Any) -> Any:
    """Nearly the same."""
    if isinstance(node, bool) or node is None:
        return not node
    if isinstance(node, int | float):
        return rng.choice(
            (node + 1, node - 1, -node, node * 2, node * 10**9, float(node), str(node))
        )
    if isinstance(node, str):
        at = rng.randrange(len(node) + 1)
        return rng.choice(
            (node + "x", node[:at], node.upper(), node[:at] + "\n" + node[at:], [node])
        )
    return node


def _drop(rng: random.Random, node: Any) -> Any:
    if isinstance(node, dict) and node:
        gone = rng.choice(list(node))
        return {key: inner for key, inner in node.items() if key != gone}
    if isinstance(node, list) and node:
        gone = rng.randrange(len(node))
        return node[:gone] + node[gone + 1 :]
    return rng.choice(ODD)


def _double(rng: random.Random, node: Any) -> Any:
    if isinstance(node, dict) and node:
        key = rng.choice(list(node))
        return {**node, f"{key}_2": node[key]}
    if isinstance(node, list) and node:
        index = rng.randrange(len(node))
        return node[: index + 1] + node[index:]
    return [node, node]


def _reorder(rng: random.Random, node: Any) -> Any:
    if isinstance(node, dict) and node:
        keys = list(node)
        return dict(zip(keys, [node[key] for key in rng.sample(keys, len(keys))], strict=True))
    if isinstance(node, list) and node:
        return rng.sample(node, len(node))
    return rng.choice(ODD)


def _rename(rng: random.Random, node: Any) -> Any:
    if isinstance(node, dict) and node:
        old = rng.choice(list(node))
        new = rng.choice((old.upper(), old + " ", "", "../" + old, "\x1b[2J" + old))
        return {new if key == old else key: inner for key, inner in node.items()}
    return rng.choice(ODD)


CHANGES = {
    "node replaced": lambda rng, node: rng.choice(ODD),
    "value nudged": _nudge,
    "node dropped": _drop,
    "node doubled": _double,
    "nodes reordered": _reorder,
    "key renamed": _rename,
    "node nested deeply": lambda rng, node: DEEP,
    "node made huge": lambda rng, node: LONG,
}


def json_text(value: Any) -> bytes:
    """JSON as bytes."""
    text = json.dumps(value)
    text = text.replace(json.dumps(DEEP), "[" * 100_000 + "]" * 100_000)
    text = text.replace(json.dumps(LONG), "[" + "0," * 1_000_000 + "0]")
    return text.encode()


def change_json(rng: random.Random, file: Path) -> str:
    """One change in a JSON document."""
    change, value = change_json_value(rng, json.loads(file.read_bytes()))
    file.write_bytes(json_text(value))
    return change


def change_lines(rng: random.Random, file: Path) -> str:
    """One change in a file of JSON lines, or of its lines."""
    lines = file.read_bytes().splitlines()
    at = rng.randrange(len(lines))
    change = rng.choice(("changed", "changed", "changed", "dropped", "doubled", "swapped"))
    if change == "changed":
        change, value = change_json_value(rng, json.loads(lines[at]))
        lines[at] = json_text(value)
    elif change == "dropped":
        del lines[at]
    elif change == "doubled":
        lines.insert(at, lines[at])
    else:
        other = rng.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    file.write_bytes(b"\n".join(lines) + b"\n")
    return f"line: {change}"


def change_journal(rng: random.Random, file: Path) -> str:
    """One change in a store's journal, whose lines begin with their checksum."""
    lines = [line[9:] for line in file.read_bytes().splitlines()]
    plain = file.with_name("lines")
    plain.write_bytes(b"\n".join(lines) + b"\n")
    change = change_lines(rng, plain)
    file.write_bytes(
        b"".join(bytes(8) + b" " + line + b"\n" for line in plain.read_bytes().splitlines())
    )
    plain.unlink()
    return change
