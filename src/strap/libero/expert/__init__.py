"""The scripted expert: it plans from the simulator's state and moves the arm to solve a task.

From the top down:

- `attempts` orders a task's goals and tries to reach them.
- `pick_and_place`, `tilted_pick_and_place` and `articulation` each reach one goal.
- `placing`, `insertion` and `tilted_transfer` plan the poses of hand and object, with the help of
  `grasping` and `kinematics`.
- `motion` moves the arm.
- `scene` answers where everything is.
"""
