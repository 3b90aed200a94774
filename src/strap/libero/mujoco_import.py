"""Import MuJoCo, with a helpful error if its OpenGL backend does not load.

If MUJOCO_GL is set, `import mujoco` immediately loads the library of that backend.
"""

from __future__ import annotations

import os

from strap.errors import StrapError
from strap.libero.rendering.backend import INSTALL_OPENGL

__all__ = ["mujoco"]

try:
    import mujoco
except ModuleNotFoundError:
    raise
except (AttributeError, ImportError, OSError, RuntimeError) as error:
    name = os.environ.get("MUJOCO_GL")
    if not name:
        raise
    raise StrapError(
        f"MuJoCo cannot load the OpenGL backend that MUJOCO_GL={name} names ({error}): set it to "
        f"egl or osmesa, and install that: {INSTALL_OPENGL}; or unset MUJOCO_GL, so that strap "
        "looks for a backend that works"
    ) from error
