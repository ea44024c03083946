"""Servers that do harm, and addresses that are none: one sentence each, in bounded time and memory."""

from __future__ import annotations

import time

import pytest
from answering import send, serving
from complaints import complaint

from eagle3lib import bounded_http, live_server
from eagle3lib.bounded_http import address, exchange
from eagle3lib.ecosystems import ENGINES
from eagle3lib.live_server import Prompt, ask

THREE = [Prompt(f"d/{i}", [1, 2, 3], [7] * 50) for i in range(3)]


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(live_server, "SETTLE_SECONDS", 0.0)


def redirect(handler, body):
    send(handler, "", 302, Location="http://127.0.0.1:1/elsewhere")


def endless(handler, body):
    handler.send_response(200)
    handler.end_headers()
    with pytest.raises(OSError):  # noqa: PT012 until the client has gone
        while True:
            handler.wfile.write(b"x" * 65536)


def drip(handler, byte):
    for _ in range(100):
        try:
            handler.wfile.write(byte)
            handler.wfile.flush()
        except OSError:
            return
        time.sleep(0.1)


def dripping(handler, body):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    drip(handler, b" ")


def dripping_headers(handler, body):
    drip(handler, b"H")


HOSTILE = {
    "redirect": (redirect, "a redirect, which is not followed"),
    "endless": (endless, "found more"),
    "drip": (dripping, "within 1 s"),
    "headers": (dripping_headers, "within 1 s"),
    "text": (lambda h, b: send(h, "<html>hello</html>"), "Expected a JSON object"),
    "list": (lambda h, b: send(h, "[1, 2]"), "Expected a JSON object"),
    "deep": (lambda h, b: send(h, "[" * 200_000), "Expected a JSON object"),
    "other": (lambda h, b: send(h, {"hello": "there"}), "is it that engine?"),
    "odd count": (lambda h, b: send(h, {"timings": {"predicted_n": 1e300}}), "is it that engine?"),
    "refused": (lambda h, b: send(h, "no", 401), "found 401"),
    "silent": (lambda h, b: h.connection.close(), "Expected an answer of"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_server_gets_one_sentence(name, monkeypatch):
    """In bounded time and memory, contacting nobody else."""
    answer, said = HOSTILE[name]
    for limit in ("METRICS_SECONDS", "ANSWER_SECONDS"):
        monkeypatch.setattr(live_server, limit, 1.0)
    monkeypatch.setattr(bounded_http, "LONGEST_REPLY", 2**20)
    began = time.monotonic()
    with serving(answer) as (url, _):
        sentence = complaint(lambda: ask(url, ENGINES["llama_cpp"], THREE[:1]))
    assert said in sentence
    assert "\n" not in sentence and len(sentence) < 400
    assert time.monotonic() - began < 8


def test_no_proxy_of_the_environment_is_asked(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with serving(lambda h, b: send(h, "{}")) as (url, asked):
        assert exchange(address(url), "/here", seconds=5) == b"{}"
    assert asked == ["/here"]


def test_nobody_there_is_one_sentence():
    assert "127.0.0.1:9" in complaint(lambda: exchange(address("http://127.0.0.1:9"), "/metrics", seconds=2))


@pytest.mark.parametrize(
    "url",
    ["ftp://host", "file:///etc/passwd", "localhost:8000", "http://", "http://host:99999", "http://ho st", "", "http://[::1",
     "http://host/\r\nX: y", "http://user:secret@host", "http://host/?key=secret", "http://host/#secret"],
)  # fmt: skip
def test_an_address_is_an_address_and_no_more(url):
    """What is wrong with it is said without repeating what may be a secret."""
    assert "secret" not in complaint(lambda: address(url), "served.url")


def test_an_address_keeps_its_path():
    assert address("https://host/v0/") == bounded_http.Address("https", "host", 443, "/v0")
    with serving(lambda h, b: send(h, "{}")) as (url, asked):
        exchange(address(f"{url}/llama"), "/metrics", seconds=5)
    assert asked == ["/llama/metrics"]
