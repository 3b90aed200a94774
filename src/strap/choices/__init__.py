"""What a user accepted, rejected and re-weighed among a run's matches: RUN/choices.json.

The file holds what is said of matches and tasks, the steps that undo and redo it, and a fingerprint
of the matches it is said of: of others nothing is known, so it is never applied to them.
"""

from strap.choices.files import Use, carry_over, change_choices, choose_matches, open_choices
from strap.choices.marks import Choices, Chosen, fingerprint_matches

__all__ = [
    "Choices",
    "Chosen",
    "Use",
    "carry_over",
    "change_choices",
    "choose_matches",
    "fingerprint_matches",
    "open_choices",
]
