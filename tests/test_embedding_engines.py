"""Many workers, one result: processes per device, and Ray."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import h5py
import numpy as np
import pytest
from tests.killing import Logged
from tests.stores import IMAGES, assert_same, write_dataset

import strap
from strap.cli import main
from strap.datasets.lerobot import tables
from strap.embeddings import cluster, work
from strap.encoders import PixelEncoder
from strap.errors import StrapError
from strap.store import EmbeddingStore, PendingTrajectory

SAMPLE = Path(__file__).parent.parent / "samples" / "libero-mini" / "prior"


def test_two_devices(dataset: Path, tmp_path: Path) -> None:
    words = ["embed", str(dataset), "--encoder", "pixels", "--out", str(tmp_path / "two")]
    assert main([*words, "--devices", "cpu", "cpu", "--workers", "2"]) == 0
    one = strap.embed(strap.open_dataset(dataset), "pixels", tmp_path / "one")
    assert_same(strap.open_store(tmp_path / "two"), one)
    with pytest.raises(StrapError, match=r"several devices \(cpu, cpu\) need an encoder"):
        strap.embed(
            strap.open_dataset(dataset), PixelEncoder(), tmp_path / "x", devices=("cpu", "cpu")
        )


def test_a_failure_in_a_process_is_told(dataset: Path, tmp_path: Path) -> None:
    opened = strap.open_dataset(dataset)
    gone = tmp_path / "gone.hdf5"
    gone.write_bytes(dataset.read_bytes())
    missing = strap.open_dataset(gone)
    ids = missing.ids
    with h5py.File(gone, "a") as handle:
        del handle[f"data/{ids[3]}/obs/right"]
    with pytest.raises(StrapError, match=r"on cpu: trajectory 'demo_3': unknown camera 'right'"):
        strap.embed(missing, "pixels", tmp_path / "s", devices=("cpu", "cpu"))
    with pytest.raises(StrapError, match="batch is 0: give at least 1"):
        strap.embed(opened, "pixels", tmp_path / "s", batch=0)
    with pytest.raises(StrapError, match="unknown engine 'spark': Known: local, ray"):
        strap.embed(opened, "pixels", tmp_path / "s", engine="spark")  # type: ignore[arg-type]


class Slow(Logged):
    """Each process leaves its number, so that a test can kill one."""

    def __reduce__(self) -> tuple[object, ...]:
        return rebuilt, (type(self), self.size, Logged.log)


class Refusing(Slow):
    """From the 89th batch on."""

    def encode(self, images: np.ndarray) -> np.ndarray:
        vectors = super().encode(images)
        if len(batches(Path(self.log))) > 88:
            raise StrapError("the lens is dirty: clean it")
        return vectors


def rebuilt(kind: type[Slow], size: int, log: str) -> Slow:
    Logged.log, Logged.seconds = log, 0.01
    return kind(size)


def batches(log: Path) -> list[tuple[int, int]]:
    """(process, images) of every batch so far."""
    lines = log.read_text().splitlines() if log.is_file() else []
    return [(int(process), int(images)) for process, images in map(str.split, lines)]


def listening(process: int) -> set[str]:
    """The addresses a process listens on, as the kernel writes them."""
    links = []
    for file in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # one that was closed meanwhile
            links.append(str(file.readlink()))
    inodes = {link[8:-1] for link in links if link.startswith("socket:")}
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}


def kill_the_first(log: Path, killed: list[int], addresses: set[str], done: Event) -> None:
    while not done.is_set():
        begun = batches(log)
        if len(begun) >= 8:
            killed.append(begun[0][0])
            addresses |= listening(killed[0])
            os.kill(killed[0], signal.SIGKILL)
            return
        time.sleep(0.01)


def test_ray_with_a_killed_worker(
    dataset: Path, undisturbed: EmbeddingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers on loopback; one is killed in the middle, and nothing of it is seen."""
    pytest.importorskip("ray")
    monkeypatch.setattr(work, "GROUP_IMAGES", 150)
    log, killed, addresses, done = tmp_path / "log", list[int](), set[str](), Event()
    Logged.log = str(log)
    killer = Thread(target=kill_the_first, args=(log, killed, addresses, done))
    killer.start()
    try:
        store = strap.embed(
            strap.open_dataset(dataset), Slow(4), tmp_path / "s", engine="ray", workers=2, batch=16
        )
    finally:
        done.set()
        killer.join()
    processes = {process for process, _ in batches(log)}
    assert killed
    assert addresses
    assert addresses <= LOOPBACK
    assert len(processes) > 1  # the others: one that was there, perhaps one that was started again
    assert os.getpid() not in processes
    assert sum(images for _, images in batches(log)) >= IMAGES
    assert_same(store, undisturbed)


def test_a_machine_that_is_lost_for_good_keeps_nobody_waiting(
    dataset: Path, undisturbed: EmbeddingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two machines with one processor each: the other one takes over what it was doing."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setattr(work, "GROUP_IMAGES", 150)
    log = tmp_path / "log"
    Logged.log = str(log)
    machines = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = machines.add_node(num_cpus=1)

    def lose_the_second(what: str, done: int, total: int) -> None:
        both_work = len({process for process, _ in batches(log)}) == 2
        if both_work and second in machines.list_all_nodes():
            machines.remove_node(second, allow_graceful=False)

    try:
        store = strap.embed(
            strap.open_dataset(dataset),
            Slow(4),
            tmp_path / "s",
            engine="ray",
            address=machines.address,
            batch=16,
            progress=lose_the_second,
        )
        assert second not in machines.list_all_nodes()
    finally:
        machines.shutdown()
    assert_same(store, undisturbed)


class Deadly(Logged):
    """An encoder that ends its process."""

    def encode(self, images: np.ndarray) -> np.ndarray:
        os._exit(1)

    def __reduce__(self) -> tuple[object, ...]:
        return Deadly, (self.size,)


def test_what_kills_every_worker_is_named(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(cluster, "RETRIES", 1)
    with pytest.raises(StrapError, match=r"'demo_0' to '.*': 2 workers were lost while they"):
        strap.embed(strap.open_dataset(dataset), Deadly(4), tmp_path / "s", engine="ray", workers=1)


def test_ray_with_a_slow_disk_and_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker waits until its vectors are written; its error is told in its own words."""
    pytest.importorskip("ray")
    dataset = strap.open_dataset(write_dataset(tmp_path / "d.hdf5", lengths=(20,) * 40))
    monkeypatch.setattr(work, "GROUP_IMAGES", 40)  # of one trajectory, by two cameras
    log, ahead = tmp_path / "log", list[int]()
    Logged.log = str(log)

    def slow(what: str, done: int, total: int) -> None:
        time.sleep(0.2)
        ahead.append((sum(images for _, images in batches(log)) - done) // 40)

    with pytest.raises(StrapError, match=r"^the lens is dirty: clean it$"):
        strap.embed(
            dataset, Refusing(4), tmp_path / "s", engine="ray", workers=1, batch=16, progress=slow
        )
    assert len({process for process, _ in batches(log)}) == 1
    assert len(ahead) >= 18
    assert max(ahead) <= cluster.GROUPS_AHEAD + 1
    store = strap.embed(dataset, PixelEncoder(4), tmp_path / "s", batch=16)
    assert_same(store, strap.embed(dataset, PixelEncoder(4), tmp_path / "alone", batch=16))


def test_a_machine_with_an_older_copy_of_the_dataset_is_named(tmp_path: Path) -> None:
    file = write_dataset(tmp_path / "d.hdf5", lengths=(5, 7))
    dataset = strap.open_dataset(file)
    begun = [
        PendingTrajectory(t.id, t.length, t.instruction, work.stamp_trajectory(t)) for t in dataset
    ]
    embedder = cluster.GroupEmbedder(dataset, PixelEncoder(4), ("left",), "float16", 16)
    assert [one.fingerprint for one in embedder.embed(begun)] == [
        trajectory.fingerprint(("left",)) for trajectory in dataset
    ]
    os.utime(file, (1, 1))
    with pytest.raises(StrapError, match=r"trajectory 'demo_0' .* on machine .* copy the dataset"):
        embedder.embed(begun)


def test_ray_is_named_where_it_is_missing(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(StrapError, match=r"needs Ray: pip install .*\[ray\]"):
        strap.embed(strap.open_dataset(dataset), "pixels", tmp_path / "s", engine="ray")


def test_batches_cross_the_borders_of_trajectories(dataset: Path, tmp_path: Path) -> None:
    """Few, full batches; and what shares a batch does not depend on the size of reads."""
    sizes: list[int] = []

    class Counting(PixelEncoder):
        def encode(self, images: np.ndarray) -> np.ndarray:
            sizes.append(len(images))
            return super().encode(images)

    strap.embed(strap.open_dataset(dataset), Counting(4), tmp_path / "s", batch=64, workers=3)
    assert sizes == [*[64] * 15, 40] * 2  # 1000 frames by each of two cameras


def test_batches_in_flight(dataset: Path, undisturbed: EmbeddingStore, tmp_path: Path) -> None:
    """As on a GPU: a batch is begun before the one before it is waited for."""
    events: list[str] = []

    class Queued(PixelEncoder):
        ahead = 1

        def start(self, images: np.ndarray) -> Callable[[], np.ndarray]:
            events.append("start")

            def wait() -> np.ndarray:
                events.append("wait")
                return self.encode(images)

            return wait

    store = strap.embed(strap.open_dataset(dataset), Queued(4), tmp_path / "s", batch=16)
    assert_same(store, undisturbed)
    assert events[:5] == ["start", "start", "wait", "start", "wait"]
    assert events.count("start") == events.count("wait")


def test_threads_read_one_dataset() -> None:
    """Decoding threads share a LeRobot dataset's few files; none disturbs another."""
    pytest.importorskip("av")
    dataset = strap.open_dataset(SAMPLE)
    expected = {key: dataset[key].actions[:] for key in dataset.ids}
    frames = {key: dataset[key].frames("agentview_rgb", 3, 5) for key in dataset.ids[:6]}
    for _ in range(3):
        tables._cached_column.cache_clear()
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda key: dataset[key].actions[:], dataset.ids))
            seen = list(threads.map(lambda k: dataset[k].frames("agentview_rgb", 3, 5), frames))
        for key, actions in zip(dataset.ids, found, strict=True):
            assert np.array_equal(actions, expected[key])
        for one, other in zip(seen, frames.values(), strict=True):
            assert np.array_equal(one, other)
