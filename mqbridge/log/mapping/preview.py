"""Preview of a message as it would be stored in the embedded log."""

from mqbridge.mapping.field_preview import preview_fields
from mqbridge.message import Message


def preview(message: Message, origin_prefix: str | None, _now_ms: int) -> list[tuple[str, str | bytes]]:
    """Return the fields by name. Raises MappingError if the message could not be decoded.

    `origin_prefix` begins the new origin; None keeps the message's own. The current time, `_now_ms`, is not used: all adapters
    have the same signature.
    """
    return preview_fields(message, origin_prefix)
