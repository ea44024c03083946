"""HTTP to one given address: no redirect is followed, no proxy asked, and neither time nor size is without a limit."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from dataclasses import dataclass
from urllib.parse import urlsplit

from eagle3lib.errors import InputError

CONNECT_SECONDS = 5.0
#: Bytes of a reply; metrics of a large server take some hundred thousand.
LONGEST_REPLY = 16 * 2**20
_PIECE = 2**16


@dataclass(frozen=True)
class Address:
    """A server: scheme, host, port, and the path that stands before its own."""

    scheme: str
    host: str
    port: int
    prefix: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def address(url: str) -> Address:
    """The address in `served.url`.

    Raises:
        InputError: if it is no http or https address, or holds a user, a password, a query or a fragment.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = None, None
    plain = url.isascii() and url.isprintable() and " " not in url
    if not plain or parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(
            "Expected an address such as http://localhost:8000 in served.url, found something else; give the server's"
            " scheme, host and port."
        )
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise InputError(
            f"served.url holds more than the address of {parts.hostname}: no user, password, query or fragment is sent;"
            " leave them out."
        )
    port = port or (443 if parts.scheme == "https" else 80)
    return Address(parts.scheme, parts.hostname, port, parts.path.rstrip("/"))


def exchange(to: Address, path: str, body: bytes | None = None, *, seconds: float) -> bytes:
    """The body of the reply to a GET, or to a POST of JSON where there is a body.

    Args:
        seconds: for all of it, whatever the server does meanwhile.

    Raises:
        InputError: if the server cannot be reached, takes longer, or answers with anything but 200 and a body of
            `LONGEST_REPLY` at most.
    """
    what = f"{to} at {path}"
    if seconds <= 0:
        raise InputError(f"Expected {to} to answer sooner: no time is left for {path}.")
    kind = http.client.HTTPSConnection if to.scheme == "https" else http.client.HTTPConnection
    connection = kind(to.host, to.port, timeout=min(CONNECT_SECONDS, seconds))
    try:
        connection.connect()
        with _cut_after(seconds, connection.sock) as cut:
            return _reply(connection, what, to.prefix + path, body, seconds, cut)
    except (OSError, http.client.HTTPException, ssl.SSLError, ValueError) as error:
        raise InputError(f"Expected an answer of {what}, found none: {_short(error)}.") from None
    finally:
        connection.close()


def _reply(
    connection: http.client.HTTPConnection, what: str, path: str, body: bytes | None, seconds: float,
    cut: threading.Event,
) -> bytes:  # fmt: skip
    connection.sock.settimeout(seconds)
    try:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        if response.status != 200:
            moved = ", a redirect, which is not followed" if 300 <= response.status < 400 else ""
            raise InputError(f"Expected status 200 of {what}, found {response.status}{moved}.")
        read = bytearray()
        while piece := response.read(_PIECE):
            read += piece
            if len(read) > LONGEST_REPLY:
                raise InputError(f"Expected at most {LONGEST_REPLY:,} bytes of {what}, found more.")
    except (OSError, http.client.HTTPException, ValueError):
        if cut.is_set():
            raise InputError(f"Expected {what} to answer within {seconds:.0f} s; it did not.") from None
        raise
    if cut.is_set():
        raise InputError(f"Expected {what} to answer within {seconds:.0f} s; it did not.")
    return bytes(read)


class _cut_after(contextlib.AbstractContextManager):  # noqa: N801 a context is read as a verb
    """Shut a socket down after so many seconds. A socket's own timeout counts from its last byte, so a server that
    sends one now and then would hold on for ever."""

    def __init__(self, seconds: float, sock: socket.socket) -> None:
        self._event, self._socket = threading.Event(), sock
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> threading.Event:
        self._timer.start()
        return self._event

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _cut(self) -> None:
        self._event.set()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # below TLS, whose own would wait for the peer


def _short(error: Exception) -> str:
    """An error's words, for one line."""
    said = " ".join((str(error) or type(error).__name__).split())
    return "".join(c if c.isprintable() else "?" for c in said)[:120].rstrip(".")
