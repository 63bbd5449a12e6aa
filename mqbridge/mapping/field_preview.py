"""Preview of a mapped message, for systems that store a message's fields unchanged."""

from mqbridge.errors import MappingError
from mqbridge.message import Message, format_position, next_origin

_NOT_LISTED = {"defect", "hops", "origin", "position", "properties"}
"""Fields not listed by name: properties, origin and hops follow at the end, a defect is an error, the position will be new."""


def preview_fields(message: Message, origin_prefix: str | None) -> list[tuple[str, str | bytes]]:
    """Return the names and values of the fields that are set, then of the properties, then origin and hops.

    `origin_prefix` begins the new origin, see `mqbridge.message.origin_prefix`; None keeps the origin and the hops of the
    message.

    Raises MappingError for a message that could not be decoded.
    """
    if message.defect is not None:
        raise MappingError(f"the message could not be decoded: {message.defect}")
    shown: list[tuple[str, str | bytes]] = []
    for name, value in message.as_dict().items():
        if name not in _NOT_LISTED and value not in (None, ()):
            shown.append((name, value if isinstance(value, bytes) else str(value)))
    shown += [(f"properties {key}", value) for key, value in message.properties]
    origin, hops = next_origin(message, None if origin_prefix is None else origin_prefix + format_position(message.position))
    if origin is not None:
        shown += [("origin", origin), ("hops", str(hops))]
    return shown
