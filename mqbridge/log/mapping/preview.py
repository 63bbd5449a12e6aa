"""Preview of a message as it would be stored in the embedded log."""

from mqbridge.mapping.field_preview import preview_fields
from mqbridge.message import Message


def preview(message: Message, origin_prefix: str | None, _now_ms: int) -> list[tuple[str, str | bytes]]:
    """Return the fields by name. Raises MappingError if the message could not be decoded."""
    return preview_fields(message, origin_prefix)
