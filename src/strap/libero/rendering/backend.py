"""Find a headless OpenGL backend for MuJoCo by trying each one.

Every trial runs in a subprocess: a failing backend often crashes the interpreter, and MuJoCo binds
to one backend for the lifetime of a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

from strap.errors import StrapError

BACKENDS = ("egl", "osmesa")
INSTALL_OPENGL = "apt-get install -y libegl1 libgl1-mesa-dri   (or: apt-get install -y libosmesa6)"
# The environment variable with the backend that a parent process has tried successfully.
TRIED_BACKEND = "STRAP_GL_PROBED"

_TRIAL = """
import mujoco
model = mujoco.MjModel.from_xml_string(
    "<mujoco><worldbody><light pos='0 0 3'/>"
    "<geom type='sphere' size='.5' rgba='1 .5 0 1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 64, 64) as renderer:
    renderer.update_scene(data)
    print("brightness", renderer.render().max())
"""


@cache
def try_backend(name: str) -> str:
    """Render a sphere in a subprocess with MUJOCO_GL=name; return the error, or ''."""
    try:
        result = subprocess.run(
            [sys.executable, "-c", _TRIAL],
            env={**os.environ, "MUJOCO_GL": name, "PYOPENGL_PLATFORM": name},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "no frame within 120 s"
    words = result.stdout.split()
    if result.returncode == 0 and words[:1] == ["brightness"] and int(words[1]) > 0:
        return ""
    lines = [line for line in result.stderr.strip().splitlines() if line.strip()]
    return lines[-1] if lines else f"exit status {result.returncode}"


def select_backend() -> str:
    """Return the first backend that renders, and set MUJOCO_GL to it for this process.

    The user's MUJOCO_GL is tried first. If no backend renders, a StrapError names the packages to
    install.
    """
    if tried := os.environ.get(TRIED_BACKEND):
        return tried
    preferred = os.environ.get("MUJOCO_GL", "").lower().strip()
    failures = []
    for name in sorted(BACKENDS, key=lambda name: name != preferred):
        failure = try_backend(name)
        if not failure:
            os.environ.update(MUJOCO_GL=name, PYOPENGL_PLATFORM=name)
            os.environ[TRIED_BACKEND] = name
            return name
        failures.append(f"{name}: {failure}")
    raise StrapError(
        f"no headless OpenGL backend renders ({'; '.join(failures)}): "
        f"LIBERO's cameras need EGL or OSMesa. Install one: {INSTALL_OPENGL}"
    )
