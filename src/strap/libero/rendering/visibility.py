"""Find the triangles of a scene that can be visible, and hand only these to the renderer.

LIBERO's scenes have 400 000 triangles and its images 16 000 pixels. Most triangles face away, are
outside the view, or fall between the centres of pixels and so colour none. A renderer without a GPU
would still transform and light all their vertices. `TriangleCuller` finds the triangles that can be
visible, and lets MuJoCo compile display lists of these alone. The image stays exactly the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.jit import njit
from strap.libero.mujoco_import import mujoco

Array = NDArray[np.float64]

MESH = int(mujoco.mjtGeom.mjGEOM_MESH)
FONT = mujoco.mjtFontScale.mjFONTSCALE_150
# Renderers round vertices to 1/256 of a pixel; allow twice as much.
ROUNDING = 1 / 128
NEAR = 1e-3  # metres in front of the camera; nearer vertices count as behind it
MAX_TESTED_PIXELS = 3  # a triangle that spans more pixels in one direction is kept without a test
_CORNERS = np.array(list(product((-1.0, 1.0), repeat=3)))


@dataclass(frozen=True)
class View:
    """The view of a camera, or of its mirror image."""

    clip: Array  # [4, 4] from the world to homogeneous pixel coordinates
    window: tuple[float, float, float, float]  # pixels: left, bottom, right, top
    is_mirrored: bool = False


class TriangleCuller:
    """Compiles only those triangles of a model's meshes that can be visible."""

    def __init__(self, model: Any) -> None:
        self.model = model
        counts = model.mesh_facenum.copy()
        model.mesh_facenum[:] = 0
        self.context = mujoco.MjrContext(model, FONT)  # has no triangles until `apply`
        model.mesh_facenum[:] = counts
        self._points = np.empty((3, int(model.mesh_vertnum.max(initial=1))), np.float32)
        self._views: dict[int, tuple[Any, ...]] = {}  # mesh -> the views it is compiled for
        self._counts = np.zeros(model.nmesh, int)  # compiled triangles of each mesh

    @property
    def n_compiled(self) -> int:
        """The number of currently compiled triangles."""
        return int(self._counts.sum())

    def apply(self, data: Any, geoms: NDArray[np.intp], views: list[View]) -> None:
        """Compile the triangles of the given geoms that can be visible in any of the views."""
        meshes, boxes = self.model.geom_dataid[geoms], self.model.geom_aabb[geoms, None]
        poses = np.array([_pose(data, int(geom)) for geom in geoms]).reshape(-1, 4, 4)
        clips = np.array([view.clip for view in views])[:, None] @ poses  # [view, geom, 4, 4]
        corners = np.ones((len(geoms), 8, 4))
        corners[..., :3] = boxes[..., :3] + _CORNERS * boxes[..., 3:]
        corners = corners @ clips.swapaxes(2, 3)  # [view, geom, 8, 4]
        is_inside = ~_is_outside(corners, np.array([view.window for view in views]))
        for mesh in np.unique(meshes):
            seen_by = [
                (view, clips[number, geom].astype(np.float32))
                for number, view in enumerate(views)
                for geom in np.flatnonzero(is_inside[number] & (meshes == mesh))
            ]
            key = tuple((view.window, clip.tobytes()) for view, clip in seen_by)
            if self._views.get(mesh, ()) != key:
                self._views[mesh] = key
                self._compile(mesh, self._select(mesh, seen_by))

    def _select(
        self, mesh: int, seen_by: list[tuple[View, NDArray[np.float32]]]
    ) -> NDArray[np.intp]:
        """Return the indices of a mesh's triangles that can be visible in one of its views."""
        model = self.model
        start, count = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
        first = int(model.mesh_vertadr[mesh])
        vertices = model.mesh_vert[first : first + int(model.mesh_vertnum[mesh])]
        faces = model.mesh_face[start : start + count]
        is_kept = np.zeros(count, np.bool_)
        for view, clip in seen_by:
            window = np.array(view.window, np.float32)
            _project(vertices, clip, self._points)
            _mark_visible(faces, self._points, window, view.is_mirrored, is_kept)
        return start + np.flatnonzero(is_kept)

    def _compile(self, mesh: int, kept: NDArray[np.intp]) -> None:
        """Let MuJoCo compile a mesh as if it only had the kept triangles."""
        model, count = self.model, len(kept)
        if count == 0 and self._counts[mesh] == 0:
            return
        self._counts[mesh] = count
        start = int(model.mesh_faceadr[mesh])
        arrays = (model.mesh_face, model.mesh_facenormal, model.mesh_facetexcoord)
        original = [array[start : start + count].copy() for array in arrays]
        n_faces, hull = int(model.mesh_facenum[mesh]), int(model.mesh_graphadr[mesh])
        for array in arrays:
            array[start : start + count] = array[kept]
        # Convex hulls are never drawn, but MuJoCo would compile them with the meshes.
        model.mesh_facenum[mesh], model.mesh_graphadr[mesh] = count, -1
        mujoco.mjr_uploadMesh(model, self.context, mesh)
        for array, rows in zip(arrays, original, strict=True):
            array[start : start + count] = rows
        model.mesh_facenum[mesh], model.mesh_graphadr[mesh] = n_faces, hull


def camera_view(scene: Any, size: int) -> View:
    """Return the view of a scene's camera for a square image of `size` pixels."""
    camera, other = scene.camera  # MuJoCo has a camera per eye; an image is taken from their middle
    position = (np.array(camera.pos, float) + np.array(other.pos, float)) / 2
    forward, up = np.array(camera.forward, float), np.array(camera.up, float)
    rotation = np.stack([np.cross(forward, up), up, -forward])
    to_camera = np.eye(4)
    to_camera[:3, :3], to_camera[:3, 3] = rotation, -rotation @ position
    near, far = camera.frustum_near, camera.frustum_far
    top, bottom = camera.frustum_top, camera.frustum_bottom
    height = top - bottom
    projection = np.array(
        [
            [2 * near / height, 0.0, 0.0, 0.0],
            [0.0, 2 * near / height, (top + bottom) / height, 0.0],
            [0.0, 0.0, (far + near) / (near - far), 2 * far * near / (near - far)],
            [0.0, 0.0, -1.0, 0.0],
        ]
    )
    half = size / 2
    to_pixels = np.array([[half, 0, 0, half], [0, half, 0, half], [0, 0, 1, 0], [0, 0, 0, 1]])
    return View(to_pixels @ projection @ to_camera, (0.0, 0.0, float(size), float(size)))


def mirrored_view(view: View, model: Any, data: Any, geom: int) -> View:
    """Return the view of a camera's mirror image in the upper face of a box, or in a plane."""
    pose, size = _pose(data, geom), model.geom_size[geom]
    is_plane = int(model.geom_type[geom]) == int(mujoco.mjtGeom.mjGEOM_PLANE)
    normal = pose[:3, 2]
    point = pose[:3, 3] + (0.0 if is_plane else size[2]) * normal
    reflection = np.eye(4)
    reflection[:3, :3] -= 2 * np.outer(normal, normal)
    reflection[:3, 3] = 2 * normal * float(normal @ point)
    window = view.window
    if not is_plane:
        corners = np.c_[_CORNERS * size, np.ones(8)] @ (view.clip @ pose).T
        if np.all(corners[:, 3] > NEAR):
            pixels = corners[:, :2] / corners[:, 3:]
            low, high = pixels.min(0) - 2, pixels.max(0) + 2
            window = (
                max(window[0], float(low[0])), max(window[1], float(low[1])),
                min(window[2], float(high[0])), min(window[3], float(high[1])),
            )  # fmt: skip
    return View(view.clip @ reflection, window, is_mirrored=True)


def _is_outside(corners: Array, windows: Array) -> NDArray[np.bool_]:
    """Return which boxes, given their corners [view, geom, 8, 4], are outside a view [view, geom].

    All corners of such a box are beyond one of the planes that bound the view.
    """
    x, y, _, depth = np.moveaxis(corners, 3, 0)
    left, bottom, right, top = windows.T[..., None, None]
    planes = (
        x < (left - 1) * depth,
        x > (right + 1) * depth,
        y < (bottom - 1) * depth,
        y > (top + 1) * depth,
        depth < NEAR,
    )
    return np.asarray(np.any([is_beyond.all(axis=2) for is_beyond in planes], axis=0))


def _pose(data: Any, geom: int) -> Array:
    """Return a geom's pose [4, 4] in the world."""
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = data.geom_xmat[geom].reshape(3, 3), data.geom_xpos[geom]
    return pose


@njit
def _project(
    vertices: NDArray[np.float32], clip: NDArray[np.float32], points: NDArray[np.float32]
) -> None:
    """Write the pixel coordinates and the distance [3, vertex] of vertices into `points`."""
    for index in range(len(vertices)):
        x, y, z = vertices[index, 0], vertices[index, 1], vertices[index, 2]
        depth = clip[3, 0] * x + clip[3, 1] * y + clip[3, 2] * z + clip[3, 3]
        across = clip[0, 0] * x + clip[0, 1] * y + clip[0, 2] * z + clip[0, 3]
        upward = clip[1, 0] * x + clip[1, 1] * y + clip[1, 2] * z + clip[1, 3]
        inverse = np.float32(1) / max(depth, np.float32(NEAR))
        points[0, index] = across * inverse
        points[1, index] = upward * inverse
        points[2, index] = depth


@njit
def _mark_visible(
    faces: NDArray[np.int32],
    points: NDArray[np.float32],
    window: NDArray[np.float32],
    is_mirrored: bool,
    is_kept: NDArray[np.bool_],
) -> None:
    """Mark the triangles that can be visible, including those that are too close to test."""
    left, bottom, right, top = window[0], window[1], window[2], window[3]
    for face in range(len(faces)):
        if is_kept[face]:
            continue
        a, b, c = faces[face]
        behind = (points[2, a] < NEAR) + (points[2, b] < NEAR) + (points[2, c] < NEAR)
        if behind > 0:
            is_kept[face] = behind < 3
            continue
        ax, bx, cx = points[0, a], points[0, b], points[0, c]
        ay, by, cy = points[1, a], points[1, b], points[1, c]
        low_x, high_x = min(ax, bx, cx), max(ax, bx, cx)
        low_y, high_y = min(ay, by, cy), max(ay, by, cy)
        if high_x < left - 1 or low_x > right + 1 or high_y < bottom - 1 or low_y > top + 1:
            continue
        slack = 4 * ROUNDING * (high_x - low_x + high_y - low_y + 1)
        area = (bx - ax) * (cy - ay) - (cx - ax) * (by - ay)
        facing = -area if is_mirrored else area
        if facing < -slack:
            continue
        # Pixel i has its centre at i + 1/2.
        first_x, last_x = np.ceil(low_x - ROUNDING - 0.5), np.floor(high_x + ROUNDING - 0.5)
        first_y, last_y = np.ceil(low_y - ROUNDING - 0.5), np.floor(high_y + ROUNDING - 0.5)
        if last_x < first_x or last_y < first_y:
            continue
        if last_x - first_x >= MAX_TESTED_PIXELS or last_y - first_y >= MAX_TESTED_PIXELS:
            is_kept[face] = True
            continue
        sign = -1.0 if is_mirrored else 1.0
        for column in range(int(first_x), int(last_x) + 1):
            for row in range(int(first_y), int(last_y) + 1):
                x, y = column + 0.5, row + 0.5
                if (
                    sign * ((bx - ax) * (y - ay) - (x - ax) * (by - ay)) > -slack
                    and sign * ((cx - bx) * (y - by) - (x - bx) * (cy - by)) > -slack
                    and sign * ((ax - cx) * (y - cy) - (x - cx) * (ay - cy)) > -slack
                ):
                    is_kept[face] = True
