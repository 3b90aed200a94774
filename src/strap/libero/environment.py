"""One LIBERO task as an environment: placements, steps and observations, with or without cameras.

Images have the bottom row first, as in LIBERO's files; `SimulatorObservation.upright` flips one.
Placements are drawn from the task's regions with a seed (`sample`) or come from the benchmark's
fixed list (`fixed`). Ten settling steps follow in both cases.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from strap.errors import StrapError
from strap.libero.distribution import import_libero
from strap.libero.mujoco_import import mujoco
from strap.libero.rendering.backend import select_backend
from strap.libero.rendering.renderer import Array, Image, Renderer
from strap.libero.tasks import Goal, Task, load_fixed_states

SETTLING_STEPS = 10
CONTROL_HZ = 20
OPEN, CLOSED = -1.0, 1.0
CAMERAS = {"agentview": "agentview", "eye_in_hand": "robot0_eye_in_hand"}
IDLE = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, OPEN])


@dataclass(frozen=True)
class SimulatorObservation:
    """The observation of a policy at one moment."""

    images: dict[str, Image]  # camera -> [size, size, 3], bottom row first as LIBERO stores them
    ee_pos: Array  # [3]
    ee_ori: Array  # [3] axis-angle
    gripper_states: Array  # [2]
    joint_states: Array  # [7]
    robot_states: Array  # [9] gripper, position, quaternion (x y z w)

    @property
    def ee_states(self) -> Array:
        """Position and orientation [6]."""
        return np.concatenate([self.ee_pos, self.ee_ori])

    def upright(self, camera: str) -> Image:
        """Return a camera's image with the top row first."""
        return np.ascontiguousarray(self.images[camera][::-1])


class LiberoEnv:
    """A task in the simulator, at 20 Hz under the benchmark's OSC_POSE controller.

    `cameras=False` only simulates physics, without OpenGL. `antialias=True` renders with four
    samples per pixel, like the original demonstrations. Without it, edges are harder and a frame
    costs about a quarter less. Train and evaluate with the same setting. `arm_noise` is the
    standard deviation (radians) of the initial joint angles of sampled placements; the benchmark's
    fixed states have about 0.02.
    """

    def __init__(
        self,
        task: Task,
        *,
        size: int = 128,
        cameras: bool = True,
        antialias: bool = False,
        arm_noise: float = 0.0,
    ) -> None:
        if size < 1:
            raise StrapError(f"image size {size}: a camera needs at least one pixel; try 128")
        if cameras:
            select_backend()
        self.task, self.size, self.cameras, self.antialias = task, size, cameras, antialias
        wrapper = import_libero("libero.libero.envs.env_wrapper")
        with contextlib.redirect_stdout(io.StringIO()):
            self._control = wrapper.ControlEnv(
                bddl_file_name=str(task.bddl),
                use_camera_obs=False,
                has_offscreen_renderer=False,
                # A hard reset would load the model again (seconds) and leak the old one.
                hard_reset=False,
                ignore_done=True,
                initialization_noise={"magnitude": arm_noise, "type": "gaussian"},
            )
        # Observations are computed on request: the 40 observables of robosuite cost a tenth of
        # every step, and they are out of date after `restore`.
        self.world._observables = {}
        # robosuite hides the gripper's markers in a reset: hide them for `restore` without one.
        self.world.visualize(dict.fromkeys(self.world._visualizations, False))
        self._renderer: Renderer | None = None
        self._loaded_poses = self._fixture_poses()
        self._xml = str(self.world.sim.model.get_xml())
        _free_last_model()

    @property
    def world(self) -> Any:
        """The underlying robosuite environment."""
        return self._control.env

    @property
    def model(self) -> Any:
        """The underlying MuJoCo mjModel."""
        return self.world.sim.model._model

    @property
    def data(self) -> Any:
        """The underlying MuJoCo mjData."""
        return self.world.sim.data._data

    def sample(self, seed: int) -> None:
        """Place all objects at random in the task's regions, determined by task and seed.

        Tasks that share a scene get different placements. Otherwise a demonstration of one task
        could equal the beginning of a demonstration of another.
        """
        errors = import_libero("robosuite.utils.errors")
        name = f"{self.task.suite}/{self.task.name}/{seed}"
        with _numpy_seed(zlib.crc32(name.encode())):
            for _ in range(100):
                try:
                    self._reset()
                    break
                except errors.RandomizationError:
                    continue
            else:
                raise StrapError(
                    f"no valid placement of '{self.task.name}' in 100 draws with seed {seed}: "
                    "its regions are too full; try another seed"
                )
        self._settle()

    def fixed(self, index: int) -> None:
        """Place all objects as in one of the benchmark's fixed initial states, for evaluation.

        Fixtures are placed by a reset with seed 0, because the fixed states only contain joints.
        The benchmark's evaluation does the same.
        """
        states = load_fixed_states(self.task)
        if not 0 <= index < len(states):
            raise StrapError(
                f"'{self.task.name}' has initial states 0 to {len(states) - 1}, not {index}"
            )
        with _numpy_seed(0):
            self._reset()
        self.restore(states[index])
        self._settle()

    def restore(self, state: Array) -> None:
        """Continue from a flattened state; earlier states and commands have no effect."""
        sim = self.world.sim
        sim.reset()
        sim.set_state_from_flattened(np.asarray(state, dtype=np.float64))
        sim.forward()
        for robot in self.world.robots:
            robot.gripper.current_action = np.zeros(robot.gripper.dof)
            # The controller's null space pulls towards this pose: not the sampled initial one.
            robot.controller.update_initial_joints(np.asarray(robot.init_qpos))
            robot.controller.reset_goal()
        self.world.timestep = 0
        self.world.done = False
        self.world._post_process()

    def show(self, state: Array) -> None:
        """Put the scene into a flattened state for rendering; do not step from it."""
        sim = self.world.sim
        sim.set_state_from_flattened(np.asarray(state, dtype=np.float64))
        sim.forward()
        self.world._post_process()

    def step(self, action: Array) -> bool:
        """Apply one action [7] for 1/20 of a second; return whether the task is solved.

        robosuite computes the forward dynamics three times per time step: before the controller,
        in it, and in stepping. Here the controller runs between the two halves of MuJoCo's step,
        which compute it once. The motion differs by no more than the solver's tolerance, and the
        step takes little more than half the time.
        """
        world, model, data = self.world, self.model, self.data
        command = np.asarray(action, dtype=np.float64)
        sim = world.sim
        sim.forward = lambda: None  # the controller calls it, but mj_step1 has done its work
        try:
            for number in range(round(world.control_timestep / world.model_timestep)):
                mujoco.mj_step1(model, data)
                world._pre_action(command, number == 0)
                mujoco.mj_step2(model, data)
        finally:
            del sim.forward
        # Update the quantities that are derived from the integrated positions.
        mujoco.mj_forward(model, data)
        world.timestep += 1
        world._post_process()
        return self.solved()

    def solved(self) -> bool:
        """Return whether every goal holds."""
        return bool(self._control.check_success())

    def holds(self, goal: Goal) -> bool:
        """Return whether one goal holds."""
        return bool(self.world._eval_predicate(goal.as_list()))

    def state(self) -> Array:
        """Return the flattened simulation state: time, positions, velocities."""
        return np.asarray(self._control.get_sim_state(), dtype=np.float64)

    def model_xml(self) -> str:
        """Return the model's XML with this episode's fixture poses, as LIBERO's files store it.

        Fixtures have no joints, so a state does not contain their poses.
        """
        tree = ElementTree.fromstring(self._xml)
        for body, element in self._fixture_elements(tree):
            element.set("pos", " ".join(map(repr, self.model.body_pos[body].tolist())))
            element.set("quat", " ".join(map(repr, self.model.body_quat[body].tolist())))
        return ElementTree.tostring(tree, encoding="unicode")

    def place_fixtures(self, model_xml: str) -> None:
        """Place the fixtures as in a stored model."""
        for body, element in self._fixture_elements(ElementTree.fromstring(model_xml)):
            self.model.body_pos[body], self.model.body_quat[body] = _read_pose(element)

    def observe(self, cameras: Iterable[str] = CAMERAS) -> SimulatorObservation:
        """Return the current observation, with images if the environment has cameras."""
        images = {name: self.render(name) for name in cameras} if self.cameras else {}
        return replace(self.proprioception(), images=images)

    def proprioception(self) -> SimulatorObservation:
        """Return the current observation without images."""
        data, robot = self.world.sim.data, self.world.robots[0]
        transform = import_libero("robosuite.utils.transform_utils")
        position = np.array(data.site_xpos[robot.eef_site_id])
        quaternion = transform.convert_quat(
            data.get_body_xquat(robot.robot_model.eef_name), to="xyzw"
        )
        gripper = np.array(data.qpos[robot._ref_gripper_joint_pos_indexes])
        return SimulatorObservation(
            images={},
            ee_pos=position,
            ee_ori=np.array(transform.quat2axisangle(quaternion)),
            gripper_states=gripper,
            joint_states=np.array(data.qpos[robot._ref_joint_pos_indexes]),
            robot_states=np.concatenate([gripper, position, quaternion]),
        )

    def render(self, camera: str) -> Image:
        """Return one camera's image [size, size, 3], bottom row first."""
        return self.renderer.render(CAMERAS[camera])

    @property
    def renderer(self) -> Renderer:
        """The renderer of the cameras, created on first use."""
        if not self.cameras:
            raise StrapError("this environment has no cameras: make it with cameras=True")
        if self._renderer is None:
            self._renderer = Renderer(self.model, self.data, self.size, antialias=self.antialias)
        return self._renderer

    def close(self) -> None:
        """Free the renderer and the simulator; safe to call twice."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        if self._control is not None:
            self._control.close()
            self._control = None
            gc.collect()  # robosuite's objects are in reference cycles

    def __enter__(self) -> LiberoEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reset(self) -> None:
        # Objects on a fixture are placed relative to the fixture's pose in the loaded model. A
        # reset without loading must restore this pose first.
        for body, (position, quaternion) in self._loaded_poses.items():
            self.model.body_pos[body], self.model.body_quat[body] = position, quaternion
        self.world.reset()
        for robot in self.world.robots:
            robot.gripper.current_action = np.zeros(robot.gripper.dof)

    def _fixture_poses(self) -> dict[int, tuple[Array, Array]]:
        """Return the position and quaternion of each fixture's body in the loaded model."""
        return {
            int(self.model.body(fixture.root_body).id): _read_pose(fixture.get_obj())
            for fixture in self.world.fixtures_dict.values()
        }

    def _fixture_elements(
        self, tree: ElementTree.Element
    ) -> Iterator[tuple[int, ElementTree.Element]]:
        """Yield each fixture's body with its element in a model's XML."""
        bodies = {element.get("name"): element for element in tree.iter("body")}
        for body in self._loaded_poses:
            yield body, bodies[self.model.body(body).name]

    def _settle(self) -> None:
        for _ in range(SETTLING_STEPS):
            self.step(IDLE)


@contextlib.contextmanager
def _numpy_seed(seed: int) -> Iterator[None]:
    """Seed numpy's global generator, which robosuite uses, and restore its state afterwards."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


def _read_pose(element: ElementTree.Element) -> tuple[Array, Array]:
    """Return the position [3] and quaternion [4] of a body in a model's XML."""
    position = (element.get("pos") or "0 0 0").split()
    quaternion = (element.get("quat") or "1 0 0 0").split()
    return np.array(position, dtype=np.float64), np.array(quaternion, dtype=np.float64)


def _free_last_model() -> None:
    """Free MuJoCo's copy of the last model it has parsed: half a gigabyte for LIBERO."""
    mujoco.MjModel.from_xml_string("<mujoco/>")
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)
