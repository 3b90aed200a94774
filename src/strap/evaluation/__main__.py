"""`python -m strap.evaluation CKPT --suite libero_10 --task NAME …`: without the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from strap.errors import StrapError
from strap.evaluation.report import run_and_report
from strap.evaluation.results import EvaluationSettings


def main(words: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m strap.evaluation", description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", type=Path)
    defaults = EvaluationSettings()
    for entry in fields(EvaluationSettings):
        value = getattr(defaults, entry.name)
        flag = f"--{entry.name}"
        if isinstance(value, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=value)
        else:
            parser.add_argument(flag, type=type(value), default=value)
    call = parser.parse_args(words)
    chosen = {entry.name: getattr(call, entry.name) for entry in fields(EvaluationSettings)}
    try:
        print(run_and_report(call.checkpoint, EvaluationSettings(**chosen), call.out, call.against))
    except StrapError as error:
        print(f"strap: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
