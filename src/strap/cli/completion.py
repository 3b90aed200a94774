"""`strap completion`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import tyro

from strap.cli.shell_scripts import write_bash, write_fish, write_zsh
from strap.cli.shell_words import read_commands

WRITERS = {"bash": write_bash, "zsh": write_zsh, "fish": write_fish}


@dataclass(frozen=True)
class Command:
    """Print a script that lets a shell complete the commands, options and values of `strap`.

    The script contains all words, so pressing TAB does not start Python. Print it again after an
    update of STRAP.

    bash: strap completion bash > FILE, with `source FILE` in ~/.bashrc

    zsh: strap completion zsh > FOLDER/_strap, with `fpath+=(FOLDER)` before `compinit` in ~/.zshrc

    fish: strap completion fish > ~/.config/fish/completions/strap.fish
    """

    EXAMPLES: ClassVar = ("strap completion bash",)
    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """which shell: bash, zsh or fish"""

    def run(self) -> None:
        """Print the script."""
        print(WRITERS[self.shell](read_commands()), end="")
