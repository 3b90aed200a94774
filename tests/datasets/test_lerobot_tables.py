"""LeRobot tables of somebody else, ids that are none, and what commands say."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.datasets.lerobot_damage import (
    DATA,
    EPISODES,
    FRONT,
    INFO,
    LENGTHS,
    Change,
    column,
    edit_info,
    edit_table,
    first,
    read_all,
)
from tests.datasets.writers import (
    episodes,
    number_of,
    picture,
    png,
    write_lerobot_v3,
)

import strap
from strap.cli import main
from strap.datasets.lerobot import parquet
from strap.datasets.lerobot.pages import unpacked_size
from strap.errors import StrapError

NUMBERS = "it must be whole numbers"


def test_untouched_they_are_read(v3: Path, pictures: Path, v21: Path) -> None:
    for root in (v3, pictures, v21):
        assert [t.length for t in read_all(root)] == list(LENGTHS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["episode_index"]), "has no column 'episode_index'"),
        (lambda t: t.drop_columns(["action"]), "has no column 'action', which meta/info.json"),
        (lambda t: t.append_column("action", t["action"]), "has two columns 'action'"),
        (lambda t: t.slice(0, 0), "holds no rows of episode 0 .it has none"),
        (lambda t: t.slice(0, 9), "episode 2: column .* has 3 rows but meta/ says 7"),
        (lambda t: pa.concat_tables([t, t]), "the rows of episode 0 are not together"),
        (lambda t: t.take(list(range(12, -1, -1))), "its rows are not in the order of frame_index"),
        (column("episode_index", "0"), f"'episode_index' is of type string; {NUMBERS}"),
        (column("episode_index", first(None)), "'episode_index' has missing values"),
        (column("episode_index", first(-1)), f"'episode_index' is -1 in a row; {NUMBERS}"),
        (
            column("episode_index", lambda old: [2**62 + i for i in old]),
            "holds no rows of episode 0",
        ),
        (column("frame_index", "0"), f"'frame_index' is of type string; {NUMBERS}"),
        (column("frame_index", 0), "its rows are not in the order of frame_index"),
        (column("action", "a"), "column 'action' is not a regular array .it holds string"),
        (column("action", ["1", "2", "3"]), "'action' is not a regular array .it holds string"),
        (column("action", b"a"), "column 'action' is not a regular array .it holds binary"),
        (column("action", None), "column 'action' is not a regular array .it holds null"),
        (column("action", Decimal("1.5")), "'action' is not a regular array .it holds decimal"),
        (column("action", datetime(2020, 1, 1)), "is not a regular array .it holds timestamp"),
        (column("action", {"a": 1}), "column 'action' is not a regular array .it holds struct"),
        (column("action", first(None)), "column 'action' is not a regular array"),
        (column("action", first([None, 1, 2])), "'action' is not a regular array .it has missing"),
        (column("action", lambda old: [old[0][:2], *old[1:]]), "its rows differ in length"),
        (
            column("action", lambda old: [[row] for row in old]),
            r"'action' has shape \[1, 3\] per frame",
        ),
        (column("action", 1.0), r"'action' has shape \[\] per frame but meta/info.json says \[3\]"),
        (
            column("action", [[1e300] * 3] * 13),
            "'action' is 1e.300 in a frame, which does not fit into float32",
        ),
        (column("next.done", 2), "'next.done' is 2 in a frame, which does not fit into bool"),
    ],
)
def test_data_files_of_a_wrong_kind(v3: Path, change: Change, message: str) -> None:
    edit_table(v3 / DATA, change)
    with pytest.raises(StrapError, match=f"file-000.parquet'.*{message}"):
        read_all(v3)


def test_columns_named_like_the_beginning_of_others(pictures: Path) -> None:
    """`front` and `front.left` are two cameras."""
    old, new = "observation.images.wrist", "observation.images.front.left"
    info = (pictures / INFO).read_text().replace(old, new)
    (pictures / INFO).write_text(info)
    names = pq.read_schema(pictures / DATA).names
    renamed = [new if name == old else name for name in names]
    edit_table(pictures / DATA, lambda t: t.rename_columns(renamed).select(renamed[::-1]))
    found = read_all(pictures)[0]
    np.testing.assert_array_equal(found.frames("front")[0], picture(0))
    np.testing.assert_array_equal(found.frames("front.left")[0], picture(0, tint=20))


@pytest.mark.parametrize("version", ["v3", "pictures"])
def test_data_files_that_unpack_to_more_than_allowed(
    version: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = request.getfixturevalue(version)
    wide = 100_000
    edit_table(root / DATA, column("action", pa.array([[0.0] * wide] * 13, pa.list_(pa.float32()))))
    assert (root / DATA).stat().st_size < 100_000
    monkeypatch.setattr(parquet, "MAX_COLUMN_BYTES", 1 << 23)
    dataset = strap.open_dataset(root)
    with pytest.raises(StrapError, match=r"declares 15,600,000 bytes of column 'action' in a row"):
        dataset["episode_000000"].actions[:]


def varint(value: int, length: int = 1) -> bytes:
    """A number as Thrift writes it, at least `length` bytes long."""
    out, value = [], value << 1
    while value or len(out) < length:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out[:-1], out[-1] & 127])


def test_data_files_whose_footer_understates_what_they_hold(
    v3: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = 3_000_000
    values = pa.array(np.zeros(wide, np.float32))
    lists = pa.ListArray.from_arrays(pa.array([0] + [wide] * 13, pa.int32()), values)
    table = column("action", lists)(pq.read_table(v3 / DATA))
    pq.write_table(table, v3 / DATA, data_page_size=1 << 30)
    data = (v3 / DATA).read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    true = varint(wide + 12)  # an empty list counts as a value
    assert data.count(true, footer) == 1
    data = data[:footer] + data[footer:].replace(true, varint(39, len(true)))
    (v3 / DATA).write_bytes(data)
    place = pq.read_schema(v3 / DATA).names.index("action")
    assert pq.ParquetFile(v3 / DATA).metadata.row_group(0).column(place).num_values == 39
    monkeypatch.setattr(parquet, "MAX_COLUMN_BYTES", 1 << 24)
    with pytest.raises(StrapError, match="declares 36,000,144 bytes of column 'action'"):
        strap.open_dataset(v3)["episode_000000"].actions[:]


@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("dictionary", [True, False])
def test_pages_add_up_to_what_an_honest_footer_says(
    tmp_path: Path, page_version: str, compression: str, statistics: bool, dictionary: bool
) -> None:
    rng = np.random.default_rng(0)
    count = 2000
    table = pa.table(
        {
            "number": np.arange(count),
            "list": pa.array(list(rng.normal(size=(count, 3)))),
            "text": ["long texts in statistics " * 50 + str(i) for i in range(count)],
        }
    )
    pq.write_table(
        table,
        tmp_path / "a.parquet",
        data_page_version=page_version,
        compression=compression,
        write_statistics=statistics,
        write_page_checksum=statistics,
        use_dictionary=dictionary,
        data_page_size=2000,
        row_group_size=900,
    )
    footer = pq.ParquetFile(tmp_path / "a.parquet").metadata
    with (tmp_path / "a.parquet").open("rb") as file:
        for group in range(footer.num_row_groups):
            for leaf in range(footer.num_columns):
                chunk = footer.row_group(group).column(leaf)
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                place = (file, start, chunk.total_compressed_size)
                pages = unpacked_size(*place, chunk.num_values, 0)
                n_values = unpacked_size(*place, chunk.num_values, 10**6) / 10**6
                assert n_values == chunk.num_values
                assert 0.5 < pages / chunk.total_uncompressed_size <= 1  # that has headers, too


def test_pictures_that_repeat_are_read_a_few_at_a_time(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture that stands once in the file may be that of every row."""
    same = [{"bytes": png(picture(3)), "path": None}] * sum(LENGTHS)
    edit_table(pictures / DATA, column("observation.images.front", pa.array(same)))
    monkeypatch.setattr(parquet, "MAX_BATCH_BYTES", 2000)
    assert [
        number_of(f) for f in strap.open_dataset(pictures)["episode_000002"].frames("front")
    ] == [3] * 7


def test_episodes_longer_than_what_is_read_at_a_time(tmp_path: Path) -> None:
    lengths = (parquet.ROWS_PER_BATCH - 3, 10, parquet.ROWS_PER_BATCH + 5)
    root = write_lerobot_v3(tmp_path / "d", episodes((5, 1, 7)))
    index = np.repeat(np.arange(3), lengths)
    frames = np.concatenate([np.arange(n) for n in lengths])
    action = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(index, 3).astype(np.float32)), 3)
    table = {"episode_index": index, "frame_index": frames, "action": action}
    pq.write_table(pa.table(table), root / DATA)
    edit_table(root / EPISODES, column("length", list(lengths)))
    info = json.loads((root / INFO).read_text())
    info["features"] = {"action": info["features"]["action"]}
    (root / INFO).write_text(json.dumps(info))
    for i, trajectory in enumerate(read_all(root)):
        assert trajectory.actions.shape == (lengths[i], 3)
        assert (trajectory.actions[:] == i).all()
    frames[parquet.ROWS_PER_BATCH] = 0  # the first row of the second batch
    pq.write_table(pa.table({**table, "frame_index": frames}), root / DATA)
    with pytest.raises(StrapError, match="not in the order of frame_index"):
        read_all(root)


def test_frames_of_the_next_episode_are_not_given_away(v3: Path) -> None:
    """Episodes share a video: one that is declared too long would show the next."""
    edit_table(v3 / EPISODES, column("length", [5, 3, 7]))
    with pytest.raises(StrapError, match="episode 1: column 'episode_index' has 1 rows but meta/"):
        strap.open_dataset(v3)["episode_000001"].frames("front")


@pytest.mark.parametrize(
    "name", ["episode_000009", "episode_²", "episode_0", "x", "", "episode_" + "9" * 5000]
)
def test_unknown_ids(v3: Path, name: str) -> None:
    dataset = strap.open_dataset(v3)
    with pytest.raises(KeyError):
        dataset.reader.read(name)
    with pytest.raises(StrapError, match="unknown trajectory"):
        dataset[name]


def test_an_error_inside_is_no_unknown_id(v3: Path) -> None:
    reader = strap.open_dataset(v3).reader
    del reader.layout.columns["data/chunk_index"]
    with pytest.raises(StrapError, match=rf"cannot read '{v3}' as LeRobot \(KeyError"):
        reader.read("episode_000000")


@pytest.mark.parametrize("damage", ["data_path", "video", "table", "info"])
def test_inspect_says_it_in_one_line(
    v3: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if damage == "data_path":
        edit_info(v3, "data_path", "{episode_index:3000000000d}")
    elif damage == "video":
        (v3 / FRONT).write_text("ffconcat version 1.0\nfile neighbour.mp4\n")
    elif damage == "table":
        edit_table(v3 / EPISODES, column("length", [[1]] * 3))
    else:
        (v3 / INFO).write_text("[" * 100_000)
    code = main(["inspect", str(v3)])
    printed = capsys.readouterr()
    if damage == "video":  # the rest of the dataset is told
        assert (code, "camera front cannot be read" in printed.out) == (0, True)
    else:
        assert code == 2
        assert printed.err.startswith("strap: ") or printed.err.startswith("error: ")
        assert printed.err.count("\n") == 1
