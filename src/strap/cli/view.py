"""`strap view`."""

from __future__ import annotations

import os
import platform
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from strap.cli.progress import show_progress


@dataclass(frozen=True)
class Command:
    """Look at a retrieval in the browser: every match beside its query, played in lock-step.

    Several runs of the same demonstrations are shown side by side, and so are the videos of `strap
    evaluate`. For a dataset the page shows its episodes. For a single run you can accept, reject
    and re-weigh matches and move the borders of queries; the choices are saved in the run's folder.

    The page is served to this machine only and loads nothing from the internet. Ctrl-C ends it.
    """

    EXAMPLES: ClassVar = (
        "strap view my-run",
        "strap view my-run other-run",
        "strap view my-run/policy/evaluation --against bc/evaluation",
        "strap view demonstrations.hdf5 --port 8123 --no-browser",
        "strap view lerobot/pusht",
    )
    paths: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="PATH …")]
    """folders that `strap retrieve` or `strap evaluate` wrote, or a dataset, or the name of one on
    the hub"""
    against: Path | None = None
    """a second run or evaluation, shown beside the first"""
    port: int = 0
    """the port of the page; 0: any free port"""
    browser: bool = True
    """do not open a browser, only print the page's address"""

    def run(self) -> None:
        """Open the runs, evaluations or dataset, and serve the page."""
        from strap.view.opening import open_subject
        from strap.view.server import serve

        with show_progress() as progress:
            subject = open_subject(self.paths, against=self.against, progress=progress)

        def ready(address: str) -> None:
            print(f"viewing {subject.name} at {address} (Ctrl-C ends)", flush=True)
            if self.browser and _has_screen():
                webbrowser.open(address)

        serve(subject, port=self.port, ready=ready)


def _has_screen() -> bool:
    """Return whether a browser can open a window; over ssh some would take over the terminal."""
    has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return has_display or platform.system() != "Linux"
