"""The `strap` command. Each subcommand is a module of this package, imported when it is called."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import import_module
from typing import Any, TextIO

from strap import __version__
from strap.errors import StrapError, printable, unknown
from strap.extras import explain_missing

COMMANDS = {
    "demo": "try retrieval and training on sample data",
    "retrieve": "find the parts of big datasets that look like your demonstrations",
    "view": "look at runs, rollouts and datasets in the browser; keep and reject matches",
    "report": "write a run's page as one file, to keep or to mail",
    "figures": "draw a retrieval for a paper or a talk",
    "score": "score a retrieval by what the robot was doing in each frame",
    "cache": "decode datasets once, for many training runs",
    "train": "train a policy on your demonstrations and the segments retrieved for them",
    "evaluate": "roll a policy out in the simulator",
    "serve": "serve a policy to robots, over openpi's websocket protocol",
    "experiment": "run a table of tasks × methods × K × encoders × seeds, and report it",
    "embed": "turn each frame of a dataset into a vector, once",
    "store": "maintain embedding stores: info, verify, merge, gc, sketch",
    "segment": "cut demonstrations into sub-trajectories",
    "inspect": "show what is in a dataset",
    "convert": "write a dataset in another format",
    "export": "write a retrieval in a form that other trainers read",
    "libero": "record scripted demonstrations in LIBERO (collect), measure their success (survey)",
    "doctor": "check what works on this machine, and show how to install the rest",
    "completion": "let TAB complete commands, options and values in bash, zsh or fish",
}

LINES = "\n"
"""The only control character that our own messages contain."""

EPILOG = """\
Help for one command: strap retrieve -h
Exit codes: 0 done, 1 a part failed (experiment, libero collect), 2 an error in the input or the
call, 130 interrupted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    warnings.showwarning = _show_warning
    if sys.stderr.isatty():
        _show_log()
    try:
        with redirect_stdout(_Printable(sys.stdout)) as output:
            code = _run(words)
            output.flush()
        return code
    except StrapError as error:
        return _say(error)
    except ModuleNotFoundError as error:
        missing = explain_missing(error, words[0])
        if missing is None:
            raise
        return _say(missing)
    except KeyboardInterrupt:
        print("strap: interrupted; run the same command again to continue", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output (`| head`) has exited, which is not an error.
        sys.stderr.close()
        return 0


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if words[0] in ("-V", "--version"):
        print(f"strap {__version__}")
        return 0
    if words[0] not in COMMANDS:
        raise unknown("command", words[0], COMMANDS)
    return _call(words[0], words[1:])


def _say(error: StrapError) -> int:
    print(f"strap: error: {printable(str(error), keep=LINES)}", file=sys.stderr)
    return 2


def overview() -> str:
    """Return what `strap -h` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name.ljust(width)}  {text}" for name, text in COMMANDS.items()]
    head = "usage: strap COMMAND …\n\nRobot sub-trajectory retrieval for augmented policy learning."
    return "\n".join([head, "", "commands:", *lines, "", EPILOG])


def _call(name: str, words: Sequence[str]) -> int:
    from strap.cli.help import (
        format_help,
        require_known_words,
        require_positionals_first,
        subcommands,
    )

    command: Any = import_module(f"strap.cli.{name}").Command
    program, chosen, rest = name, command, list(words)
    if rest and (kind := subcommands(command).get(rest[0])):
        program, chosen, rest = f"{name} {rest[0]}", kind, rest[1:]
    if any(word in ("-h", "--help") for word in rest):
        print(format_help(program, chosen))
        return 0
    if not subcommands(chosen):
        require_known_words(program, chosen, rest)
        require_positionals_first(program, chosen, rest)
    return int(parse(command, name, words).run() or 0)


def parse(command: Any, name: str, words: Sequence[str]) -> Any:
    """Parse the words into a command object; print an error and exit if they are wrong."""
    import tyro

    config = (tyro.conf.FlagCreatePairsOff,)
    return tyro.cli(command, prog=f"strap {name}", args=list(words), config=config)


class _Notes(logging.Handler):
    """Prints log messages as notes, above the progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message."""
        print(f"strap: note: {record.getMessage()}", file=sys.stderr)


def _show_log() -> None:
    """Show what the package logs: why a command takes a while."""
    log = logging.getLogger("strap")
    if not log.handlers:
        log.addHandler(_Notes())
        log.setLevel(logging.INFO)


class _Printable(io.TextIOBase):
    """Standard output that escapes control characters, which file contents could smuggle in."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the text with its control characters escaped."""
        with _reporting_write_errors(self.stream):
            return self.stream.write(printable(text, keep=LINES))

    def flush(self) -> None:
        """Pass on what was written."""
        with _reporting_write_errors(self.stream):
            self.stream.flush()

    def close(self) -> None:
        """Leave the stream open: the caller owns it."""

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return not self.stream.closed and self.stream.isatty()


@contextmanager
def _reporting_write_errors(stream: TextIO) -> Iterator[None]:
    """Raise a StrapError if the stream cannot be written, for example on a full disk."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        # Flushing the stream's buffer at exit would fail again.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise StrapError(f"the output cannot be written: {error.strerror or error}") from error


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"strap: note: {printable(str(message), keep=LINES)}", file=sys.stderr)
