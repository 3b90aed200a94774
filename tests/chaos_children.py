"""Commands as processes that can be killed: forked from one that has imported everything.

A fresh interpreter takes longer to import than most of the commands take to run. So a server is
started once; it forks a child per command, in a process group of its own, and stays free of threads
itself. A child can be told to kill its own group just before a chosen change of a file (`Aim`), to
which time alone would have to be lucky to come near.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it has only this folder

from tests.forks import COMMON
from tests.threads import count_threads

PATIENCE = 300.0
"""seconds after which a command counts as hanging"""
SUBREAPER = 36  # prctl: orphans of the group come to the server, who waits for them
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
"""what Python tells its audit hooks before it is done; files opened for writing besides"""


@dataclass(frozen=True)
class Aim:
    """Kill the group before change number `change` below `folder`, or `delay` seconds after."""

    folder: str
    change: int
    delay: float = 0.0


@dataclass(frozen=True)
class Order:
    """What a child is to do."""

    words: tuple[str, ...]
    """after `strap`"""
    cwd: str
    log: str
    """where standard output and error go"""
    fresh: bool = False
    """in an interpreter of its own, as from a terminal"""
    aim: Aim | None = None
    file_bytes: int | None = None
    """no file may become larger: a full disk, for who may not mount one"""
    changes_log: str | None = None
    """where to write how many changes of files there were"""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """negative: the signal's number"""
    seconds: float
    shown: str
    """standard output and error"""
    hung: bool = False


class Child:
    """A command under way."""

    def __init__(self, server: Server, pid: int, order: Order) -> None:
        self._server, self.pid, self._order = server, pid, order
        self._begun = time.monotonic()
        self._descriptor = os.pidfd_open(pid)

    def ends_within(self, seconds: float) -> bool:
        """Wait until it has ended, or for so long."""
        return bool(select.select([self._descriptor], [], [], max(seconds, 0))[0])

    def kill(self) -> None:
        """SIGKILL for the whole group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self) -> Ended:
        """Its end; a command that takes longer than our patience is killed."""
        hung = not self.ends_within(PATIENCE)
        if hung:
            self.kill()
        os.close(self._descriptor)
        code = int(self._server.ask({"wait": self.pid})["code"])
        shown = Path(self._order.log).read_text(errors="replace")
        return Ended(code, time.monotonic() - self._begun, shown, hung)


class Server:
    """The process that forks; a context manager. What `training` needs takes longest to import."""

    def __init__(self, *, training: bool = True) -> None:
        self._training = training

    def __enter__(self) -> Server:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(Path(__file__).parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
        )
        self._process = subprocess.Popen(
            [sys.executable, __file__, *(["training"] if self._training else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.ask({"ready": True})
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def start(self, order: Order) -> Child:
        """Begin a command."""
        Path(order.log).write_text("")
        return Child(self, int(self.ask({"start": asdict(order)})["pid"]), order)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """A question and its answer, a line of JSON each."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def serve() -> None:
    """Fork what is asked for until standard input ends."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    _import_everything(training="training" in sys.argv)
    for line in sys.stdin:
        question = json.loads(line)
        answer: dict[str, Any] = {}
        if "start" in question:
            answer["pid"] = _fork(question["start"])
        elif "wait" in question:
            answer["code"] = _wait_for_group(question["wait"])
        print(json.dumps(answer), flush=True)


TRAINING = (
    "strap.cli.train",
    "strap.policies.frozen_vision",
    "strap.training.cache_builder",
    "strap.training.data",
    "torch._dynamo",  # its optimisers import it
    "torch.utils.tensorboard",
)


def _import_everything(*, training: bool) -> None:
    from importlib import import_module

    for name in (*COMMON, *(TRAINING if training else ())):
        with suppress(ImportError):
            import_module(name)
    import numpy as np

    from strap import dtw

    frames = [np.random.default_rng(0).random((20, 256)).astype(np.float16)]
    dtw.search([frames[0][:8]], frames, k=1, backend="cpu")  # its kernels are compiled or loaded
    deadline = time.monotonic() + 10
    while count_threads() > 1:  # the last of them are about to end
        if time.monotonic() > deadline:
            raise RuntimeError("the server has threads: its children would lack them")
        time.sleep(0.01)


def _wait_for_group(group: int) -> int:
    """The exit code of a group's first process, after the last of the group has ended."""
    code = 0
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-group, 0)
            if pid == group:
                code = os.waitstatus_to_exitcode(status)
    return code


def _fork(order: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        with suppress(PermissionError, ProcessLookupError):  # it has begun, or ended
            os.setpgid(child, child)
        return child
    os.setpgid(0, 0)
    _redirect(order)
    code = 70
    try:
        code = _run(order)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:  # as at the end of an interpreter, but for taking everything apart
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(order: dict[str, Any]) -> None:
    os.chdir(order["cwd"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # The buffers of the server's own streams are empty, and now write to the log.


def _run(order: dict[str, Any]) -> int:
    os.environ["STRAP_CACHE"] = str(Path(order["cwd"]) / "cache")
    if order["file_bytes"] is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_bytes"], order["file_bytes"]))
    if order["fresh"]:
        os.execv(sys.executable, [sys.executable, "-m", "strap", *order["words"]])
    aim = Aim(**order["aim"]) if order["aim"] else Aim(order["cwd"], -1)
    changes = _watch(aim)
    from strap.cli import main

    _make_small()
    code = main(order["words"])
    if order["changes_log"]:
        Path(order["changes_log"]).write_text(str(next(changes)))
    return code


def _make_small() -> None:
    """Shards, groups of images and savings so small that little data makes many of them."""
    from strap.embeddings import local, work

    local.SHARD_BYTES, work.GROUP_IMAGES = 1 << 14, 64
    if "strap.training" not in sys.modules:
        return
    import strap.training

    preset = strap.training.training_preset
    strap.training.training_preset = lambda *names, **options: replace(
        preset(*names, **options), save_every=2, log_every=1, eval_every=3
    )


def _watch(aim: Aim) -> itertools.count[int]:
    """Count changes of files below a folder, and kill the group at the one aimed at."""
    changes = itertools.count()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event in CHANGES:
            path = arguments[0]
        else:
            return
        # Names relative to a descriptor (shutil.rmtree's) are of what a command removes.
        inside = isinstance(path, str | os.PathLike) and (
            not str(path).startswith("/") or str(path).startswith(aim.folder)
        )
        if inside and next(changes) == aim.change:
            if aim.delay:
                threading.Timer(aim.delay, os.killpg, (0, signal.SIGKILL)).start()
            else:
                os.killpg(0, signal.SIGKILL)

    sys.addaudithook(hook)
    return changes


if __name__ == "__main__":
    serve()
