"""Compute whether the arm can follow hand poses, and its joints' distances from their limits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy.spatial.transform import Rotation

from strap.libero.expert.scene import GRIP_SITE, Array, Scene
from strap.libero.mujoco_import import mujoco

ITERATIONS = 60
DAMPING = 0.03
REST_PULL = 0.05  # share of the way to the resting pose that each null-space step takes
POSITION_TOLERANCE, ANGLE_TOLERANCE = 0.01, 0.08  # metres, radians: a pose counts as reached
STRETCHED = -0.45  # largest angle of the elbow in radians; at 0 the arm is straight


class Kinematics:
    """The arm alone: its joints follow the hand as under the controller."""

    def __init__(self, scene: Scene) -> None:
        env = scene.env
        robot = env.world.robots[0]
        self._model, self._data = env.model, mujoco.MjData(env.model)
        self._start, self._rest = env.data.qpos.copy(), np.array(robot.init_qpos)
        self._joints = np.array(robot._ref_joint_pos_indexes)
        self._velocities = np.array(robot._ref_joint_vel_indexes)
        numbers = [self._model.joint(name).id for name in robot.robot_joints]
        self._low, self._high = self._model.jnt_range[numbers].T
        self._site = self._model.site(GRIP_SITE).id

    def joint_margin(self, path: Iterable[tuple[Array, Rotation]]) -> float:
        """Return the smallest distance (radians) of any joint from its limit along a path of poses.

        It is negative if a pose cannot be reached.
        """
        self._data.qpos[:] = self._start
        margin = np.inf
        for position, rotation in path:
            if not self._follow(position, rotation):
                return -1.0
            joints = self._data.qpos[self._joints]
            limits = np.minimum(joints - self._low, self._high - joints)
            margin = min(margin, float(limits.min()), STRETCHED - float(joints[3]))
        return float(margin)

    def _follow(self, position: Array, rotation: Rotation) -> bool:
        """Move the joints until the hand is at a pose; return whether it got there."""
        model, data = self._model, self._data
        linear, angular = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        for _ in range(ITERATIONS):
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            present = Rotation.from_matrix(data.site_xmat[self._site].reshape(3, 3))
            offset = position - data.site_xpos[self._site]
            turn = (rotation * present.inv()).as_rotvec()
            is_near = np.linalg.norm(offset) < POSITION_TOLERANCE
            if is_near and np.linalg.norm(turn) < ANGLE_TOLERANCE:
                return True
            mujoco.mj_jacSite(model, data, linear, angular, self._site)
            jacobian = np.concatenate([linear, angular])[:, self._velocities]
            gram = jacobian @ jacobian.T + DAMPING**2 * np.eye(6)
            inverse = jacobian.T @ np.linalg.inv(gram)
            error = np.concatenate([_limit_length(offset, 0.05), _limit_length(turn, 0.2)])
            joints = data.qpos[self._joints]
            null_space = np.eye(len(joints)) - inverse @ jacobian
            step = inverse @ error + REST_PULL * null_space @ (self._rest - joints)
            data.qpos[self._joints] = np.clip(joints + step, self._low, self._high)
        return False


def _limit_length(vector: Array, length: float) -> Array:
    return np.asarray(vector * min(1.0, length / max(float(np.linalg.norm(vector)), 1e-9)))
