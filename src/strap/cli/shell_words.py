"""The words that can follow each command: options, choices, files; for shell completion."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from strap.cli.help import Option, options_of
from strap.cli.page import list_commands
from strap.datasets.formats import FORMATS
from strap.encoders import NAMES
from strap.encoders.language import TEXT_ENCODERS

KNOWN = {"--encoder": NAMES, "--text-encoder": TEXT_ENCODERS, "--format": tuple(FORMATS)}
"""Options that take any text -> their usual values."""


@dataclass(frozen=True)
class Values:
    """The values that can follow a word."""

    choices: tuple[str, ...] = ()
    is_file: bool = False
    """whether a path can follow; also for texts, since an encoder is a name or a folder"""
    is_many: bool = False
    """whether several values can follow"""


@dataclass(frozen=True)
class ShellOption:
    """An option, as shell completion needs it."""

    word: str
    text: str
    values: Values | None
    """None: a flag"""


@dataclass(frozen=True)
class ShellCommand:
    """A command and the words that can follow it."""

    text: str
    """what the command does"""
    options: tuple[ShellOption, ...]
    positional: Values | None
    """values of the positional arguments; None: the command has none"""


def read_commands() -> dict[str, ShellCommand]:
    """Return each command with the words that can follow it; `store verify` is one command."""
    return {name: _command(command) for name, command in list_commands().items()}


def _command(command: Any) -> ShellCommand:
    options = [o for o in options_of(command) if not o.is_positional]
    positional = [values_of(o.kind) for o in options_of(command) if o.is_positional]
    joined = Values(
        tuple(choice for values in positional for choice in values.choices),
        any(values.is_file for values in positional),
        is_many=True,
    )
    text = (inspect.getdoc(command) or "").partition("\n")[0]
    return ShellCommand(text, tuple(map(_option, options)), joined if positional else None)


def _option(option: Option) -> ShellOption:
    values = values_of(option.kind) if option.values else None
    if values and option.word in KNOWN:
        values = replace(values, choices=KNOWN[option.word])
    return ShellOption(option.word, option.text, values)


def values_of(kind: Any) -> Values:
    """Return the values of a type, for shell completion."""
    leaves = list(_leaves(kind))
    choices = tuple(leaf for leaf in leaves if isinstance(leaf, str) and leaf)
    return Values(choices, Path in leaves or str in leaves, _is_many(kind))


def _leaves(kind: Any) -> Iterator[Any]:
    """Yield the types and literal values that a type consists of."""
    if get_origin(kind) is None:
        yield kind
        return
    for argument in get_args(kind):
        if get_origin(kind) is Literal:
            yield str(argument)
        else:
            yield from _leaves(argument)


def _is_many(kind: Any) -> bool:
    if get_origin(kind) in (Union, types.UnionType):
        return any(map(_is_many, get_args(kind)))
    return get_origin(kind) is tuple
