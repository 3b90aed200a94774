"""Runs the small experiment with toys, in a process that a test kills."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.experiments.tables import KNOWN, toy_planner

from strap.experiments import scheduler
from strap.experiments.cells import list_cells
from strap.experiments.description import read_experiment
from strap.experiments.runner import RunSettings, run_cells


def run_toys(file: Path, data: Path, work: Path) -> int:
    """Run what the file describes; return the exit code."""
    # A job that a shell runs in the background ignores Ctrl-C, and so would its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    experiment = read_experiment(file, KNOWN)
    scheduler.TERMINATE_TIMEOUT = 2.0
    settings = RunSettings(trainings=3, evaluations=2, retrievals=2, share_gpu=False)
    planner = toy_planner(experiment, data, work)
    outcome = run_cells(list_cells(experiment), planner, settings)
    return 1 if outcome.failed else 0
