"""Locks of queues at a broker, which orderly consumers hold while they read."""

from collections.abc import Iterable
from typing import NamedTuple

import orjson

from mqbridge.rocketmq.wire.bodies.queue import Queue, queue_body, queue_of
from mqbridge.rocketmq.wire.lenient import list_of, read, text_of


class LockRequest(NamedTuple):
    """Who asks for which queues, to lock or to unlock."""

    client_id: str
    group: str
    queues: tuple[Queue, ...]


def encode_lock(client_id: str, group: str, queues: Iterable[tuple[str, str, int]]) -> bytes:
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""
    return orjson.dumps(
        {"clientId": client_id, "consumerGroup": group, "mqSet": [queue_body(one) for one in queues], "onlyThisBroker": False}
    )


def decode_lock(body: bytes) -> LockRequest:
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ. Raises RemoteProtocolError."""
    return read(
        "a lock request",
        body,
        lambda said: LockRequest(
            text_of(said, "clientId"), text_of(said, "consumerGroup"), tuple(queue_of(one) for one in list_of(said, "mqSet"))
        ),
    )


def encode_locked(queues: Iterable[tuple[str, str, int]]) -> bytes:
    """Answer to LOCK_BATCH_MQ: the queues that the client holds now. Never empty, also without any."""
    return orjson.dumps({"lockOKMQSet": [queue_body(one) for one in queues]})


def decode_locked(body: bytes) -> list[Queue]:
    """The queues that are held now. Raises RemoteProtocolError."""
    return read("the locked queues", body, lambda said: [queue_of(one) for one in list_of(said, "lockOKMQSet")])
