"""The store under kills, beside other writers, on a full disk, with flipped bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.killing import execute
from tests.stores import IMAGES, LENGTHS, assert_same, make_store, write_dataset

import strap
from strap.cli import main
from strap.embeddings import is_embedded, work
from strap.encoders import PixelEncoder
from strap.errors import StrapError
from strap.progress import silent
from strap.search.corpus import Corpus
from strap.store import EmbeddingStore, PendingTrajectory, Session, upkeep
from strap.store.journal import pack, unpack
from strap.store.layout import HEADER_BYTES


def test_twenty_kills(dataset: Path, undisturbed: EmbeddingStore, tmp_path: Path) -> None:
    """Whenever a writer is killed, the next goes on with the very next batch."""
    plan = {"kills": 20, "after": (0.05, 0.22), "seconds": 0.03}  # 4 s of work, 3 s of kills
    report, batches = execute(tmp_path, dataset=str(dataset), **plan)
    assert report["codes"] == [0]
    assert report["killed"] == 20
    finished = strap.open_store(tmp_path / "store")
    assert_same(finished, undisturbed)
    sizes: dict[int, list[int]] = {}
    for process, size in batches:
        sizes.setdefault(process, []).append(size)
    assert len(sizes) > 5  # killed at work, not before it
    lost = [own[-1] for own in sizes.values()]  # the last batch of each may have been in flight
    assert IMAGES <= sum(size for _, size in batches) <= IMAGES + sum(lost[:-1])
    assert not list((finished.path / "partial").iterdir())


def test_two_writers_share_the_work(
    dataset: Path, undisturbed: EmbeddingStore, tmp_path: Path
) -> None:
    report, batches = execute(tmp_path, dataset=str(dataset), writers=2)
    assert report["codes"] == [0, 0]
    assert_same(strap.open_store(tmp_path / "store"), undisturbed)
    assert sum(size for _, size in batches) == IMAGES  # nothing twice
    assert len({process for process, _ in batches}) == 2


def test_a_killed_writer_s_work_is_taken_over_by_the_other(
    dataset: Path, undisturbed: EmbeddingStore, tmp_path: Path
) -> None:
    plan = {"kills": 1, "writers": 2, "kill_all": False, "after": (0.3, 0.3)}
    report, batches = execute(tmp_path, dataset=str(dataset), **plan)
    assert report == {"killed": 1, "codes": [0]}
    assert_same(strap.open_store(tmp_path / "store"), undisturbed)
    assert sum(size for _, size in batches) <= IMAGES + 16


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 128 kB, where we may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(dataset: Path, undisturbed: EmbeddingStore, small_disk: Path) -> None:
    out = small_disk / "store"
    opened = strap.open_dataset(dataset)
    (small_disk / "ballast").write_bytes(bytes(80_000))
    with pytest.raises(StrapError, match=r"no space left to write .*what was finished is kept"):
        strap.embed(opened, PixelEncoder(4), out, batch=16)
    assert len(strap.open_store(out)) == 0
    (small_disk / "ballast").unlink()
    assert_same(strap.embed(opened, PixelEncoder(4), out, batch=16), undisturbed)


def test_a_limit_on_file_size(dataset: Path, undisturbed: EmbeddingStore, tmp_path: Path) -> None:
    """The same where nothing may be mounted, and through the command line."""
    code = (
        "import resource, signal, sys, strap; from strap.cli import main;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000));"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = ["embed", str(dataset), "--encoder", "pixels", "--out", str(tmp_path / "s")]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no space left to write" in done.stderr
    assert "Traceback" not in done.stderr
    assert main(words) == 0
    assert strap.open_store(tmp_path / "s").ids == undisturbed.ids


def test_every_flipped_byte_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = {f"t{i}": np.random.default_rng(i).random((6, 4), np.float32) for i in range(3)}
    store = make_store(tmp_path / "s", arrays)
    for name in ("000000.camera.npy", "000000.json"):
        file = store.path / "shards" / name
        whole = file.read_bytes()
        step = 1 if name.endswith("npy") else 7
        for position in range(0, len(whole), step):
            damaged = bytearray(whole)
            damaged[position] ^= 4
            file.write_bytes(damaged)
            assert upkeep.verify_path(store.path), (name, position)
        file.write_bytes(whole)
    assert upkeep.verify_path(store.path) == []
    data = bytearray((store.path / "shards/000000.camera.npy").read_bytes())
    data[HEADER_BYTES + 6 * 16 + 3] ^= 1  # in t1
    (store.path / "shards/000000.camera.npy").write_bytes(data)
    reopened = strap.open_store(store.path)
    assert np.array_equal(reopened["t0"], arrays["t0"])
    message = r"'000000.camera.npy' is damaged at trajectory 't1' \(rows 6 to 11\)"
    for read in (lambda: reopened["t1"], lambda: reopened.shard_frames(reopened.shards["000000"])):
        with pytest.raises(StrapError, match=message):
            read()
    assert main(["store", "verify", str(store.path)]) == 2
    assert "1 damaged" in capsys.readouterr().out
    assert main(["store", "verify", str(store.path), "--drop"]) == 0
    assert "removed; run `strap embed` again" in capsys.readouterr().out
    assert main(["store", "verify", str(store.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sound"]
    assert strap.open_store(store.path).ids == ("t0", "t2")


def test_only_what_was_damaged_is_embedded_again(dataset: Path, tmp_path: Path) -> None:
    class Counting(PixelEncoder):
        seen = 0

        def encode(self, images: np.ndarray) -> np.ndarray:
            Counting.seen += len(images)
            return super().encode(images)

    opened = strap.open_dataset(dataset)
    store = strap.embed(opened, Counting(4), tmp_path / "s")
    file = store.path / "shards" / store.shards["000000"].files[1]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    damages = upkeep.verify_path(store.path)
    assert [d.entry.id for d in damages if d.entry] == ["demo_15"]
    upkeep.drop_damaged(store.path, damages)
    before = Counting.seen
    again = strap.embed(opened, Counting(4), tmp_path / "s")
    assert Counting.seen - before == 2 * LENGTHS[15]
    assert again.ids == store.ids
    assert again.verify() == []


def test_plain_numpy_reads_a_shard(undisturbed: EmbeddingStore) -> None:
    shard = undisturbed.shards["000000"]
    for camera, name in zip(undisturbed.config.cameras, shard.files, strict=True):
        plain = np.load(undisturbed.path / "shards" / name)
        assert plain.dtype == np.float16
        assert plain.shape == (sum(LENGTHS), 16)
        entry = undisturbed.entry("demo_3")
        rows = plain[entry.offset : entry.stop]
        assert np.array_equal(rows, undisturbed.of_camera("demo_3", camera))


def test_merging(
    dataset: Path,
    undisturbed: EmbeddingStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two parts, embedded apart, make the whole."""
    monkeypatch.setattr(work, "GROUP_IMAGES", 150)
    opened = strap.open_dataset(dataset)
    parts = [
        strap.embed(opened, PixelEncoder(4), tmp_path / part[0], part=part, batch=16)
        for part in ("1/2", "2/2")
    ]
    assert not any(part.complete for part in parts)
    assert sum(map(len, parts)) == len(LENGTHS)
    words = ["store", "merge", *(str(part.path) for part in parts), "--out", str(tmp_path / "all")]
    assert main(words) == main(words) == 0  # the second time there is nothing to do
    assert f"--encoder pixels --out {tmp_path / 'all'}` embeds" in capsys.readouterr().out
    merged = strap.embed(opened, PixelEncoder(4), tmp_path / "all")
    assert_same(merged, undisturbed)
    assert len(merged.shards) == 2
    with pytest.raises(StrapError, match="part is '3/2': give it as 1/4"):
        strap.embed(opened, PixelEncoder(4), tmp_path / "x", part="3/2")


def test_what_cannot_be_merged(tmp_path: Path) -> None:
    one = make_store(tmp_path / "one", {"a": np.zeros((3, 2))})
    other = make_store(tmp_path / "other", {"a": np.ones((3, 2))})
    with pytest.raises(StrapError, match=r"are of different datasets .*name it with --dataset"):
        upkeep.merge([one.path, other.path], tmp_path / "x")
    for sources, out in (([one, other], tmp_path / "x"), ([other], one.path)):
        with pytest.raises(StrapError, match=r"'a' .*was embedded from other data"):
            upkeep.merge([store.path for store in sources], out, dataset="d")
    assert not (tmp_path / "x").exists()
    assert strap.open_store(one.path).complete
    wide = make_store(tmp_path / "wide", {"b": np.zeros((3, 5))})
    with pytest.raises(StrapError, match=r"differs from .* in its dim \(5 against 2\)"):
        upkeep.merge([one.path, wide.path], tmp_path / "y", dataset="d")
    assert upkeep.merge([one.path], tmp_path / "z").complete


def test_merging_never_mixes_nor_overwrites(tmp_path: Path) -> None:
    dataset, other = (write_dataset(tmp_path / f"{n}.hdf5", LENGTHS[:2]) for n in "ab")
    one, two = (
        strap.embed(strap.open_dataset(file), PixelEncoder(4), tmp_path / file.stem)
        for file in (dataset, other)
    )
    with pytest.raises(StrapError, match="the stores are of different datasets"):
        upkeep.merge([two.path], one.path)
    run = tmp_path / "run"
    run.mkdir()
    (run / "manifest.json").write_text("{}")
    with pytest.raises(StrapError, match=r"run' exists and is not an embedding store"):
        upkeep.merge([one.path], run)
    assert [file.name for file in run.iterdir()] == ["manifest.json"]
    writer = Session(two.path, two.config)
    writer.begin([PendingTrajectory("demo_9", 3, "", "")])
    with pytest.raises(StrapError, match="another process is writing to store"):
        upkeep.merge([two.path], two.path)
    writer.close()
    assert_same(upkeep.merge([one.path], tmp_path / "new"), one)


def test_a_merged_store_is_up_to_date_where_its_parts_are(tmp_path: Path) -> None:
    """Parts that were read otherwise, or before a change, are looked at again."""
    file = write_dataset(tmp_path / "a.hdf5", LENGTHS[:4])
    dataset, flipped = (
        strap.open_dataset(file, orientation=which) for which in ("upright", "flipped")
    )

    def embedded(place: str, some: strap.Dataset) -> Path:
        return strap.embed(some, PixelEncoder(4), tmp_path / place).path

    first, last = dataset.ids[:2], dataset.ids[2:]
    one, two = embedded("one", dataset.select(first)), embedded("two", dataset.select(last))
    assert is_embedded(upkeep.merge([one, two], tmp_path / "same"), dataset)
    assert is_embedded(upkeep.merge([two], one), dataset)  # into one that is there
    turned = embedded("turned", flipped.select(last))
    three = embedded("three", dataset.select(first))
    mixed = upkeep.merge([three, turned], tmp_path / "mixed")
    assert not is_embedded(mixed, dataset)
    again = embedded("again", dataset)
    assert_same(strap.embed(dataset, PixelEncoder(4), mixed.path), strap.open_store(again))
    os.utime(file, (1, 1))
    assert strap.embed(dataset.select(first), PixelEncoder(4), again).manifest["unchecked"] == [
        *last
    ]
    assert not is_embedded(upkeep.merge([again], tmp_path / "older"), dataset)


def test_clearing_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_dataset(tmp_path / "a.hdf5", LENGTHS[:5])
    strap.embed(strap.open_dataset(file), PixelEncoder(4), tmp_path / "s")
    write_dataset(file, LENGTHS[:4], seed=1)  # all changed, one gone
    store = strap.embed(strap.open_dataset(file), PixelEncoder(4), tmp_path / "s")
    assert upkeep.describe_store(store.path)["replaced_trajectories"] == 5
    (store.path / "shards/000009.left.npy").write_bytes(b"orphan")
    (store.path / "shards/.000009.json.1.tmp").write_bytes(b"{")
    (store.path / "sketches").mkdir()
    (store.path / "sketches/000000.bin").write_bytes(b"mine")
    expected = {key: store[key] for key in store}
    assert main(["store", "gc", str(store.path), "--dry-run"]) == 0
    assert "would remove shards/000009.left.npy" in capsys.readouterr().out
    assert len(list((store.path / "shards").glob("*.npy"))) == 5
    assert main(["store", "gc", str(store.path)]) == 0
    assert "freed" in capsys.readouterr().out
    cleared = strap.open_store(store.path)
    assert cleared.complete
    assert upkeep.describe_store(store.path)["replaced_bytes"] == 0
    assert len(list((store.path / "shards").iterdir())) == 3
    assert (store.path / "sketches/000000.bin").read_bytes() == b"mine"
    assert {key: cleared[key].tolist() for key in cleared} == {
        key: array.tolist() for key, array in expected.items()
    }
    assert strap.embed(strap.open_dataset(file), PixelEncoder(4), store.path).ids == store.ids


def test_clearing_out_waits_for_writers(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", {"a": np.zeros((2, 3))})
    session = Session(store.path, store.config)
    session.claim({"b": None})
    with pytest.raises(StrapError, match="another process is writing to store"):
        upkeep.collect_garbage(store.path)
    assert main(["store", "info", str(store.path)]) == 0
    assert Session(store.path, store.config).claim({"b": None, "c": None}) == ["c"]
    session.close()
    assert upkeep.collect_garbage(store.path).rewritten == ()


def test_info(
    dataset: Path, undisturbed: EmbeddingStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "info", str(undisturbed.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trajectories"] == len(LENGTHS)
    assert found["bytes"] == IMAGES * 16 * 2
    assert found["unfinished"] == []
    assert main(["store", "info", str(undisturbed.path)]) == 0
    text = capsys.readouterr().out
    assert "complete" in text
    assert str(dataset) in text
    assert main(["store", "info", str(dataset)]) == 2


def test_a_store_holds_one_dataset(dataset: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.hdf5"
    copy = write_dataset(tmp_path / "copy.hdf5", LENGTHS[:2])
    strap.embed(strap.open_dataset(copy), PixelEncoder(4), tmp_path / "s")
    with pytest.raises(StrapError, match=r"holds dataset .*copy.hdf5', not .*a\.hdf5"):
        strap.embed(strap.open_dataset(dataset), PixelEncoder(4), tmp_path / "s")
    copy.rename(moved)  # the same dataset in another place is no other dataset
    store = strap.embed(strap.open_dataset(moved), PixelEncoder(4), tmp_path / "s")
    assert store.dataset == str(moved)
    assert len(store.shards) == 1
    flipped = strap.open_dataset(moved, orientation="flipped")
    turned = strap.embed(flipped, PixelEncoder(4), tmp_path / "s")
    assert np.allclose(turned["demo_0"][0].reshape(4, 4)[::-1].ravel(), store["demo_0"][0])


def test_a_torn_journal_ends_where_it_is_torn() -> None:
    lines = [{"claim": ["a"]}, {"rows": [0, 0, 3, 17]}, {"claim": ["ü"]}]
    whole = pack(lines)
    assert [line for line, _ in unpack(whole)] == lines
    for cut in range(len(whole)):
        kept = [line for line, _ in unpack(whole[:cut])]
        assert kept == lines[: len(kept)]
    flipped = bytearray(whole)
    flipped[len(pack(lines[:1])) + 12] ^= 1
    assert [line for line, _ in unpack(bytes(flipped))] == lines[:1]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc")
def test_a_search_gives_back_the_memory_of_shards_it_has_left(tmp_path: Path) -> None:
    """Else a store larger than memory would fill it; a small one stays for the next search."""
    arrays = {f"t{i}": np.full((500, 512), i, np.float32) for i in range(8)}
    store = make_store(tmp_path / "s", arrays, per_shard=1)
    assert store.nbytes == 8 * 500 * 512 * 4
    seen = []
    for block in Corpus([store], small_bytes=store.nbytes - 1).blocks(silent):
        assert np.array_equal(block.frames, arrays[f"t{block.ids[0]}"])
        seen.append(_resident(tmp_path))
    assert max(seen) <= 2 * 500 * 512 * 4
    assert _resident(tmp_path) == 0
    assert np.array_equal(store["t3"], arrays["t3"])  # and can be read again
    small = Corpus([store], small_bytes=store.nbytes)
    assert [block.frames.sum() for block in small.blocks(silent)][1] == 500 * 512
    assert _resident(tmp_path) >= store.nbytes


def _resident(folder: Path) -> int:
    """Bytes of mapped files below a folder that are in this process's memory."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            ours = str(folder) in line
        elif ours and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total
