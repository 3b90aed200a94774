"""Drawing a scene with MuJoCo's own renderer, as robosuite's camera observations are drawn."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray


class Painter:
    """Renders one model's cameras at one size, bottom row first."""

    def __init__(self, model: Any, data: Any, size: int, *, antialias: bool) -> None:
        self._model, self._data, self._size = model, data, size
        model.vis.quality.offsamples = 4 if antialias else 0
        model.vis.global_.offwidth = model.vis.global_.offheight = size
        self._gl = mujoco.GLContext(size, size)
        self._gl.make_current()
        self._scene = mujoco.MjvScene(model, maxgeom=1000)
        self._options = mujoco.MjvOption()
        self._options.geomgroup[0] = 0  # collision shapes
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._perturbation = mujoco.MjvPerturb()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._view = mujoco.MjrRect(0, 0, size, size)

    def render(self, camera: str) -> NDArray[np.uint8]:
        """The image [size size 3] of a camera, by MuJoCo's name."""
        self._gl.make_current()
        self._camera.fixedcamid = self._model.camera(camera).id
        mujoco.mjv_updateScene(
            self._model,
            self._data,
            self._options,
            self._perturbation,
            self._camera,
            mujoco.mjtCatBit.mjCAT_ALL,
            self._scene,
        )
        mujoco.mjr_render(self._view, self._scene, self._context)
        image = np.empty((self._size, self._size, 3), np.uint8)
        mujoco.mjr_readPixels(image, None, self._view, self._context)
        return image

    def close(self) -> None:
        """Free the OpenGL objects."""
        if self._context is not None:
            self._gl.make_current()
            self._context.free()
            self._gl.free()
            self._context = None
