"""The help of all commands as a page: `python -m strap.cli.page > docs/commands.md`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from strap.cli import COMMANDS
from strap.cli.help import WIDTH, format_help, subcommands


def format_page(commands: Mapping[str, Any]) -> str:
    """Return the help of all commands as a page, `docs/commands.md`."""
    lines = ["# Commands", "", "What `strap COMMAND --help` prints. To write this page again:", ""]
    lines += ["<!-- run by tests/test_help.py::test_the_page_of_commands_is_what_they_print -->"]
    lines += ["```sh", "python -m strap.cli.page > docs/commands.md", "```", ""]
    for name, command in commands.items():
        lines += [f"## strap {name}", "", "```text", format_help(name, command, WIDTH), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def list_commands() -> dict[str, Any]:
    """Return every command that has options; subcommands by both words, as `store verify`."""
    found: dict[str, Any] = {}
    for name in COMMANDS:
        command = import_module(f"strap.cli.{name}").Command
        choices = {f"{name} {key}": kind for key, kind in subcommands(command).items()}
        found |= choices or {name: command}
    return found


if __name__ == "__main__":
    print(format_page(list_commands()), end="")
