"""Who is answered: our own page on this machine, and nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from urllib.parse import unquote

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message
from tests.view.conftest import HOST, PORT

from strap.view.guards import MAX_BODY, SECURITY_HEADERS
from strap.view.run_views import RunView
from strap.view.server import make_app

CHANGE = {"X-Strap": "1", "Origin": HOST}


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}"])
def test_our_own_names_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/api/contents", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", ""),
        *(f"127.0.0.1:{PORT}.evil.example", f"evil@127.0.0.1:{PORT}", f"[::1]:{PORT}"),
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/contents"])
def test_a_foreign_host_is_refused(client: TestClient, host: str, path: str) -> None:
    answer = client.get(path, headers={"Host": host})
    assert answer.status_code == 421
    assert len(answer.text.splitlines()) == 1


def test_a_second_host_is_refused(client: TestClient) -> None:
    twice = [("Host", f"127.0.0.1:{PORT}"), ("Host", "evil.example")]
    assert client.get("/api/contents", headers=twice).status_code == 421


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_sites_page_gets_no_data(client: TestClient, site: str) -> None:
    for path in ("/api/contents", "/api/film?place=target"):
        answer = client.get(path, headers={"Sec-Fetch-Site": site})
        assert answer.status_code == 403
    assert client.get("/", headers={"Sec-Fetch-Site": site}).status_code == 200  # a link to it


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_our_own_page_and_the_address_bar_get_data(client: TestClient, site: str) -> None:
    assert client.get("/api/contents", headers={"Sec-Fetch-Site": site}).status_code == 200


@pytest.mark.parametrize("path", ["/api/choices", "/api/borders", "/api/borders/keep"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"X-Strap": "0"}, 403),
        ({"X-Strap": "1", "Origin": "http://evil.example"}, 403),
        ({"X-Strap": "1", "Origin": "null"}, 403),
        ({"X-Strap": "1", "Origin": f"http://127.0.0.1:{PORT + 1}"}, 403),
        ({"X-Strap": "1", "Origin": f"https://127.0.0.1:{PORT}"}, 403),
        ({**CHANGE, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**CHANGE, "Host": "evil.example"}, 421),
        ({**CHANGE, "Content-Type": "text/plain"}, 415),
        ({**CHANGE, "Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_a_change_from_elsewhere_is_refused(
    client: TestClient, path: str, headers: dict[str, str], status: int
) -> None:
    assert client.post(path, json={"undo": True}, headers=headers).status_code == status


def test_a_large_body_is_refused(client: TestClient) -> None:
    body = b'{"reject": [' + b"1," * MAX_BODY + b"1]}"
    headers = {**CHANGE, "Content-Type": "application/json"}
    assert client.post("/api/choices", content=body, headers=headers).status_code == 413


def test_a_large_body_that_does_not_say_so_is_refused(client: TestClient) -> None:
    def pieces() -> Iterator[bytes]:
        yield from (b" " * 100_000 for _ in range(MAX_BODY // 100_000 + 1))

    headers = {**CHANGE, "Content-Type": "application/json"}
    assert client.post("/api/choices", content=pieces(), headers=headers).status_code == 413


@pytest.mark.parametrize("length", ["-1", "1e3", "٣", "nonsense"])
def test_a_length_that_is_no_number_is_refused(client: TestClient, length: str) -> None:
    headers = {**CHANGE, "Content-Type": "application/json", "Content-Length": length}
    raw = {name: value.encode() for name, value in headers.items()}
    assert client.post("/api/choices", content=b"{}", headers=raw).status_code == 413


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a": ' * 50_000]
)
def test_a_body_that_is_no_object_is_refused(client: TestClient, body: bytes) -> None:
    headers = {**CHANGE, "Content-Type": "application/json"}
    answer = client.post("/api/choices", content=body, headers=headers)
    assert answer.status_code == 400
    assert "the body" in answer.text


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"])
def test_other_methods_are_refused(client: TestClient, method: str) -> None:
    assert client.request(method, "/api/contents").status_code == 405


def test_reading_and_changing_are_not_mixed_up(client: TestClient) -> None:
    assert client.get("/api/choices").status_code == 405
    assert client.post("/api/contents", json={}, headers=CHANGE).status_code == 405


@pytest.mark.parametrize(
    "path", ["/", "/api/contents", "/api/film", "/nothing", "/api/alignment?match=0"]
)
def test_every_answer_protects_the_page(client: TestClient, path: str) -> None:
    answer = client.get(path)
    given = {name: answer.headers[name] for name in SECURITY_HEADERS}
    assert given == dict(SECURITY_HEADERS)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "access-control-allow-origin" not in answer.headers


def test_refusals_protect_too(client: TestClient) -> None:
    answer = client.get("/", headers={"Host": "evil.example"})
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def get_raw(app: ASGIApp, path: str) -> tuple[int, bytes]:
    """Return status and body of an address that no client has tidied up."""
    heard: list[Message] = []
    told: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        while not told:  # the client stays, and has nothing more to say
            await asyncio.sleep(3600)
        return told.pop()

    async def send(message: Message) -> None:
        heard.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": unquote(path),
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", f"127.0.0.1:{PORT}".encode())],
    }
    asyncio.run(app(scope, receive, send))
    return heard[0]["status"], b"".join(message.get("body", b"") for message in heard[1:])


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/..%2fserver.py",
        "/%2e%2e/server.py",
        "/%2e%2e%2f%2e%2e%2fpyproject.toml",
        "/..%5cserver.py",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "/static/../../server.py",
        "/index.html%00.js",
        "/.",
        "/..",
        "/server.py",
        "/__init__.py",
        "/api/../../server.py",
    ],
)
def test_no_path_leads_out_of_the_pages_folder(view: RunView, path: str) -> None:
    status, body = get_raw(make_app(view, PORT), path)
    assert status == 404
    assert b"import" not in body


def test_the_pages_own_files_are_answered(view: RunView) -> None:
    status, body = get_raw(make_app(view, PORT), "/index.html")
    assert (status, b"<!doctype html>" in body) == (200, True)


@pytest.mark.parametrize("trajectory", ["../prior", "/etc/passwd", "demo_0/../demo_1", "\x00", ""])
def test_no_id_leads_out_of_the_dataset(client: TestClient, trajectory: str) -> None:
    asked = {"place": "0", "trajectory": trajectory, "start": 0, "stop": 3}
    asked |= {"camera": "agentview_rgb", "size": 96}
    answer = client.get("/api/film", params=asked)
    assert answer.status_code == 404
    assert len(answer.text.splitlines()) == 1
