"""LeRobot datasets: v3.0 and v2.x are read, v3.0 is written."""

from strap.datasets.lerobot.reading import LeRobotReader, is_lerobot, open_lerobot
from strap.datasets.lerobot.writing import write_lerobot

__all__ = ["LeRobotReader", "is_lerobot", "open_lerobot", "write_lerobot"]
