"""Preview of a message as TubeMQ would store it, for the command line."""

from mqbridge.message import Message, format_position
from mqbridge.tubemq.mapping.properties import parse_pairs
from mqbridge.tubemq.mapping.request import encode
from mqbridge.tubemq.wire.payload import split_payload


def preview(message: Message, origin: str | None, _: int) -> list[tuple[str, str | bytes]]:
    """Return (name, value) pairs: the body, the attribute string, its pairs, and the request's fields. Raises MappingError."""
    data, flag, msg_type, msg_time = encode(
        message, message.origin if origin is None else origin + format_position(message.position)
    )
    attributes, body = split_payload(data, flag)
    shown: list[tuple[str, str | bytes]] = [("TransferedMessage.payLoadData", body)]
    if attributes is not None:
        shown.append(("attribute string", attributes))
        shown += [(f"attribute {key}", value) for key, value in parse_pairs(attributes)]
    if msg_type is not None:
        shown.append(("SendMessageRequestP2B.msgType", msg_type))
    if msg_time is not None:
        shown.append(("SendMessageRequestP2B.msgTime", msg_time))
    return shown
