"""What came of the cases, as text."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

from tests.fuzzing.cases import CONTENT, LAYOUT, OUTCOMES, Outcome, log_of, read_case


class Summary:
    """Counts outcomes by input, accepted changes by kind, failures by place."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        """input -> outcome -> cases"""
        self.accepted: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        """(input, kind of damage) -> outcome -> cases that were read, and differ"""
        self.failures: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        """(input, outcome, what without its numbers) -> cases"""
        self._first: dict[str, tuple[int, str]] = {}
        self.slowest = 0.0
        self.largest = 0

    def add(self, number: int, subject: str, outcome: Outcome) -> None:
        """Count one case."""
        self.outcomes[subject][outcome.result] += 1
        self.slowest = max(self.slowest, outcome.seconds)
        self.largest = max(self.largest, outcome.resident)
        if outcome.result in (CONTENT, LAYOUT):
            self.accepted[subject, outcome.kind][outcome.result] += 1
        if outcome.is_failure:
            what = re.sub(r"'[^']*'|\d+", "…", outcome.message)[:160]
            key = (subject, outcome.result, what)
            self.failures[key].append(number)
            self._first.setdefault(str(key), (number, f"{outcome.kind} → {outcome.message[:300]}"))

    def __str__(self) -> str:
        parts = [self._table(), self._accepted(), self._failures()]
        return "\n\n".join(part for part in parts if part)

    def _table(self) -> str:
        names = sorted(self.outcomes)
        rows = [["input", "cases", *OUTCOMES]]
        for name in names:
            counted = self.outcomes[name]
            rows.append([name, counted.total(), *(counted[result] for result in OUTCOMES)])
        total = sum((self.outcomes[name] for name in names), Counter())
        rows.append(["all", total.total(), *(total[result] for result in OUTCOMES)])
        widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "  ".join(str(c).rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows
        ]
        used = f"at most {self.slowest:.1f} s and {self.largest >> 20} MiB a case"
        return "\n".join([*lines, used])

    def _accepted(self) -> str:
        lines = ["accepted and different:"] if self.accepted else []
        for (subject, kind), counted in sorted(self.accepted.items()):
            told = ", ".join(f"{count} {result}" for result, count in sorted(counted.items()))
            lines.append(f"  {subject}, {kind}: {told}")
        return "\n".join(lines)

    def _failures(self) -> str:
        if not self.failures:
            return "no failure"
        lines = [f"{sum(map(len, self.failures.values()))} failures:"]
        for key, numbers in sorted(self.failures.items(), key=lambda item: -len(item[1])):
            number, message = self._first[str(key)]
            lines.append(f"  {len(numbers)} × {key[0]}, {key[1]}: {message}")
            lines.append(f"      python tests/fuzz.py --case {self.seed}.{number}")
        return "\n".join(lines)


def show_case(folder: Path, subject: str, outcome: Outcome) -> str:
    """One case in full: the damage, the outcome, every error with its traceback."""
    said = read_case(folder)
    lines = [
        f"input    {subject}",
        f"damage   {said['kind']}",
        f"file     {said['file'] or '(the input itself)'}",
        f"outcome  {outcome.result}: {outcome.message}",
        f"used     {outcome.seconds:.2f} s, {outcome.resident >> 20} MiB",
        f"files    {folder}",
    ]
    for error in said["errors"]:
        lines += ["", f"{error['command']}:", error["traceback"].rstrip()]
    printed = log_of(folder).read_text(errors="replace").strip()
    return "\n".join([*lines, *(["", "printed:", printed] if printed else [])])
