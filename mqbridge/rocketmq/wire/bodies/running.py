"""What a broker asks a client for on behalf of a tool: what it is doing, and to consume one message at once."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from mqbridge.rocketmq.wire.bodies.groups import SubscriptionData, subscription_body, subscription_of
from mqbridge.rocketmq.wire.bodies.queue import Queue, queue_key, queue_of_key
from mqbridge.rocketmq.wire.lenient import flag_of, list_of, map_of, number_of, read, text_of, texts_of

CONSUMED, LATER, THREW = "CR_SUCCESS", "CR_LATER", "CR_THROW_EXCEPTION"
"""Results of consuming one message."""


class RunningInfo(NamedTuple):
    """A consumer at work. `queues` has the numbers of each, named as Java's ProcessQueueInfo names them."""

    properties: Mapping[str, str]
    subscriptions: tuple[SubscriptionData, ...]
    queues: Mapping[Queue, Mapping[str, Any]]


def encode_running_info(
    properties: Mapping[str, str],
    subscriptions: Iterable[SubscriptionData] = (),
    queues: Mapping[Queue, Mapping[str, Any]] | None = None,
) -> bytes:
    """Answer to GET_CONSUMER_RUNNING_INFO."""
    return orjson.dumps(
        {
            "mqPopTable": {},
            "mqTable": {queue_key(queue): dict(said) for queue, said in (queues or {}).items()},
            "properties": dict(properties),
            "statusTable": {},
            "subscriptionSet": [subscription_body(one) for one in subscriptions],
            "userConsumerInfo": {},
        }
    )


def decode_running_info(body: bytes) -> RunningInfo:
    """What a consumer said about itself. Raises RemoteProtocolError."""
    return read(
        "a consumer's running info",
        body,
        lambda said: RunningInfo(
            texts_of(said, "properties"),
            tuple(subscription_of(one) for one in list_of(said, "subscriptionSet")),
            {queue_of_key(key): one for key, one in map_of(said, "mqTable").items()},
        ),
    )


class DirectResult(NamedTuple):
    """How consuming one message went; `spent_ms` is how long it took."""

    result: str
    spent_ms: int = 0
    remark: str = ""
    order: bool = False
    auto_commit: bool = True


def encode_direct_result(result: DirectResult) -> bytes:
    """Answer to CONSUME_MESSAGE_DIRECTLY."""
    return orjson.dumps(
        {
            "autoCommit": result.auto_commit,
            "consumeResult": result.result,
            "order": result.order,
            **({"remark": result.remark} if result.remark else {}),
            "spentTimeMills": result.spent_ms,
        }
    )


def decode_direct_result(body: bytes) -> DirectResult:
    """How consuming one message went. Raises RemoteProtocolError."""
    return read(
        "the result of a consumed message",
        body,
        lambda said: DirectResult(
            text_of(said, "consumeResult"),
            number_of(said, "spentTimeMills"),
            text_of(said, "remark"),
            flag_of(said, "order"),
            flag_of(said, "autoCommit", True),
        ),
    )
