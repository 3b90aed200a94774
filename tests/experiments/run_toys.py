"""Runs the small experiment with toys: `python run_toys.py FILE DATA WORK`; for killing."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.experiments.tables import KNOWN, toy_planner

from strap.experiments import scheduler
from strap.experiments.cells import list_cells
from strap.experiments.description import read_experiment
from strap.experiments.runner import RunSettings, run_cells

if __name__ == "__main__":
    # A job that a shell runs in the background ignores Ctrl-C, and so would its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    file, data, work = map(Path, sys.argv[1:4])
    experiment = read_experiment(file, KNOWN)
    scheduler.PATIENCE = 2.0
    settings = RunSettings(trainings=3, evaluations=2, retrievals=2, share_gpu=False)
    planner = toy_planner(experiment, data, work)
    outcome = run_cells(list_cells(experiment), planner, settings)
    sys.exit(1 if outcome.failed else 0)
