"""Raw requests to RocketMQ servers, one connection each, independent of the code under test."""

from __future__ import annotations

import base64
import hmac
import json
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.kit.process import ClusterError

CALL_TIMEOUT_S = 10.0
# 5.3.3. From 401 on a name server answers with standard JSON.
PROTOCOL_VERSION = 479

SEND_MESSAGE_V2 = 310
HEART_BEAT = 34
UPDATE_AND_CREATE_TOPIC = 17
UPDATE_BROKER_CONFIG = 25
GET_BROKER_RUNTIME_INFO = 28
GET_MAX_OFFSET = 30
GET_MIN_OFFSET = 31
GET_ROUTEINFO_BY_TOPIC = 105
AUTH_CREATE_USER = 3001
AUTH_UPDATE_USER = 3002
AUTH_GET_USER = 3004
AUTH_CREATE_ACL = 3006
AUTH_DELETE_ACL = 3008

SUCCESS = 0
TOPIC_NOT_EXIST = 17


@dataclass(frozen=True)
class Door:
    """How one gets in: by TLS with this context, and signed with these keys, or plain and unsigned."""

    context: ssl.SSLContext | None = None
    access_key: str = ""
    secret_key: str = ""

    def connect(self, host: str, port: int) -> socket.socket:
        """A connection to a server."""
        plain = socket.create_connection((host, port), CALL_TIMEOUT_S)
        if self.context is None:
            return plain
        try:
            return self.context.wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise

    def sign(self, fields: dict[str, str], body: bytes) -> dict[str, str]:
        """The fields of a request with the signature: HMAC-SHA1 over their values by the order of their names, and the body."""
        if not self.access_key:
            return fields
        fields = {**fields, "AccessKey": self.access_key}
        content = "".join(fields[name] for name in sorted(fields)).encode() + body
        return {**fields, "Signature": base64.b64encode(hmac.digest(self.secret_key.encode(), content, "sha1")).decode()}


OPEN = Door()


@dataclass(frozen=True)
class Answer:
    """A server's response: status, remark, header fields and body."""

    status: int
    remark: str
    fields: dict[str, str]
    body: bytes


def request(
    address: str, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"", *, door: Door = OPEN
) -> Answer:
    """One request and its answer, whatever its status; OSError when nobody answers."""
    ext = {name: _text(value) for name, value in (fields or {}).items()}
    header = {
        "code": code, "language": "PYTHON", "version": PROTOCOL_VERSION, "opaque": 1, "flag": 0,
        "extFields": door.sign(ext, body),
    }  # fmt: skip
    packed = json.dumps(header).encode()
    host, _, port = address.rpartition(":")
    with door.connect(host, int(port)) as connection:
        connection.sendall(struct.pack(">II", 4 + len(packed) + len(body), len(packed)) + packed + body)
        (length,) = struct.unpack(">I", _exactly(connection, 4))
        return _answer(_exactly(connection, length))


def call(address: str, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"", *, door: Door = OPEN) -> Answer:
    """One request that has to succeed; ClusterError when it is refused, OSError when nobody answers."""
    answer = request(address, code, fields, body, door=door)
    if answer.status != SUCCESS:
        raise ClusterError(f"{address} answered {code} {dict(fields or {})} with {answer.status}: {answer.remark[:500]}")
    return answer


def certificate(address: str, door: Door) -> bytes:
    """Return the certificate of a server, in DER."""
    host, _, port = address.rpartition(":")
    with door.connect(host, int(port)) as connection:
        assert isinstance(connection, ssl.SSLSocket)
        return connection.getpeercert(binary_form=True) or b""


def route(name_server: str, topic: str, *, door: Door = OPEN) -> dict[str, Any] | None:
    """Return TopicRouteData from a name server, None for an unknown topic."""
    answer = request(name_server, GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, door=door)
    if answer.status == TOPIC_NOT_EXIST:
        return None
    if answer.status != SUCCESS:
        raise ClusterError(f"{name_server} answered for the route of {topic} with {answer.status}: {answer.remark[:500]}")
    found: dict[str, Any] = json.loads(answer.body)
    return found


def create_topic(broker: str, topic: str, queues: int, attributes: str, *, door: Door = OPEN) -> None:
    """Create a topic on a broker, or change it."""
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, "attributes": attributes,
    }  # fmt: skip
    call(broker, UPDATE_AND_CREATE_TOPIC, fields, door=door)


def send(
    broker: str,
    topic: str,
    body: bytes,
    *,
    queue: int = 0,
    properties: Mapping[str, str] | None = None,
    door: Door = OPEN,
) -> Answer:
    """Send one message to an existing topic; the answer, whatever its status."""
    pairs = "".join(f"{key}\x01{value}\x02" for key, value in (properties or {}).items())
    fields = {
        "a": "tests", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": int(time.time() * 1000), "h": 0, "i": pairs,
        "j": 0, "k": False, "m": False,
    }  # fmt: skip
    return request(broker, SEND_MESSAGE_V2, fields, body, door=door)


def unindexed(broker: str, *, door: Door = OPEN) -> int | None:
    """Bytes that a broker has stored and not yet put into queues: that comes some milliseconds after the answer to a send.

    None when it cannot tell: one of 4.9 has to run for a while before its statistics can be asked for.
    """
    answer = request(broker, GET_BROKER_RUNTIME_INFO, door=door)
    return int(json.loads(answer.body)["table"]["dispatchBehindBytes"]) if answer.status == SUCCESS else None


def _answer(frame: bytes) -> Answer:
    """The header length shares its word with the header's type, 0 for JSON, which the servers write."""
    (length,) = struct.unpack_from(">I", frame)
    header = json.loads(frame[4 : 4 + length])
    return Answer(header["code"], header.get("remark") or "", header.get("extFields") or {}, frame[4 + length :])


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise ConnectionResetError(f"closed after {len(data)} of {count} bytes of an answer")
        data += chunk
    return data


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
