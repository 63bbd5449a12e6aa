"""What a message would be in the embedded log, for people."""

from mqbridge.errors import MappingError
from mqbridge.message import Message, format_position

_ELSEWHERE = {"defect", "hops", "origin", "position", "properties"}


def preview(message: Message, origin: str | None, _: int) -> list[tuple[str, str | bytes]]:
    """Its fields. Raises MappingError for a message that could not be read."""
    if message.defect is not None:
        raise MappingError(f"it could not be read: {message.defect}")
    said: list[tuple[str, str | bytes]] = []
    for name, value in message.as_dict().items():
        if name not in _ELSEWHERE and value not in (None, ()):
            said.append((name, value if isinstance(value, bytes) else str(value)))
    said += [(f"properties {key}", value) for key, value in message.properties]
    stamp = message.origin if origin is None else origin + format_position(message.position)
    if stamp is not None:
        said += [("origin", stamp), ("hops", str(message.hops if origin is None else message.hops + 1))]
    return said
