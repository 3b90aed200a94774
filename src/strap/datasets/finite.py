"""Numbers of a dataset that are NaN or infinite, and how messages name them."""

from __future__ import annotations

import numpy as np

from strap.types import Array


def first_fault(name: str, rows: Array, start: int = 0) -> str:
    """Return where the first NaN or infinite number of an array is; "" if there is none.

    >>> first_fault("actions", np.array([[0.0, 1.0], [2.0, np.nan]]))
    "frame 1, column 1 of 'actions' is nan"

    Args:
        name: the array's name.
        rows: its rows, one per frame.
        start: the number of the first row's frame.
    """
    if rows.dtype.kind != "f" or (good := np.isfinite(rows)).all():
        return ""
    place = tuple(np.argwhere(~good)[0])
    column = ", ".join(str(number) for number in place[1:]) or "0"
    return f"frame {start + place[0]}, column {column} of '{name}' is {rows[place]}"


def explain_fault(out: object, trajectory: str, fault: str) -> str:
    """Return the warning that a written dataset has such a number."""
    return (
        f"'{out}': trajectory '{trajectory}', {fault}; it is written as it is, and policies cannot "
        "be trained on it: correct it, or leave the trajectory out (further ones are not reported)"
    )
