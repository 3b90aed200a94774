"""Shell completion scripts for `strap`. They contain all words, so a TAB does not start Python."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Mapping

from strap.cli import COMMANDS
from strap.cli.shell_words import ShellCommand, ShellOption, Values

WIDTH = 80
"""Characters of a description beside a word."""
HELP = ShellOption("--help", "explain the command", None)


def write_bash(commands: Mapping[str, ShellCommand]) -> str:
    """Return the script for bash.

    If the script offers nothing, bash completes file names; its last lines switch that off where no
    file can follow.
    """
    groups = _groups(commands)
    first = " ".join(COMMANDS)
    lines = [f"'') choices='{first}' options='--help --version' ;;"]
    lines += [f"{shlex.quote(name)}) choices='{' '.join(of)}' ;;" for name, of in groups.items()]
    for name, command in commands.items():
        options = " ".join(option.word for option in (*command.options, HELP))
        lines.append(
            f"{shlex.quote(name)}) options='{options}' {_bash_values(command.positional)};;"
        )
    return BASH.format(
        groups="|".join(f"'{name}|'*" for name in groups),
        commands=_indented(lines, 8),
        values=_indented(_bash_options(commands), 8),
    )


def _bash_options(commands: Mapping[str, ShellCommand]) -> Iterator[str]:
    """Yield the lines of a `case`: one entry for all options with the same values."""
    alike: dict[Values, list[str]] = {}
    for name, command in commands.items():
        for option in command.options:
            if option.values:
                alike.setdefault(option.values, []).append(f"'{name} {option.word}'")
    for values, patterns in alike.items():
        takes = "many" if values.is_many else "one"
        pattern = "|\\\n".join(patterns)
        yield f"{pattern})\n    takes={takes} {_bash_values(values)};;"


def _bash_values(values: Values | None) -> str:
    if values is None:
        return ""
    return f"choices='{' '.join(values.choices)}' files={'yes' if values.is_file else ''} "


BASH = """\
# Completes `strap` in bash. Made by `strap completion bash`.
_strap() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} command='' option='' count=0 word i
    local options='' choices='' files='' takes=''
    [[ $current == = ]] && current=''
    # The command, the option before the cursor, and the number of values already after it.
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${{COMP_WORDS[i]}}
        case "$command|$word" in
            *'|=') ;;
            *'|--'*) option=$word count=0 ;;
            '|'*) command=$word ;;
            {groups}) command+=" $word" ;;
            *) ((count++)) ;;
        esac
    done
    # The words that can follow without an option, then those that can follow the option.
    case "$command" in
{commands}
    esac
    local alone=$choices files_alone=$files
    choices='' files=''
    case "$command $option" in
{values}
    esac
    if [[ -z $takes || ($takes == one && $count -gt 0) ]]; then
        choices=$alone files=$files_alone
    fi
    if [[ $current == -* || -z $choices$files && ($takes != one || $count -gt 0) ]]; then
        choices=$options
    fi
    COMPREPLY=($(compgen -W "$choices" -- "$current"))
    [[ -n $files ]] || compopt +o default 2>/dev/null
}}
complete -o default -F _strap strap
"""


def write_zsh(commands: Mapping[str, ShellCommand]) -> str:
    """Return the script for zsh."""
    lines = []
    for name, of in _groups(commands).items():
        described = " ".join(_zsh_quote(f"{one}:{_short(text)}") for one, text in of.items())
        lines += [f"{name}) commands=({described}) ;;"]
    first = (_zsh_quote(f"{name}:{_short(text)}") for name, text in COMMANDS.items())
    specs = []
    for name, command in commands.items():
        options = [_zsh_option(option) for option in (*command.options, HELP)]
        options += [f"*:value:{_zsh_action(command.positional)}"] if command.positional else []
        joined = " \\\n    ".join(map(_zsh_quote, options))
        specs.append(f"{shlex.quote(name)}) _arguments -S \\\n    {joined} ;;")
    return ZSH.format(
        commands=_indented(first, 8), groups=_indented(lines, 8), specs=_indented(specs, 8)
    )


def _zsh_option(option: ShellOption) -> str:
    text = "".join(f"\\{c}" if c in "[]:\\" else c for c in _short(option.text))
    if option.values is None:
        return f"{option.word}[{text}]"
    until = "*-*:" if option.values.is_many else ""  # values up to the next option
    return f"{option.word}[{text}]:{until}value:{_zsh_action(option.values)}"


def _zsh_action(values: Values) -> str:
    choices = " ".join(values.choices)
    if choices and values.is_file:
        return f"{{compadd {choices}; _files}}"
    return f"({choices})" if choices else "_files" if values.is_file else " "


def _zsh_quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


ZSH = """\
#compdef strap
# Completes `strap` in zsh. Made by `strap completion zsh`.
_strap() {{
    local -a commands
    local command
    commands=(
{commands}
    )
    while (( CURRENT > 2 )) && [[ ${{#commands}} -gt 0 ]]; do
        shift words
        (( CURRENT-- ))
        command+=${{command:+ }}$words[1]
        commands=()
        case $command in
{groups}
        esac
    done
    if [[ ${{#commands}} -gt 0 ]]; then
        _describe command commands
        return
    fi
    # An option that is being typed is not another value of the option before it.
    [[ $words[CURRENT] == -* ]] && words=($words[1] $words[CURRENT]) CURRENT=2
    case $command in
{specs}
    esac
}}
# In a file of $fpath this is the body of the function; otherwise the file is sourced.
if [[ $funcstack[1] == _strap ]]; then _strap "$@"; else compdef _strap strap; fi
"""


def write_fish(commands: Mapping[str, ShellCommand]) -> str:
    """Return the script for fish."""
    return FISH + "".join(f"complete -c strap {line}\n" for line in _fish_lines(commands))


def _fish_lines(commands: Mapping[str, ShellCommand]) -> Iterator[str]:
    yield "-f"  # files only where a line below says so
    for name, text in COMMANDS.items():
        yield f"-n '__strap_is' -a {name} -d {_fish_quote(_short(text))}"
    yield "-n '__strap_is' -l version -d 'print the version'"
    for name, of in _groups(commands).items():
        for one, text in of.items():
            yield f"-n '__strap_is {name}' -a {one} -d {_fish_quote(_short(text))}"
    for name, command in commands.items():
        if command.positional:
            yield f"-n '__strap_in {name}' {_fish_values(command.positional)}"
        for option in (*command.options, HELP):
            values = f"-r {_fish_values(option.values)} " if option.values else ""
            text = _fish_quote(_short(option.text))
            yield f"-n '__strap_in {name}' -l {option.word[2:]} {values}-d {text}"
            if option.values and option.values.is_many:
                after = f"-n '__strap_in {name}; and __strap_after {option.word}'"
                yield f"{after} {_fish_values(option.values)}"


def _fish_values(values: Values) -> str:
    files = "-F" if values.is_file else "-f"
    return f"{files} -a '{' '.join(values.choices)}'" if values.choices else files


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


FISH = """\
# Completes `strap` in fish. Made by `strap completion fish`.
function __strap_is -d 'whether exactly these words stand before the cursor'
    set -l words (commandline -opc)
    test "$words[2..-1]" = "$argv"
end
function __strap_in -d 'whether these words are the command'
    set -l words (commandline -opc)
    set -l last (math 1 + (count $argv))
    test (count $words) -ge $last; and test "$words[2..$last]" = "$argv"
end
function __strap_after -d 'whether this is the last option before the cursor'
    set -l options (string match -- '--*' (commandline -opc))
    test "$options[-1]" = "$argv"
end
complete -c strap -e
"""


def _groups(commands: Mapping[str, ShellCommand]) -> dict[str, dict[str, str]]:
    """Return the commands that have subcommands, each with its subcommands' descriptions."""
    groups: dict[str, dict[str, str]] = {}
    for name, command in commands.items():
        first, _, second = name.partition(" ")
        if second:
            groups.setdefault(first, {})[second] = command.text
    return groups


def _short(text: str) -> str:
    return textwrap.shorten(text, WIDTH, placeholder=" …")


def _indented(lines: Iterator[str] | list[str], width: int) -> str:
    return textwrap.indent("\n".join(lines), " " * width)
