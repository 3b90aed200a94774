"""Adds to the wheel what pyproject.toml cannot name: the sample data, which lies beside `src`."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithSamples(build_py):
    """Copies `samples` into the package; an editable install reads it where it is."""

    def run(self) -> None:
        """Copy the modules, then the samples."""
        super().run()
        if not self.editable_mode:
            out = Path(self.build_lib, "strap", "samples")
            shutil.copytree("samples", out, dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithSamples})
