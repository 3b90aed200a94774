"""A user's choices among a run's matches, in RUN/choices.json: accepted, rejected, weighted.

The file holds the marks of matches and tasks, the steps that undo and redo them, and a fingerprint
of the matches. To matches with another fingerprint the choices are never applied.
"""

from strap.choices.files import (
    ChoicesMode,
    carry_over,
    change_choices,
    choose_matches,
    open_choices,
)
from strap.choices.marks import Choices, ChosenMatches, fingerprint_matches

__all__ = [
    "Choices",
    "ChoicesMode",
    "ChosenMatches",
    "carry_over",
    "change_choices",
    "choose_matches",
    "fingerprint_matches",
    "open_choices",
]
