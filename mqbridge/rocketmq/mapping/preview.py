"""Preview of a message as RocketMQ would store it, for display."""

from mqbridge.errors import MappingError
from mqbridge.message import Message
from mqbridge.rocketmq.mapping.limits import Limits
from mqbridge.rocketmq.mapping.request import encode
from mqbridge.rocketmq.wire.batch import decode_batch
from mqbridge.rocketmq.wire.properties import decode


def preview(message: Message, origin: str | None, now: int) -> list[tuple[str, str | bytes]]:
    """Return the body, flag, born timestamp and properties that would be sent, as pairs of name and value.

    `origin` is the prefix of the property `mqbridge.origin`, which ends with the message's position (None: the property is not
    added), and `now` is in ms since the epoch. Raises MappingError if RocketMQ cannot store the message.
    """
    requests, failures = encode([message], origin, Limits(), now)
    if failures:
        raise MappingError(failures[0].reason)
    [request] = requests
    flag = request.flag
    body = request.body
    block = request.properties
    if request.is_batch:
        [(flag, body, block)] = decode_batch(request.body)
    fields: list[tuple[str, str | bytes]] = [("BODY", body), ("FLAG", str(flag)), ("BORNTIMESTAMP", str(request.born))]
    return [*fields, *decode(block)]
