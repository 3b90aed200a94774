"""Which triangles of a scene can show in a picture; only those are handed to the renderer.

LIBERO's scenes have 400 000 triangles and its pictures 16 000 pixels: most triangles face away,
lie outside the view, or fall between the pixels' centres, where none of them colours anything.
A renderer without a GPU would still transform and light every one of their corners. `Sieve` finds
the few that can show and has MuJoCo compile its display lists of these alone, which leaves every
pixel as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from strap.jit import njit

Array = NDArray[np.float64]

MESH = int(mujoco.mjtGeom.mjGEOM_MESH)
# Renderers round corners to 1/256 of a pixel; twice that is allowed for.
ROUNDING = 1 / 128
NEAR = 1e-3  # metres before the camera; nearer things are never between the pixels
FEW = 3  # a triangle over more pixels than this in one direction is kept without a closer look
_CORNERS = np.array(list(product((-1.0, 1.0), repeat=3)))


@dataclass(frozen=True)
class View:
    """A camera, or a camera seen in a mirror."""

    clip: Array  # [4 4] from the world to clip coordinates
    window: tuple[float, float, float, float]  # pixels: left, bottom, right, top
    mirrored: bool = False


class Sieve:
    """Keeps a render context's meshes down to the triangles that can show.

    The model's triangles are the sieve's until `restore`: a model has one sieve at a time.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._faces = model.mesh_face.copy()
        self._normals = model.mesh_facenormal.copy()
        self._texture = model.mesh_facetexcoord.copy()
        self._counts = model.mesh_facenum.copy()
        self._hulls = model.mesh_graphadr.copy()
        self._points = np.empty((3, int(model.mesh_vertnum.max(initial=1))), np.float32)
        self._boxes = _bounds(model)
        self._compiled: dict[int, bytes] = {}  # what each mesh was last looked at from
        self._keep = np.zeros(len(self._faces), np.bool_)

    def empty(self) -> None:
        """Leave a render context that is made now without meshes: `apply` compiles them."""
        self.model.mesh_facenum[:] = 0

    def apply(self, context: Any, data: Any, geoms: Iterable[int], views: list[View]) -> None:
        """Compile what shows of some shapes in any of the views; the rest is left as it was."""
        model = self.model
        wanted: dict[int, list[Array]] = {}
        for geom in geoms:
            wanted.setdefault(int(model.geom_dataid[geom]), []).append(_pose(data, int(geom)))
        windows = np.array([view.window for view in views])
        # The hulls of meshes are never drawn, but would be compiled with them.
        model.mesh_graphadr[:] = -1
        for mesh, poses in wanted.items():
            clips = np.array([[view.clip @ pose for pose in poses] for view in views])
            sight = clips.tobytes() + windows.tobytes()
            if self._compiled.get(mesh) == sight:
                continue
            self._compiled[mesh] = sight
            before = int(model.mesh_facenum[mesh])
            if self._select(mesh, clips, views) or before:
                mujoco.mjr_uploadMesh(model, context, mesh)
        model.mesh_graphadr[:] = self._hulls

    def _select(self, mesh: int, clips: Array, views: list[View]) -> int:
        """Write the triangles of a mesh that can show into the model; how many there are."""
        model = self.model
        start = int(model.mesh_faceadr[mesh])
        stop = start + int(self._counts[mesh])
        first = int(model.mesh_vertadr[mesh])
        corners = model.mesh_vert[first : first + int(model.mesh_vertnum[mesh])]
        self._keep[start:stop] = False
        for view, shapes in zip(views, clips, strict=True):
            window = np.array(view.window, np.float32)
            for clip in shapes:
                if _beside(self._boxes[mesh] @ clip.T, view.window):
                    continue
                _project(corners, clip.astype(np.float32), self._points)
                _sift(self._faces, start, stop, self._points, window, view.mirrored, self._keep)
        count = _compact(
            self._keep, start, stop, self._faces, self._normals, self._texture,
            model.mesh_face, model.mesh_facenormal, model.mesh_facetexcoord,
        )  # fmt: skip
        model.mesh_facenum[mesh] = count
        return count

    def restore(self) -> None:
        """Give the model its triangles back."""
        model = self.model
        model.mesh_face[:], model.mesh_facenum[:] = self._faces, self._counts
        model.mesh_facenormal[:], model.mesh_facetexcoord[:] = self._normals, self._texture


def camera_view(scene: Any, size: int) -> View:
    """The view of a scene's camera for a square picture of `size` pixels."""
    camera, other = scene.camera  # MuJoCo keeps two eyes; a picture is taken from between them
    position = (np.array(camera.pos, float) + np.array(other.pos, float)) / 2
    forward, up = np.array(camera.forward, float), np.array(camera.up, float)
    turn = np.stack([np.cross(forward, up), up, -forward])
    look = np.eye(4)
    look[:3, :3], look[:3, 3] = turn, -turn @ position
    near, far = camera.frustum_near, camera.frustum_far
    top, bottom = camera.frustum_top, camera.frustum_bottom
    high = top - bottom
    lens = np.array(
        [
            [2 * near / high, 0.0, 0.0, 0.0],
            [0.0, 2 * near / high, (top + bottom) / high, 0.0],
            [0.0, 0.0, (far + near) / (near - far), 2 * far * near / (near - far)],
            [0.0, 0.0, -1.0, 0.0],
        ]
    )
    pixels = np.array(
        [[size / 2, 0, 0, size / 2], [0, size / 2, 0, size / 2], [0, 0, 1, 0], [0, 0, 0, 1]]
    )
    # In pixels already, still to be divided by the last coordinate.
    return View(pixels @ lens @ look, (0.0, 0.0, float(size), float(size)))


def mirrored_view(view: View, model: Any, data: Any, geom: int) -> View:
    """What shows in a mirror: the upper face of a box, or a plane."""
    pose, size = _pose(data, geom), model.geom_size[geom]
    plane = int(model.geom_type[geom]) == int(mujoco.mjtGeom.mjGEOM_PLANE)
    normal = pose[:3, 2]
    point = pose[:3, 3] + (0.0 if plane else size[2]) * normal
    flip = np.eye(4)
    flip[:3, :3] -= 2 * np.outer(normal, normal)
    flip[:3, 3] = 2 * normal * float(normal @ point)
    window = view.window
    if not plane:
        ends = np.c_[_CORNERS * size, np.ones(8)] @ (view.clip @ pose).T
        if np.all(ends[:, 3] > NEAR):
            seen = ends[:, :2] / ends[:, 3:]
            low, high = seen.min(0) - 2, seen.max(0) + 2
            window = (
                max(window[0], float(low[0])), max(window[1], float(low[1])),
                min(window[2], float(high[0])), min(window[3], float(high[1])),
            )  # fmt: skip
    return View(view.clip @ flip, window, mirrored=True)


def _bounds(model: Any) -> Array:
    """The corners [mesh 8 4] of a box round each mesh."""
    boxes = np.ones((model.nmesh, 8, 4))
    for mesh in range(model.nmesh):
        first = int(model.mesh_vertadr[mesh])
        corners = model.mesh_vert[first : first + int(model.mesh_vertnum[mesh])]
        low, high = corners.min(0), corners.max(0)
        boxes[mesh, :, :3] = (low + high) / 2 + _CORNERS * (high - low) / 2
    return boxes


def _beside(corners: Array, window: tuple[float, float, float, float]) -> bool:
    """Whether a box, its corners [8 4] in clip coordinates, lies wholly beside a window."""
    depth = corners[:, 3]
    if np.all(depth < NEAR):
        return True
    if np.any(depth < NEAR):
        return False
    x, y = corners[:, 0] / depth, corners[:, 1] / depth
    left, bottom, right, top = window
    return bool(
        x.max() < left - 1 or x.min() > right + 1 or y.max() < bottom - 1 or y.min() > top + 1
    )


def _pose(data: Any, geom: int) -> Array:
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = data.geom_xmat[geom].reshape(3, 3), data.geom_xpos[geom]
    return pose


@njit
def _project(
    corners: NDArray[np.float32], clip: NDArray[np.float32], points: NDArray[np.float32]
) -> None:
    """Pixel coordinates and distance [3 n] of corners; behind the camera only the distance."""
    for index in range(len(corners)):
        x, y, z = corners[index, 0], corners[index, 1], corners[index, 2]
        depth = clip[3, 0] * x + clip[3, 1] * y + clip[3, 2] * z + clip[3, 3]
        across = clip[0, 0] * x + clip[0, 1] * y + clip[0, 2] * z + clip[0, 3]
        upward = clip[1, 0] * x + clip[1, 1] * y + clip[1, 2] * z + clip[1, 3]
        inverse = np.float32(1) / max(depth, np.float32(NEAR))
        points[0, index] = across * inverse
        points[1, index] = upward * inverse
        points[2, index] = depth


@njit
def _sift(
    faces: NDArray[np.int32],
    start: int,
    stop: int,
    points: NDArray[np.float32],
    window: NDArray[np.float32],
    mirrored: bool,
    keep: NDArray[np.bool_],
) -> None:
    """Mark the triangles that can show; in doubt they are marked."""
    left, bottom, right, top = window[0], window[1], window[2], window[3]
    for face in range(start, stop):
        if keep[face]:
            continue
        a, b, c = faces[face]
        behind = (points[2, a] < NEAR) + (points[2, b] < NEAR) + (points[2, c] < NEAR)
        if behind > 0:
            keep[face] = behind < 3
            continue
        ax, bx, cx = points[0, a], points[0, b], points[0, c]
        ay, by, cy = points[1, a], points[1, b], points[1, c]
        low_x, high_x = min(ax, bx, cx), max(ax, bx, cx)
        low_y, high_y = min(ay, by, cy), max(ay, by, cy)
        if high_x < left - 1 or low_x > right + 1 or high_y < bottom - 1 or low_y > top + 1:
            continue
        slack = 4 * ROUNDING * (high_x - low_x + high_y - low_y + 1)
        area = (bx - ax) * (cy - ay) - (cx - ax) * (by - ay)
        facing = -area if mirrored else area
        if facing < -slack:
            continue
        # Pixel i has its centre at i + 1/2.
        first_x, last_x = np.ceil(low_x - ROUNDING - 0.5), np.floor(high_x + ROUNDING - 0.5)
        first_y, last_y = np.ceil(low_y - ROUNDING - 0.5), np.floor(high_y + ROUNDING - 0.5)
        if last_x < first_x or last_y < first_y:
            continue
        if last_x - first_x >= FEW or last_y - first_y >= FEW:
            keep[face] = True
            continue
        sign = -1.0 if mirrored else 1.0
        for column in range(int(first_x), int(last_x) + 1):
            for row in range(int(first_y), int(last_y) + 1):
                x, y = column + 0.5, row + 0.5
                if (
                    sign * ((bx - ax) * (y - ay) - (x - ax) * (by - ay)) > -slack
                    and sign * ((cx - bx) * (y - by) - (x - bx) * (cy - by)) > -slack
                    and sign * ((ax - cx) * (y - cy) - (x - cx) * (ay - cy)) > -slack
                ):
                    keep[face] = True


@njit
def _compact(
    keep: NDArray[np.bool_],
    start: int,
    stop: int,
    faces: NDArray[np.int32],
    normals: NDArray[np.int32],
    texture: NDArray[np.int32],
    faces_out: NDArray[np.int32],
    normals_out: NDArray[np.int32],
    texture_out: NDArray[np.int32],
) -> int:
    """Copy the kept triangles to the beginning of their mesh; how many there are."""
    to = start
    for face in range(start, stop):
        if keep[face]:
            for corner in range(3):
                faces_out[to, corner] = faces[face, corner]
                normals_out[to, corner] = normals[face, corner]
                texture_out[to, corner] = texture[face, corner]
            to += 1
    return to - start
