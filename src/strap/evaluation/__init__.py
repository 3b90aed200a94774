"""Evaluate policies in a simulator: rollouts, records, intervals, paired comparisons.

Importing this package does not load torch, which the environments' processes don't need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strap.evaluation.results import (
        Evaluation,
        EvaluationSettings,
        compare,
        evaluate,
        open_evaluation,
    )
    from strap.evaluation.statistics import Comparison, mcnemar, wilson

_MODULES = {
    "Comparison": "statistics",
    "Evaluation": "results",
    "EvaluationSettings": "results",
    "compare": "results",
    "evaluate": "results",
    "mcnemar": "statistics",
    "open_evaluation": "results",
    "wilson": "statistics",
}

__all__ = [
    "Comparison",
    "Evaluation",
    "EvaluationSettings",
    "compare",
    "evaluate",
    "mcnemar",
    "open_evaluation",
    "wilson",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'strap.evaluation' has no attribute '{name}'")
    return getattr(import_module(f"strap.evaluation.{_MODULES[name]}"), name)
