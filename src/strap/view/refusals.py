"""Why a request is not answered, besides what is wrong with the data."""

from __future__ import annotations

from strap.errors import StrapError


class NotThereError(StrapError):
    """Something was asked for that is not there."""


class BadRequestError(StrapError):
    """What was asked makes no sense: a number out of range, a word that is not known."""
