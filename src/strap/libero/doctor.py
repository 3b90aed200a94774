"""Check the simulator for `strap doctor` by rendering one frame of one task."""

from __future__ import annotations

from dataclasses import dataclass

from strap.errors import StrapError
from strap.libero.environment import LiberoEnv
from strap.libero.rendering.backend import INSTALL_OPENGL, select_backend
from strap.libero.tasks import find_task


@dataclass(frozen=True)
class RenderCheck:
    """The result of rendering a frame: the OpenGL backend, the task and the frame's brightness."""

    backend: str
    task: str
    brightness: float  # mean of the frame's values, 0 to 255


def render_check(*, suite: str = "libero_90", task: int = 0, size: int = 128) -> RenderCheck:
    """Render one frame of one task; raise StrapError if rendering fails or the frame is black."""
    backend = select_backend()
    chosen = find_task(suite, task)
    with LiberoEnv(chosen, size=size) as env:
        env.sample(0)
        brightness = float(env.render("agentview").mean())
    if brightness < 1.0:
        raise StrapError(
            f"{backend} rendered a black frame of '{chosen.name}' (mean {brightness:.2f}): "
            f"a frame must show the scene. Try the other backend: {INSTALL_OPENGL}"
        )
    return RenderCheck(backend, chosen.name, brightness)
