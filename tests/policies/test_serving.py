"""`strap serve`: real servers, real clients, and those who come to disturb."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from tests.policies.small_policies import observe, save_small_policy, serve_command, serving
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from strap.cli import main
from strap.errors import StrapError
from strap.policies import Observation, Policy, acting, load_policy
from strap.serving import websocket
from strap.serving.batching import Batcher, act_together
from strap.serving.contract import (
    Request,
    describe_policy,
    message_limit,
    read_request,
    require_distinct_names,
)
from strap.serving.messages import pack, unpack
from strap.serving.websocket import read_key

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
KEY = "0123456789abcdef"
MOMENTS = 7


class OwnClient:
    """What openpi's client does, in our own words; errors are raised as its are."""

    def __init__(self, host: str, port: int, api_key: str | None = None) -> None:
        headers = {"Authorization": f"Api-Key {api_key}"} if api_key else None
        self._ws = dial(f"ws://{host}:{port}", max_size=None, additional_headers=headers)
        self._metadata = unpack(self._ws.recv())

    def get_server_metadata(self) -> dict[str, Any]:
        return self._metadata

    def infer(self, message: dict[str, Any]) -> dict[str, Any]:
        self._ws.send(pack(message))
        answer = self._ws.recv()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return unpack(answer)


def openpi_client() -> Any:
    module = pytest.importorskip("openpi_client.websocket_client_policy")
    return module.WebsocketClientPolicy


Client = Callable[..., Any]


@pytest.fixture(params=["openpi", "own"])
def client(request: pytest.FixtureRequest) -> Client:
    """openpi's real client, and ours for machines without it."""
    return openpi_client() if request.param == "openpi" else OwnClient


@pytest.fixture(scope="module", params=["transformer", "diffusion"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_policy(tmp_path_factory.mktemp("policy"), request.param)


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def policy(transformer: Path) -> Policy:
    return load_policy(transformer, device="cpu")


@pytest.fixture
def port(policy: Policy) -> Iterator[int]:
    with serving(policy) as port:
        yield port


def as_message(seen: Observation, **others: Any) -> dict[str, Any]:
    return {**seen.images, **seen.proprioception, "prompt": seen.instruction, **others}


def act_alone(folder: Path, first: int) -> list[np.ndarray]:
    policy = load_policy(folder, device="cpu")
    return [policy.act(observe(first + moment)) for moment in range(MOMENTS)]


def act_over(client: Any, first: int) -> list[np.ndarray]:
    answers = [client.infer(as_message(observe(first + t))) for t in range(MOMENTS)]
    assert all(answer["actions"].shape == (1, 4) for answer in answers)
    return [answer["actions"][0] for answer in answers]


def dial(address: str, **options: Any) -> ClientConnection:
    """A connection that whoever asked for it closes."""
    return connect(address, compression=None, **options).__enter__()


def raw(port: int, **options: Any) -> ClientConnection:
    """A connection that has been told the metadata."""
    connection = dial(f"ws://127.0.0.1:{port}", **options)
    connection.recv()
    return connection


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def undisturbed(folder: Path, port: int) -> Iterator[None]:
    """A client that acts before, while and after another disturbs, and must not notice."""
    robot, expected = OwnClient("127.0.0.1", port), act_alone(folder, 0)
    done: list[np.ndarray] = []

    def act() -> None:
        moment = len(done)
        done.append(robot.infer(as_message(observe(moment)))["actions"][0])

    act()
    stop = threading.Event()

    def act_on() -> None:
        while len(done) < MOMENTS - 2 and not stop.wait(0.01):
            act()

    thread = threading.Thread(target=act_on)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    while len(done) < MOMENTS:
        act()
    np.testing.assert_allclose(done, expected, atol=1e-5)
    robot._ws.close()


def test_a_client_is_told_what_the_policy_wants(client: Client, port: int) -> None:
    told = client("127.0.0.1", port).get_server_metadata()
    assert told["cameras"] == {"front": {"shapes": [[48, 64, 3], [32, 32, 3]], "dtype": "uint8"}}
    assert told["proprioception"]["ee_pos"] == {"shape": [3], "dtype": "float32"}
    assert told["actions"] == {"shape": [1, 4], "dtype": "float64"}
    assert (told["fps"], told["history"], told["chunk"], told["execute"]) == (20.0, 3, 3, 1)
    assert told["instructions"] == ["pick", "place"]


def test_two_clients_at_once_get_what_the_policy_alone_gives(client: Client, folder: Path) -> None:
    with serving(load_policy(folder, device="cpu")) as port, ThreadPoolExecutor(2) as threads:
        robots = [client("127.0.0.1", port) for _ in range(2)]
        over = list(threads.map(act_over, robots, (0, 100)))
        for robot in robots:
            robot._ws.close()
    np.testing.assert_allclose(over[0], act_alone(folder, 0), atol=1e-5)
    np.testing.assert_allclose(over[1], act_alone(folder, 100), atol=1e-5)
    assert not np.allclose(over[0], over[1], atol=1e-3)


def test_answers_say_how_long_they_took(client: Client, port: int) -> None:
    robot = client("127.0.0.1", port)
    first, second = (robot.infer(as_message(observe(t)))["server_timing"] for t in range(2))
    assert first["infer_ms"] > 0
    assert first["batch"] == 1
    assert "prev_total_ms" not in first
    assert second["prev_total_ms"] >= first["infer_ms"]


def test_reset_begins_a_new_episode(folder: Path) -> None:
    with serving(load_policy(folder, device="cpu")) as port:
        robot = OwnClient("127.0.0.1", port)
        first = act_over(robot, 0)
        on = act_over(robot, 0)
        assert not np.allclose(on[0], first[0], atol=1e-6)  # it remembers what it saw
        again = robot.infer(as_message(observe(0), reset=True))["actions"][0]
        np.testing.assert_allclose(again, first[0], atol=1e-5)
        second = robot.infer(as_message(observe(1), reset=False))["actions"][0]
        np.testing.assert_allclose(second, first[1], atol=1e-5)
        robot._ws.close()


def test_a_refused_observation_is_told_and_the_next_one_answered(
    client: Client, transformer: Path, port: int
) -> None:
    robot, expected = client("127.0.0.1", port), act_alone(transformer, 0)
    for moment in range(3):
        seen = observe(moment)
        wrong = as_message(seen, front=seen.images["front"] / 255.0)
        with pytest.raises(RuntimeError, match=r"camera 'front' gives float64 .* with values 0"):
            robot.infer(wrong)
        right = robot.infer(as_message(seen, rate=20))["actions"][0]
        np.testing.assert_allclose(right, expected[moment], atol=1e-5)


def test_requests_that_wait_together_are_one_batch(policy: Policy) -> None:
    async def ask() -> list[Any]:
        batcher = Batcher(policy)
        requests = [Request(observe(10 * i), is_first=True) for i in range(5)]
        async with batcher.running():
            return await asyncio.gather(*(batcher.act(i, r) for i, r in enumerate(requests)))

    answers = asyncio.run(ask())
    assert [answer.n_batch for answer in answers] == [5] * 5
    for i, answer in enumerate(answers):
        policy.reset()
        np.testing.assert_allclose(answer.action, policy.act(observe(10 * i)), atol=1e-5)


def test_one_that_spoils_a_batch_spoils_its_own_answer_alone(folder: Path) -> None:
    policy = load_policy(folder, device="cpu")
    far = {"ee_pos": np.full(3, 3e38), "gripper": np.zeros(2)}
    expected = act_alone(folder, 0)
    for moment in range(MOMENTS):
        outcomes = act_together(
            policy,
            {
                0: Request(observe(moment), is_first=False),
                1: Request(observe(5, proprioception=far), is_first=True),
                2: Request(observe(5, images={}), is_first=True),
            },
        )
        np.testing.assert_allclose(outcomes[0], expected[moment], atol=1e-5)
        assert "the policy's action is not finite" in str(outcomes[1])
        assert "needs camera 'front'" in str(outcomes[2])


def test_nobody_waits_while_another_s_instruction_is_embedded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_small_policy(tmp_path, language_size=64)
    policy, embed = load_policy(folder, device="cpu"), acting.embed_instructions
    begun, go_on = threading.Event(), threading.Event()

    def embed_slowly(*words: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return embed(*words)

    monkeypatch.setattr(acting, "embed_instructions", embed_slowly)
    with serving(policy) as port, raw(port) as slow:
        slow.send(pack(as_message(observe(0, instruction="stir the soup"))))
        assert begun.wait(30)
        robot = OwnClient("127.0.0.1", port)
        np.testing.assert_allclose(act_over(robot, 0), act_alone(folder, 0), atol=1e-5)
        robot._ws.close()
        go_on.set()
        assert unpack(slow.recv())["actions"].shape == (1, 4)


GARBAGE: dict[str, tuple[bytes | str, str]] = {
    "text": ("hello", "the message is text: send a binary frame of msgpack"),
    "empty": (b"", "the message of 0 bytes cannot be read as msgpack"),
    "noise": (b"\xc1" * 9, "the message of 9 bytes cannot be read as msgpack"),
    "cut off": (pack({"prompt": "pick"})[:-1], "cannot be read as msgpack"),
    "deep": (b"\x91" * 100_000, "cannot be read as msgpack"),
    "a long list": (msgpack.packb({"prompt": [0] * 10**6}), "exceeds max_array_len"),
    "a million dictionaries": (
        msgpack.packb({"prompt": [[{}] * 1000] * 1000}),
        "the message holds more than 256 lists and dictionaries: send flat arrays",
    ),
    "a list": (msgpack.packb([1, 2]), "the message is list, not a dictionary with names"),
    "an array": (pack({"a": np.zeros(2)})[3:], "the message is ndarray, not a dictionary"),
    "numbered": (msgpack.packb({b"a": 1}), "not a dictionary with names"),
    "unknown key": (
        pack({"prompt": "pick", "observation/front": 1}),
        r"unknown key 'observation/front': .* Known: front, ee_pos, gripper, prompt, reset, rate",
    ),
    "no prompt": (pack({"front": 1}), "the message has no 'prompt': send the instruction with"),
    "no cameras": (pack({"prompt": "pick"}), "this policy needs camera 'front'"),
    "no text": (pack(as_message(observe(0), prompt=7)), "the instruction is 7, not text"),
    "no reset": (
        pack(as_message(observe(0), reset=1)),
        "'reset' is 1: send true with an episode's first observation, and leave it out otherwise",
    ),
    "another rate": (
        pack(as_message(observe(0), rate=5)),
        "the robot executes 5 actions per second",
    ),
    "a dictionary for a camera": (
        pack(as_message(observe(0), front={"a": {}})),
        r"camera 'front' gives object \(\): give an image",
    ),
    "ragged": (pack(as_message(observe(0), ee_pos=[1, [2], 3])), "'ee_pos' is not an array"),
}


def test_garbage_is_told_and_harms_nobody(transformer: Path, port: int) -> None:
    with undisturbed(transformer, port), raw(port) as stranger:
        for data, message in GARBAGE.values():
            stranger.send(data)
            told = stranger.recv()
            assert isinstance(told, str)
            assert re.search(message, told), told
            assert told.isprintable()
        stranger.send(pack(as_message(observe(0))))  # and is still welcome
        np.testing.assert_allclose(
            unpack(stranger.recv())["actions"][0], act_alone(transformer, 0)[0], atol=1e-5
        )


def test_a_client_that_hangs_harms_nobody(transformer: Path, port: int) -> None:
    with undisturbed(transformer, port):
        silent = socket.create_connection(("127.0.0.1", port))
        silent.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")  # no end of it
        half = raw(port)
        half.socket.sendall(b"\x82\xff" + struct.pack("!Q", 10**6) + bytes(50))  # of a frame
        idle = raw(port)
    with undisturbed(transformer, port):
        pass
    silent.close()
    half.socket.shutdown(socket.SHUT_RDWR)
    idle.close()


def test_a_client_that_reads_no_answers_harms_nobody(transformer: Path, port: int) -> None:
    with undisturbed(transformer, port):
        deaf = raw(port)
        message = pack(as_message(observe(3)))
        for _ in range(50):
            deaf.send(message)
    deaf.socket.shutdown(socket.SHUT_RDWR)


def test_a_client_that_leaves_in_mid_request_harms_nobody(
    transformer: Path, policy: Policy, port: int
) -> None:
    with undisturbed(transformer, port):
        for _ in range(5):
            leaver = raw(port)
            leaver.send(pack(as_message(observe(3))))
            leaver.socket.shutdown(socket.SHUT_RDWR)  # no closing handshake
    wait_until(lambda: not policy._streams)


BROKEN_FRAMES = {
    "not masked": b"\x82\x01\x00",
    "a reserved bit": b"\xc2\x80" + bytes(4),
    "no such opcode": b"\x87\x80" + bytes(4),
    "goes on with nothing": b"\x80\x80" + bytes(4),
    "a ping of many bytes": b"\x89\xfe" + struct.pack("!H", 200) + bytes(204),
    "text that is none": b"\x81\x82" + bytes(4) + b"\xff\xfe",
    "a length beyond all": b"\x82\xff" + struct.pack("!Q", 2**62) + bytes(4),
}


def test_who_speaks_another_protocol_harms_nobody(transformer: Path, port: int) -> None:
    with undisturbed(transformer, port):
        for data in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 70_000):
            stranger = socket.create_connection(("127.0.0.1", port), timeout=30)
            with stranger, suppress(ConnectionError):
                stranger.sendall(data + b"\r\n\r\n")
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(1000):  # until it is shown out
                    pass
        for frame in BROKEN_FRAMES.values():
            intruder = raw(port)
            intruder.socket.sendall(frame)
            with pytest.raises(ConnectionClosed) as caught:
                intruder.recv(timeout=30)
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code in (1002, 1007, 1009)


def test_a_message_that_never_ends_ends_its_connection_alone(
    transformer: Path, policy: Policy, port: int
) -> None:
    limit, piece = message_limit(policy.interface), 1 << 20

    def pieces() -> Iterator[bytes]:
        for _ in range(limit // piece + 2):
            yield bytes(piece)

    with undisturbed(transformer, port):
        endless = raw(port)
        with suppress(ConnectionClosed):
            endless.send(pieces())
        with pytest.raises(ConnectionClosed) as caught:
            endless.recv(timeout=30)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


def test_those_who_leave_without_a_word_make_room(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "MAX_CLIENTS", 2)
    robot = OwnClient("127.0.0.1", port)
    for _ in range(5):

        def is_admitted() -> bool:
            try:
                leaver = raw(port)
            except InvalidStatus:
                return False
            leaver.socket.shutdown(socket.SHUT_RDWR)
            return True

        wait_until(is_admitted)
        assert robot.infer(as_message(observe(0)))["actions"].shape == (1, 4)
    robot._ws.close()


def test_an_oversized_message_ends_its_connection_alone(
    transformer: Path, policy: Policy, port: int
) -> None:
    limit = message_limit(policy.interface)
    with undisturbed(transformer, port):
        greedy = raw(port)
        with suppress(ConnectionClosed):
            greedy.send(bytes(limit + 1))
        with pytest.raises(ConnectionClosed) as caught:
            greedy.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009
        large = raw(port)
        image = np.zeros((720, 1280, 3))  # what a user may send by mistake is told as a mistake
        large.send(pack(as_message(observe(0), front=image[:360])))
        assert "gives float64 (360, 1280, 3)" in str(large.recv())
        large.close()


def test_a_fault_of_our_own_is_told_and_ends_the_connection(
    policy: Policy, port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    with monkeypatch.context() as patch, raw(port) as unlucky:
        patch.setattr(policy.module, "predict", fail)
        unlucky.send(pack(as_message(observe(0))))
        assert unlucky.recv() == "the server failed (ZeroDivisionError): see its log"
        with pytest.raises(ConnectionClosed) as caught:
            unlucky.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1011
    assert "ZeroDivisionError: a fault" in capfd.readouterr().err
    with raw(port) as next_one:
        next_one.send(pack(as_message(observe(0))))
        assert isinstance(next_one.recv(), bytes)


def health(port: int) -> tuple[int, bytes]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
        return answer.status, answer.read()


def test_health_is_told(port: int) -> None:
    assert health(port) == (200, b"OK\n")
    with pytest.raises(urllib.error.HTTPError, match="426"):  # a websocket is wanted
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30)


def test_a_key_is_needed_where_one_is_set(client: Client, policy: Policy) -> None:
    with serving(policy, KEY) as port:
        robot = client("127.0.0.1", port, api_key=KEY)
        for wrong in (None, KEY[:-1], KEY + "0"):
            with pytest.raises(InvalidStatus, match="401"):
                client("127.0.0.1", port, api_key=wrong)
        assert health(port) == (200, b"OK\n")
        assert robot.infer(as_message(observe(0)))["actions"].shape == (1, 4)
        robot._ws.close()


def test_two_keys_in_one_handshake_are_no_key(policy: Policy) -> None:
    with serving(policy, KEY) as port:
        both = [("Authorization", f"Api-Key {KEY}"), ("Authorization", "Api-Key other")]
        with pytest.raises(InvalidStatus, match="401"):
            raw(port, additional_headers=both)


def test_pages_in_a_browser_are_refused(port: int) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        raw(port, origin="https://example.org")


def test_clients_beyond_the_limit_are_refused(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "MAX_CLIENTS", 1)
    first = raw(port)
    with pytest.raises(InvalidStatus, match="503") as caught:
        raw(port)
    assert b"try again later" in (caught.value.response.body or b"")
    first.close()

    def is_welcome() -> bool:
        try:
            raw(port).close()
        except InvalidStatus:
            return False
        return True

    wait_until(is_welcome)


def test_names_that_mean_two_things_are_refused(tmp_path: Path) -> None:
    policy = load_policy(save_small_policy(tmp_path, proprioception={"prompt": 5}), device="cpu")
    with pytest.raises(StrapError, match="this policy's 'prompt' is the name of two things"):
        require_distinct_names(policy.interface)


def test_what_is_described_is_accepted(policy: Policy) -> None:
    told = describe_policy(policy)
    for shape in told["cameras"]["front"]["shapes"]:
        message = {
            "front": np.zeros(shape, told["cameras"]["front"]["dtype"]),
            **{k: np.zeros(v["shape"], v["dtype"]) for k, v in told["proprioception"].items()},
            "prompt": told["instructions"][0],
            "rate": told["fps"],
        }
        request = read_request(message, policy.interface)
        assert np.isfinite(policy.act(request.observation)).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"cannot read the key in '.*' \(No such file.*: make one with `openssl rand"),
        (b"\xff\xfe", "it is not text"),
        (
            b"short\n",
            "holds 5 characters that are not a key: a key has 8 or more letters and digits",
        ),
        (b"two words and more", "that are not a key"),
    ],
)
def test_a_file_without_a_key_is_refused(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "key.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StrapError, match=message):
        read_key(file)


def test_a_key_is_read_without_its_line_break(tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text(f"{KEY}\n")
    assert read_key(tmp_path / "key.txt") == KEY


def test_another_host_is_warned_about_unless_there_is_a_key(
    transformer: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key.txt").write_text(KEY)
    words = ["serve", str(transformer), "--device", "cpu", "--port", "99999"]
    warning = (
        "strap: note: everybody who can reach 0.0.0.0 can use this policy: give --api-key-file"
    )
    for more, is_warned in (
        (["--host", "0.0.0.0"], True),
        (["--host", "0.0.0.0", "--api-key-file", str(tmp_path / "key.txt")], False),
        ([], False),
    ):
        assert main([*words, *more]) == 2  # there is no such port
        told = capfd.readouterr().err
        assert (warning in told) is is_warned
        assert "port 99999" in told
        assert "choose another --port or --host" in told


def test_the_command_serves_until_it_is_interrupted(transformer: Path) -> None:
    with serve_command(transformer) as (process, port):
        robot = OwnClient("127.0.0.1", port)
        np.testing.assert_allclose(act_over(robot, 0), act_alone(transformer, 0), atol=1e-5)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stdout
        assert process.stdout.read().splitlines() == [
            "  cameras         front 48×64 or 32×32 (height×width)",
            "  proprioception  ee_pos [3], gripper [2]",
            "  actions         [4]",
            "  rate            20 actions a second",
            "  instructions    pick, place",
        ]


def test_the_page_s_client_runs(policy: Policy, tmp_path: Path) -> None:
    openpi_client()
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    assert len(snippet.splitlines()) <= 20
    with serving(policy) as port:
        own = snippet.replace("8000", str(port))
        done = subprocess.run(
            [sys.executable, "-c", own], cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 40
