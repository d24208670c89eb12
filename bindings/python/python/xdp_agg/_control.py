"""The control connection's first words, as far as the doctor speaks it: frames of a 32-bit
big-endian length and that number of bytes of JSON."""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct
from dataclasses import dataclass
from typing import Any

from xdp_agg._xdp_agg import CONTROL_VERSION, __version__

_LONGEST = 1 << 20


@dataclass(frozen=True)
class Welcome:
    """What a daemon says first."""

    #: Of the control protocol.
    version: int
    #: Name and version of the program.
    agent: str
    #: What sums.
    engine: str


class NotUnderstood(Exception):
    """Somebody answers, but no daemon of xdp-agg that takes this worker."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        #: Of the daemon's refusal.
        self.code = code


def token() -> str | None:
    """The secret from ``XDP_AGG_TOKEN`` or the file ``XDP_AGG_TOKEN_FILE``, if there is one."""
    if (value := os.environ.get("XDP_AGG_TOKEN")) is not None:
        return value
    if path := os.environ.get("XDP_AGG_TOKEN_FILE"):
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    return None


def greet(address: tuple[str, int], host: str, timeout: float) -> Welcome:
    """Says hello to a daemon.

    address: IPv4 address and port. host: the name it was found by, for TLS. timeout: seconds.

    OSError: nobody answers. NotUnderstood: not what was expected.
    """
    with socket.create_connection(address, timeout) as plain:
        plain.settimeout(timeout)
        with _secured(plain, host) as stream:
            body: dict[str, Any] = {"version": CONTROL_VERSION, "agent": f"doctor {__version__}"}
            if secret := token():
                body["token"] = secret
            frame = json.dumps({"type": "hello", "body": body}).encode()
            stream.sendall(struct.pack(">I", len(frame)) + frame)
            return _welcome(_receive(stream))


def _secured(plain: socket.socket, host: str) -> socket.socket:
    """The same over TLS, if the environment asks for it."""
    authority = os.environ.get("XDP_AGG_TLS_CA")
    if not authority:
        return plain
    context = ssl.create_default_context(cafile=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if certificate := os.environ.get("XDP_AGG_TLS_CERT"):
        context.load_cert_chain(certificate, os.environ.get("XDP_AGG_TLS_KEY"))
    return context.wrap_socket(plain, server_hostname=os.environ.get("XDP_AGG_TLS_NAME", host))


def _receive(stream: socket.socket) -> Any:
    (length,) = struct.unpack(">I", _exactly(stream, 4))
    if length > _LONGEST:
        raise NotUnderstood(f"a frame of {length} bytes: that is another protocol")
    try:
        return json.loads(_exactly(stream, length))
    except ValueError as error:
        raise NotUnderstood(f"a frame that is no JSON ({error})") from error


def _exactly(stream: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = stream.recv(count - len(data))
        if not more:
            raise NotUnderstood("the connection was closed without an answer")
        data += more
    return data


def _welcome(message: Any) -> Welcome:
    match message:
        case {"type": "welcome", "body": {"version": int(v), "agent": str(a), "engine": str(e)}}:
            return Welcome(v, a, e)
        case {"type": "error", "body": {"code": str(code), "message": str(text)}}:
            raise NotUnderstood(text, code)
        case _:
            raise NotUnderstood(f"an answer that is none: {str(message)[:200]}")
