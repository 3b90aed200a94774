"""Whether the arm can follow a path of hand poses, and how far its joints stay from their ends."""

from __future__ import annotations

from collections.abc import Iterable

import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from strap.libero.expert.scene import GRIP_SITE, Scene

Array = NDArray[np.float64]

ITERATIONS = 60
DAMPING = 0.03
LEANING = 0.05  # share of the way to its resting pose that the arm takes where it is free to
NEAR, STRAIGHT = 0.01, 0.08  # metres and radians within which a pose counts as reached
STRETCHED = -0.45  # radians of the elbow, at 0 when the arm is straight


class Kinematics:
    """The arm without the rest of the world: joints follow the hand as the controller's do."""

    def __init__(self, scene: Scene) -> None:
        env = scene.env
        robot = env.world.robots[0]
        self._model, self._data = env.model, mujoco.MjData(env.model)
        self._start, self._rest = env.data.qpos.copy(), np.array(robot.init_qpos)
        self._joints = np.array(robot._ref_joint_pos_indexes)
        self._speeds = np.array(robot._ref_joint_vel_indexes)
        numbers = [self._model.joint(name).id for name in robot.robot_joints]
        self._low, self._high = self._model.jnt_range[numbers].T
        self._site = self._model.site(GRIP_SITE).id

    def room(self, path: Iterable[tuple[Array, Rotation]]) -> float:
        """The least distance (radians) of any joint from its end along a path of hand poses.

        Below zero where a pose can't be reached.
        """
        self._data.qpos[:] = self._start
        least = np.inf
        for position, hand in path:
            if not self._follow(position, hand):
                return -1.0
            joints = self._data.qpos[self._joints]
            ends = np.minimum(joints - self._low, self._high - joints)
            least = min(least, float(ends.min()), STRETCHED - float(joints[3]))
        return float(least)

    def _follow(self, position: Array, hand: Rotation) -> bool:
        model, data = self._model, self._data
        jacobian, spin = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        for _ in range(ITERATIONS):
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            present = Rotation.from_matrix(data.site_xmat[self._site].reshape(3, 3))
            offset = position - data.site_xpos[self._site]
            turn = (hand * present.inv()).as_rotvec()
            if np.linalg.norm(offset) < NEAR and np.linalg.norm(turn) < STRAIGHT:
                return True
            mujoco.mj_jacSite(model, data, jacobian, spin, self._site)
            full = np.concatenate([jacobian, spin])[:, self._speeds]
            inverse = full.T @ np.linalg.inv(full @ full.T + DAMPING**2 * np.eye(6))
            error = np.concatenate([_limited(offset, 0.05), _limited(turn, 0.2)])
            joints = data.qpos[self._joints]
            free = np.eye(len(joints)) - inverse @ full
            step = inverse @ error + LEANING * free @ (self._rest - joints)
            data.qpos[self._joints] = np.clip(joints + step, self._low, self._high)
        return False


def _limited(vector: Array, length: float) -> Array:
    return np.asarray(vector * min(1.0, length / max(float(np.linalg.norm(vector)), 1e-9)))
