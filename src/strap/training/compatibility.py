"""Choose the features of trajectories that a policy sees; check that all trajectories have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strap.errors import StrapError, unknown
from strap.types import Trajectory, short_name


def choose_keys(trajectory: Trajectory, chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the proprioception keys to use: the chosen ones, or else all.

    Without a choice, `state` is left out if it is no larger than the other keys together.
    """
    known = trajectory.proprioception
    by_short = {short_name(key): key for key in known}
    if chosen:
        for key in chosen:
            if short_name(key) not in by_short:
                raise unknown("proprioception", key, by_short)
        return tuple(by_short[short_name(key)] for key in chosen)
    keys = tuple(known)
    others = sum(known[key].shape[1] for key in keys if short_name(key) != "state")
    if "state" in by_short and others >= known[by_short["state"]].shape[1]:
        return tuple(key for key in keys if short_name(key) != "state")
    return keys


def require_same_features(
    trajectory: Trajectory, first: Trajectory, cameras: Sequence[str], keys: Sequence[str]
) -> None:
    """Raise if a trajectory lacks a feature of the first one that the policy will see."""
    if trajectory.actions.shape[1:] != first.actions.shape[1:]:
        raise StrapError(
            f"trajectory '{trajectory.id}' has actions of size {trajectory.actions.shape[1]}, "
            f"'{first.id}' of {first.actions.shape[1]}: one policy cannot learn from both"
        )
    for name in cameras:
        trajectory.camera(name)
    sizes = _sizes(trajectory)
    for key in keys:
        size = first.proprioception[key].shape[1]
        if sizes.get(short_name(key)) != size:
            raise StrapError(
                f"trajectory '{trajectory.id}' has no proprioception '{short_name(key)}' of size "
                f"{size}, which '{first.id}' has: choose with --proprioception those that they "
                "share"
            )


def _sizes(trajectory: Trajectory) -> Mapping[str, int]:
    return {short_name(key): array.shape[1] for key, array in trajectory.proprioception.items()}
