"""Optical flow between frames that are a few steps apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from strap.extras import missing_extra
from strap.types import Array


def optical_flow(images: Array, horizon: int) -> Array:
    """Return the motion from each frame to the one `horizon` frames later, in pixels per frame.

    The method is dense inverse search (OpenCV's DIS) on grey images. For the last `horizon` frames
    there is no later frame at that distance, so they repeat the last flow before them. Robot
    motions are between −3 and 3 pixels per frame.

    Args:
        images: uint8 [t h w 3], upright.
        horizon: distance of the two frames; in a shorter trajectory, the longest distance.

    Returns:
        float16 [t h w 2]: motion to the right, motion downwards.
    """
    cv2 = _opencv()
    grey = [cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2GRAY) for image in images]
    search = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    flows = np.zeros((*images.shape[:3], 2), np.float16)
    step = min(horizon, len(grey) - 1)
    if step:
        for start in range(len(grey) - step):
            flows[start] = search.calc(grey[start], grey[start + step], None) / step
        flows[-step:] = flows[-step - 1]
    return flows


def _opencv() -> Any:
    try:
        import cv2
    except ImportError as error:
        raise missing_extra(
            "optical flow needs OpenCV", "train", instead="retrieve by 'br'"
        ) from error
    return cv2
