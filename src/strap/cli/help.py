"""The options of a command, read from its dataclass: for help texts, completion and suggestions."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from strap.errors import StrapError

WIDTH = 100
INDENT = 27
"""The column in which an option's description begins."""
METAVARS = {int: "N", float: "X", Path: "PATH", str: "TEXT", bool: ""}
EMPTY = inspect.Parameter.empty


@dataclass(frozen=True)
class Option:
    """One option or positional argument of a command."""

    name: str
    """name of the dataclass field"""
    word: str
    """`--top-k`, or `RUN` for a positional argument"""
    values: str
    """what follows the word: `N`, `a|b`, `PATH …`; empty for a flag"""
    text: str
    default: Any
    kind: Any
    """the type of its value"""
    is_positional: bool = False

    @property
    def is_required(self) -> bool:
        """Return whether a call without it is an error."""
        return self.default is EMPTY


def subcommands(command: Any) -> dict[str, Any]:
    """Return the subcommands of a command by name; empty if it has none."""
    if is_dataclass(command):
        hints = list(get_type_hints(command, include_extras=True).values())
        command = hints[0] if len(hints) == 1 else None
    while get_origin(command) is Annotated:
        command = get_args(command)[0]
    if get_origin(command) not in (Union, types.UnionType):
        return {}
    found: dict[str, Any] = {}
    for choice in get_args(command):
        kind, *marks = get_args(choice)
        found |= {mark.name: kind for mark in marks if getattr(mark, "name", None)}
    return found


@cache
def options_of(command: Any) -> tuple[Option, ...]:
    """Return the options of a command, including those of its nested option classes."""
    return tuple(_options(command, ""))


def _options(source: Any, prefix: str) -> Iterator[Option]:
    hints, texts = get_type_hints(source, include_extras=True), _texts(source)
    for entry in inspect.signature(source).parameters.values():
        kind, marks = _unmark(hints[entry.name])
        names = [mark.name for mark in marks if getattr(mark, "name", None) is not None]
        makers = [make() for mark in marks if (make := getattr(mark, "constructor_factory", None))]
        name = prefix + (names[0] if names else entry.name.replace("_", "-"))
        nested = makers[0] if makers else kind
        if makers or is_dataclass(nested):
            yield from _options(nested, f"{name}." if name else "")
            continue
        is_positional = tyro.conf.Positional in marks
        metavars = [mark.metavar for mark in marks if getattr(mark, "metavar", None)]
        word = f"--no-{name}" if entry.default is True else f"--{name}"
        if is_positional:
            word = metavars[0] if metavars else name.upper()
        values = "" if is_positional else _values(kind)
        text = texts.get(entry.name, "")
        yield Option(entry.name, word, values, text, _default(entry), kind, is_positional)


def _default(entry: inspect.Parameter) -> Any:
    return None if callable(entry.default) and entry.default is not EMPTY else entry.default


def _unmark(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split an annotated type into the type and its annotations."""
    marks: tuple[Any, ...] = ()
    while get_origin(hint) is Annotated:
        hint, *found = get_args(hint)
        marks += tuple(found)
    return hint, marks


def _values(kind: Any) -> str:
    """Return how the values of a type are written in a help text."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "|".join(str(value) for value in arguments if value != "")
    if origin in (Union, types.UnionType):
        kinds = [argument for argument in arguments if argument is not type(None)]
        return "|".join(dict.fromkeys(_values(argument) for argument in kinds))
    if origin is tuple:
        if Ellipsis in arguments:
            return f"{_values(arguments[0])} …"
        return " ".join(_values(argument) for argument in arguments)
    return METAVARS.get(kind, "TEXT")


def _texts(source: Any) -> dict[str, str]:
    """Return the description of each field of a class, or of each argument of a function."""
    if not inspect.isclass(source):
        return _texts_of_arguments(inspect.getdoc(source) or "")
    texts: dict[str, str] = {}
    for parent in reversed([base for base in source.__mro__ if is_dataclass(base)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(parent))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                text = _text_in(following)
                texts |= {statement.target.id: text} if text else {}
    return texts


def _text_in(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""


def _texts_of_arguments(docstring: str) -> dict[str, str]:
    block = docstring.partition("Args:")[2]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", block, flags=re.M)
    return {name: " ".join(text.split()) for name, text in entries}


def format_help(program: str, command: Any, width: int | None = None) -> str:
    """Return what `strap COMMAND --help` prints, by default as wide as the terminal."""
    width = width or min(WIDTH, shutil.get_terminal_size((WIDTH, 50)).columns)
    if choices := subcommands(command):
        return _format_choices(program, command, choices, width)
    options = options_of(command)
    positional = [option.word for option in options if option.is_positional]
    needed = [f"{o.word} {o.values}".rstrip() for o in options if _is_needed_word(o)]
    usage = " ".join(["usage: strap", program, *positional, *needed, "[options]"])
    lines = [*textwrap.wrap(usage, width, subsequent_indent="    "), ""]
    lines += [*_paragraphs(inspect.getdoc(command) or "", width), ""]
    examples: Sequence[str] = getattr(command, "EXAMPLES", ())
    if examples:
        lines += ["for example:", *(f"  {example}" for example in examples), ""]
    for title, members in _grouped(command, options).items():
        lines += [f"{title}:", *(line for o in members for line in _format(o, width)), ""]
    return "\n".join(lines).rstrip()


def _is_needed_word(option: Option) -> bool:
    return option.is_required and not option.is_positional


def _format_choices(program: str, command: Any, choices: Mapping[str, Any], width: int) -> str:
    about = inspect.getdoc(command) if is_dataclass(command) else ""
    lines = [f"usage: strap {program} COMMAND …", "", *([about, ""] if about else []), "commands:"]
    for name, kind in choices.items():
        first = (inspect.getdoc(kind) or "").partition("\n")[0]
        lines += textwrap.wrap(
            first, width, initial_indent=f"  {name:12}", subsequent_indent=" " * 14
        )
    return "\n".join(
        [*lines, "", f"Help for one command: strap {program} {next(iter(choices))} -h"]
    )


def _grouped(command: Any, options: Sequence[Option]) -> dict[str, list[Option]]:
    """Return the options by group title: the command's GROUPS, then the remaining options."""
    groups: Mapping[str, Sequence[str]] = getattr(command, "GROUPS", {})
    by_name = {option.name: option for option in options}
    listed = {title: [by_name[n] for n in names if n in by_name] for title, names in groups.items()}
    known = {name for names in groups.values() for name in names}
    rest = [option for option in options if option.name not in known]
    if rest:
        listed["more options" if groups else "options"] = rest
    return listed


def _paragraphs(text: str, width: int) -> Iterator[str]:
    for index, paragraph in enumerate(text.split("\n\n")):
        yield from ([""] if index else [])
        yield from textwrap.wrap(" ".join(paragraph.split()), width)


def _format(option: Option, width: int) -> list[str]:
    head = f"  {option.word} {option.values}".rstrip()
    text = option.text + _default_text(option)
    wrapped = textwrap.wrap(text, width - INDENT, break_on_hyphens=False) or [""]
    if len(head) < INDENT - 1:
        head, wrapped = head.ljust(INDENT) + wrapped[0], wrapped[1:]
    return [head, *(" " * INDENT + line for line in wrapped)]


def _default_text(option: Option) -> str:
    """Return the default in parentheses; "" if the text names it already or there is none."""
    if option.is_required or "default" in option.text or isinstance(option.default, bool):
        return ""
    if option.default in (None, "", ()):
        return ""
    value = option.default
    shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f" (default: {shown})"


def require_known_words(program: str, command: Any, words: Sequence[str]) -> None:
    """Raise an error for an unknown option, with the most similar known one."""
    known = {option.word for option in options_of(command)} | {"--help"}
    for word in words:
        if word == "--":
            return
        plain = "--" + word[2:].partition("=")[0].replace("_", "-")
        if not re.fullmatch(r"--[a-z][a-z-]*", plain) or not word.startswith("--"):
            continue
        if plain not in known:
            near = get_close_matches(plain, sorted(known), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            raise StrapError(
                f"strap {program} has no option {plain}: {hint}All of them: strap {program} --help"
            )


def require_positionals_first(program: str, command: Any, words: Sequence[str]) -> None:
    """Raise an error if an option with several values has consumed a positional argument.

    Without this check `strap embed --cameras front DATASET` would only report that DATASET is
    missing.
    """
    options = {option.word: option for option in options_of(command)}
    needed = [o.word for o in options.values() if o.is_positional and o.is_required]
    greedy: str | None = None
    n_expected, n_positional = 0, 0
    for word in words:
        if word.startswith("--"):
            plain, equals, _ = word.replace("_", "-").partition("=")
            option = options.get(plain)
            several = option is not None and option.values.endswith("…")
            greedy = greedy or (plain if several and not equals else None)
            n_expected = 0 if equals or option is None else _count_values(option)
        elif n_expected:
            n_expected -= 1
        else:
            n_positional += 1
    if greedy and n_positional < len(needed):
        lacking = needed[n_positional]
        raise StrapError(
            f"strap {program} found no {lacking}: {greedy} takes every word that follows; "
            f"give {lacking} first: strap {program} {' '.join(needed)} {greedy} …"
        )


def _count_values(option: Option) -> int:
    """Return the largest number of words that an option takes."""
    if option.values.endswith("…"):
        return sys.maxsize
    return len(option.values.split())
