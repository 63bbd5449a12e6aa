"""What a message would be in RocketMQ, for people."""

from mqbridge.errors import MappingError
from mqbridge.message import Message
from mqbridge.rocketmq.mapping.limits import Limits
from mqbridge.rocketmq.mapping.request import encode
from mqbridge.rocketmq.wire.batch import decode_batch
from mqbridge.rocketmq.wire.properties import decode


def preview(message: Message, origin: str | None, now: int) -> list[tuple[str, str | bytes]]:
    """The body, the flag and the properties as they would be sent. Raises MappingError."""
    sends, failures = encode([message], origin, Limits(), now)
    if failures:
        raise MappingError(failures[0].reason)
    [outgoing] = sends
    flag, body, string = outgoing.flag, outgoing.body, outgoing.properties
    if outgoing.is_batch:
        [(flag, body, string)] = decode_batch(outgoing.body)
    head: list[tuple[str, str | bytes]] = [("BODY", body), ("FLAG", str(flag)), ("BORNTIMESTAMP", str(outgoing.born))]
    return [*head, *decode(string)]
