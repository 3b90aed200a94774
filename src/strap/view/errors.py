"""Errors of requests, as opposed to errors in the data."""

from __future__ import annotations

from strap.errors import StrapError


class NotThereError(StrapError):
    """The error for a request of something that does not exist (404)."""


class BadRequestError(StrapError):
    """The error for an invalid request, such as a number out of range or an unknown name (400)."""
