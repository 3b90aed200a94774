"""The commands that are killed, on generated data small enough for a second each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TASK = "KITCHEN_SCENE10_close_the_top_drawer_of_the_cabinet"


@dataclass(frozen=True)
class Command:
    """One `strap` command, run in a folder of its own; `{inputs}` stands for that of its inputs."""

    name: str
    words: str
    share: int
    """of the kills"""
    simulator: bool = False
    """slow, in processes of its own, and only where OpenGL is"""

    def given(self, inputs: Path) -> tuple[str, ...]:
        """The words with the folder put in."""
        return tuple(word.format(inputs=inputs) for word in self.words.split())


RETRIEVE = (
    "retrieve --target {inputs}/data/target.hdf5 --prior {inputs}/data/prior.hdf5 "
    "{inputs}/data/second.hdf5 --encoder pixels --top-k 6"
)
TRAIN = (
    "train {inputs}/run --vision frozen --text-encoder words --image-size 32 --batch 2 "
    "--normalize all --device cpu --json"
)
COMMANDS = (
    Command("embed", "embed {inputs}/data/prior.hdf5 --encoder pixels --out store --batch 16", 8),
    Command("retrieve", f"{RETRIEVE} --out run --stores stores", 12),
    Command("convert-robomimic", "convert {inputs}/data/prior.hdf5 out.hdf5", 12),
    Command("convert-lerobot", "convert {inputs}/data/prior.hdf5 out", 12),
    Command("export-lerobot", "export {inputs}/run --as lerobot --out out", 6),
    Command("export-robomimic", "export {inputs}/run --as robomimic --out out.hdf5", 6),
    Command("export-manifest", "export {inputs}/run --as manifest --out out.parquet", 2),
    Command("export-weights", "export {inputs}/run --as weights --out out", 2),
    Command("export-filter", "export {inputs}/run --as filter --out out.json", 2),
    Command("train", f"{TRAIN} --steps 7 --holdout 1 --out policy", 8),
    Command(
        "evaluate",
        "evaluate {inputs}/policy --suite libero_90 "
        f"--task {TASK} --episodes 3 --horizon 6 --workers 2 --device cpu --out out --json",
        1,
        simulator=True,
    ),
    Command(
        "collect",
        f"libero collect --suite libero_90 --tasks {TASK} --demos 3 --size 32 --out out --json",
        1,
        simulator=True,
    ),
)
BY_NAME = {command.name: command for command in COMMANDS}
PREPARATIONS = {
    "export": ("run", f"{RETRIEVE} --out {{inputs}}/run --stores {{inputs}}/stores"),
    "train": ("run", f"{RETRIEVE} --out {{inputs}}/run --stores {{inputs}}/stores"),
    "evaluate": (
        "policy",
        "train {inputs}/data/target.hdf5 --vision frozen --text-encoder words --image-size 32 "
        "--batch 2 --steps 2 --normalize all --device cpu --json --out {inputs}/policy "
        "--cache {inputs}/frames",
    ),
}
"""what a command needs besides datasets: its name, and how it is made"""


def write_datasets(inputs: Path) -> None:
    """A target and two priors."""
    from strap.synthetic import make_planted

    make_planted(inputs / "data", demos=2, sub_tasks=2, prior=6, length=12, size=32)
    other = make_planted(
        inputs / "other", demos=1, sub_tasks=2, prior=3, length=12, size=32, seed=1
    )
    other.prior.replace(inputs / "data" / "second.hdf5")


def needed(command: Command, inputs: Path) -> tuple[str, ...] | None:
    """The words of the command that must run once before, if it has not."""
    name, words = PREPARATIONS.get(command.name.partition("-")[0], ("data", ""))
    if (inputs / name).exists():
        return None
    return Command(name, words, 0).given(inputs)


def simulator_is_missing() -> str:
    """Why nothing can be simulated here, in a line; empty where it can."""
    code = (
        "from strap.libero.distribution import import_libero;"
        "from strap.libero.rendering.backend import select_backend;"
        "import_libero('libero.libero'); select_backend()"
    )
    tried = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip().splitlines()[-1] if tried.returncode else ""


def chosen(names: Sequence[str]) -> list[Command]:
    """Commands by name, or by the beginning of one; all of them where none is named."""
    found = [c for c in COMMANDS if not names or any(c.name.startswith(name) for name in names)]
    if not found:
        raise SystemExit(f"no command {', '.join(names)}: there are {', '.join(BY_NAME)}")
    return found
