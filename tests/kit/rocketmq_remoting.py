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
# The number of version 5.3.3. To clients of version 401 or later, name servers respond with standard JSON.
PROTOCOL_VERSION = 479

SEND_MESSAGE_V2 = 310
HEART_BEAT = 34
UPDATE_AND_CREATE_TOPIC = 17
GET_ALL_TOPIC_CONFIG = 21
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
class Credentials:
    """TLS context and access keys of a connection; without them it is plain and its requests are not signed."""

    context: ssl.SSLContext | None = None
    access_key: str = ""
    secret_key: str = ""

    def connect(self, host: str, port: int) -> socket.socket:
        """Open a connection to a server."""
        plain = socket.create_connection((host, port), CALL_TIMEOUT_S)
        if self.context is None:
            return plain
        try:
            return self.context.wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise

    def sign(self, fields: dict[str, str], body: bytes) -> dict[str, str]:
        """Return the fields of a request with its signature: HMAC-SHA1 of the values, in the order of the names, and the body."""
        if not self.access_key:
            return fields
        fields = {**fields, "AccessKey": self.access_key}
        content = "".join(fields[name] for name in sorted(fields)).encode() + body
        return {**fields, "Signature": base64.b64encode(hmac.digest(self.secret_key.encode(), content, "sha1")).decode()}


NO_CREDENTIALS = Credentials()


@dataclass(frozen=True)
class Response:
    """A server's response: status, remark, header fields and body."""

    status: int
    remark: str
    fields: dict[str, str]
    body: bytes


def request(
    address: str,
    code: int,
    fields: Mapping[str, object] | None = None,
    body: bytes = b"",
    *,
    credentials: Credentials = NO_CREDENTIALS,
) -> Response:
    """Send a request and return the response, with any status. Raises OSError if the server does not respond."""
    ext = {name: _text(value) for name, value in (fields or {}).items()}
    header = {
        "code": code, "language": "PYTHON", "version": PROTOCOL_VERSION, "opaque": 1, "flag": 0,
        "extFields": credentials.sign(ext, body),
    }  # fmt: skip
    packed = json.dumps(header).encode()
    host, _, port = address.rpartition(":")
    with credentials.connect(host, int(port)) as connection:
        connection.sendall(struct.pack(">II", 4 + len(packed) + len(body), len(packed)) + packed + body)
        (length,) = struct.unpack(">I", _exactly(connection, 4))
        return _parse_response(_exactly(connection, length))


def call(
    address: str,
    code: int,
    fields: Mapping[str, object] | None = None,
    body: bytes = b"",
    *,
    credentials: Credentials = NO_CREDENTIALS,
) -> Response:
    """Send a request that must succeed. Raises ClusterError if it is rejected, OSError if the server does not respond."""
    response = request(address, code, fields, body, credentials=credentials)
    if response.status != SUCCESS:
        raise ClusterError(f"{address} answered {code} {dict(fields or {})} with {response.status}: {response.remark[:500]}")
    return response


def certificate(address: str, credentials: Credentials) -> bytes:
    """Return the certificate of a server, in DER."""
    host, _, port = address.rpartition(":")
    with credentials.connect(host, int(port)) as connection:
        assert isinstance(connection, ssl.SSLSocket)
        return connection.getpeercert(binary_form=True) or b""


def route(name_server: str, topic: str, *, credentials: Credentials = NO_CREDENTIALS) -> dict[str, Any] | None:
    """Return TopicRouteData from a name server, None for an unknown topic."""
    response = request(name_server, GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, credentials=credentials)
    if response.status == TOPIC_NOT_EXIST:
        return None
    if response.status != SUCCESS:
        raise ClusterError(f"{name_server} answered for the route of {topic} with {response.status}: {response.remark[:500]}")
    found: dict[str, Any] = json.loads(response.body)
    return found


def create_topic(
    broker: str, topic: str, queues: int, attributes: str, *, credentials: Credentials = NO_CREDENTIALS, **settings: object
) -> None:
    """Create or change a topic on a broker; `settings` are further fields of the request, such as `readQueueNums`."""
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, "attributes": attributes, **settings,
    }  # fmt: skip
    call(broker, UPDATE_AND_CREATE_TOPIC, fields, credentials=credentials)


def topic_configs(broker: str, *, credentials: Credentials = NO_CREDENTIALS) -> dict[str, Any]:
    """Return the settings of all topics on a broker, by topic, and `dataVersion`, which changes with every update."""
    found: dict[str, Any] = json.loads(call(broker, GET_ALL_TOPIC_CONFIG, credentials=credentials).body)
    return found["topicConfigTable"] | {"dataVersion": found["dataVersion"]}


def send(
    broker: str,
    topic: str,
    body: bytes,
    *,
    queue: int = 0,
    properties: Mapping[str, str] | None = None,
    credentials: Credentials = NO_CREDENTIALS,
) -> Response:
    """Send a message to an existing topic; return the response, with any status."""
    pairs = "".join(f"{key}\x01{value}\x02" for key, value in (properties or {}).items())
    fields = {
        "a": "tests", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": int(time.time() * 1000), "h": 0, "i": pairs,
        "j": 0, "k": False, "m": False,
    }  # fmt: skip
    return request(broker, SEND_MESSAGE_V2, fields, body, credentials=credentials)


def unindexed(broker: str, *, credentials: Credentials = NO_CREDENTIALS) -> int | None:
    """Return the number of bytes that a broker has stored but not added to queues, which it does milliseconds after a send.

    None if the broker does not know it: a 4.9 broker must run for a while before it has statistics.
    """
    response = request(broker, GET_BROKER_RUNTIME_INFO, credentials=credentials)
    return int(json.loads(response.body)["table"]["dispatchBehindBytes"]) if response.status == SUCCESS else None


def _parse_response(frame: bytes) -> Response:
    """Parse a frame. The upper byte of the header length is the type of the header; it is 0, for JSON."""
    (length,) = struct.unpack_from(">I", frame)
    header = json.loads(frame[4 : 4 + length])
    return Response(header["code"], header.get("remark") or "", header.get("extFields") or {}, frame[4 + length :])


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise ConnectionResetError(f"closed after {len(data)} of {count} bytes of a response")
        data += chunk
    return data


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
