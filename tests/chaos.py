"""Commands killed at random moments: the next run must end with the undisturbed result.

    make chaos                                   300 kills, a quarter of an hour
    python tests/chaos.py --minutes 2 --only convert-lerobot
    python tests/chaos.py --seed 0 --trial convert-lerobot:kill:17

Each trial starts a command in an empty folder, kills its whole process group with SIGKILL (at a
random moment of the time it takes, or just before a chosen change of a file), perhaps kills the
next run too, and then runs it to its end: exit code 0, the same files with the same content as when
nobody disturbs it (tests/chaos_results.py says what may differ), none besides. `twice` starts a
command twice at the same time into one folder; `full` takes its disk away, and gives it back.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it has only this folder

from tests.chaos_children import Server
from tests.chaos_commands import BY_NAME, Command, chosen, simulator_is_missing
from tests.chaos_trials import FAULTS, KINDS, Outcome, Session, Trial, run_trial


class Report:
    """Counts by command, and every fault as it is found."""

    def __init__(self) -> None:
        self.trials: Counter[tuple[str, str]] = Counter()
        self.kills: Counter[str] = Counter()
        self.equal: Counter[tuple[str, str]] = Counter()
        self.faults: Counter[tuple[str, str]] = Counter()

    @property
    def total_kills(self) -> int:
        """Of all commands together."""
        return sum(self.kills.values())

    def add(self, trial: Trial, outcome: Outcome) -> None:
        """Count a trial; say what was wrong and how to see it again."""
        name = trial.command.name
        self.trials[name, trial.kind] += 1
        self.kills[name] += outcome.kills
        self.equal[name, trial.kind] += not outcome.faults
        for fault in {kind for kind, _ in outcome.faults}:
            self.faults[name, fault] += 1
        if outcome.faults:
            print(f"{trial.id} ({', then '.join(outcome.what)})")
            for kind, text in outcome.faults:
                print(f"  {kind}: {text}")
            print(f"  python tests/chaos.py --seed {trial.seed} --trial {trial.id}", flush=True)

    def __str__(self) -> str:
        head = ("command", "kills", "equal", "twice", "full", *FAULTS)
        rows = [head]
        for name in dict.fromkeys(name for name, _ in self.trials):
            shares = [f"{self.equal[name, k]}/{self.trials[name, k]}" for k in KINDS]
            faults = [str(self.faults[name, fault]) for fault in FAULTS]
            rows.append((name, str(self.kills[name]), *shares, *faults))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True))
            for row in rows
        )


def trials(
    given: argparse.Namespace, commands: Sequence[Command], report: Report
) -> Iterator[Trial]:
    """Kills spread over the commands by their shares, then both other kinds."""
    if given.trial:
        name, kind, number = given.trial.split(":")
        yield Trial(BY_NAME[name], kind, int(number), given.seed)
        return
    whole = sum(command.share for command in commands)
    quotas = {c.name: max(1.0, given.kills * c.share / whole) for c in commands}
    begun: Counter[str] = Counter()
    end = time.monotonic() + 60 * given.minutes
    while time.monotonic() < end:
        open_ones = [c for c in commands if report.kills[c.name] < quotas[c.name]]
        if not open_ones:
            break
        command = min(open_ones, key=lambda c: begun[c.name] / quotas[c.name])
        yield Trial(command, "kill", begun[command.name], given.seed)
        begun[command.name] += 1
    for number in range(given.others):
        for command in commands:
            if time.monotonic() < end and not (command.simulator and number):
                yield Trial(command, "twice", number, given.seed)
                yield Trial(command, "full", number, given.seed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials; 1 where one found a fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--others", type=int, default=4, help="twice and full, of each command")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="commands, or how they begin")
    parser.add_argument("--trial", help="repeat this one")
    parser.add_argument("--work", type=Path, help="a folder to keep (default: a temporary one)")
    given = parser.parse_args(arguments)
    commands = chosen([given.trial.split(":")[0]] if given.trial else given.only)
    if any(command.simulator for command in commands) and (why := simulator_is_missing()):
        print(f"evaluate and collect are left out, the simulator does not start: {why}")
        commands = [command for command in commands if not command.simulator]
    report = Report()
    training = any(command.name in ("train", "evaluate") for command in commands)
    with working_folder(given.work) as work, Server(training=training) as server:
        session = Session(work, server)
        for trial in trials(given, commands, report):
            if sys.stderr.isatty():
                print(f"\x1b[K{report.total_kills} kills; {trial.id}", end="\r", file=sys.stderr)
            report.add(trial, run_trial(session, trial))
    print(report)
    print(f"seed {given.seed}: {report.total_kills} kills, ", end="")
    print("every second run as undisturbed" if not report.faults else "FAULTS ABOVE")
    return 1 if report.faults else 0


@contextmanager
def working_folder(given: Path | None) -> Iterator[Path]:
    """The folder given, or one that is removed."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="strap-chaos-") as folder:
        yield Path(folder).resolve()


if __name__ == "__main__":
    sys.exit(main())
