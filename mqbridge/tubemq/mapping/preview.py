"""Preview of a message as TubeMQ would store it, for the command line."""

from mqbridge.message import Message, format_position
from mqbridge.tubemq.mapping.properties import parse_pairs
from mqbridge.tubemq.mapping.request import encode
from mqbridge.tubemq.wire.payload import split_payload


def preview(message: Message, origin_prefix: str | None, _now_ms: int) -> list[tuple[str, str | bytes]]:
    """Return (name, value) pairs: the body, the attribute string, its pairs, and the request's type and time.

    `origin_prefix` is the prefix of the origin to write; with None the message keeps its own. `_now_ms`, the current time, is
    a parameter of all systems' previews; TubeMQ's requests do not depend on it. Raises MappingError.
    """
    origin = message.origin if origin_prefix is None else origin_prefix + format_position(message.position)
    data, flag, msg_type, msg_time = encode(message, origin)
    attributes, body = split_payload(data, flag)
    rows: list[tuple[str, str | bytes]] = [("TransferedMessage.payLoadData", body)]
    if attributes is not None:
        rows.append(("attribute string", attributes))
        rows += [(f"attribute {key}", value) for key, value in parse_pairs(attributes)]
    if msg_type is not None:
        rows.append(("SendMessageRequestP2B.msgType", msg_type))
    if msg_time is not None:
        rows.append(("SendMessageRequestP2B.msgTime", msg_time))
    return rows
