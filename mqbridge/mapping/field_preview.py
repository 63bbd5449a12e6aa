"""Preview of a mapped message, for systems that store a message's fields unchanged."""

from mqbridge.errors import MappingError
from mqbridge.message import Message, format_position

_NOT_SHOWN = {"defect", "hops", "origin", "position", "properties"}


def preview_fields(message: Message, origin: str | None) -> list[tuple[str, str | bytes]]:
    """Return the names and values of the fields that are set, then of the properties, then origin and hops.

    `origin` is the prefix of the new origin (`origin_prefix`); None keeps the origin of the message.

    Raises MappingError for a message that could not be decoded.
    """
    if message.defect is not None:
        raise MappingError(f"it could not be decoded: {message.defect}")
    shown: list[tuple[str, str | bytes]] = []
    for name, value in message.as_dict().items():
        if name not in _NOT_SHOWN and value not in (None, ()):
            shown.append((name, value if isinstance(value, bytes) else str(value)))
    shown += [(f"properties {key}", value) for key, value in message.properties]
    stamp = message.origin if origin is None else origin + format_position(message.position)
    if stamp is not None:
        shown += [("origin", stamp), ("hops", str(message.hops if origin is None else message.hops + 1))]
    return shown
