"""Preview of a message as it would be stored in memory."""

from mqbridge.mapping.field_preview import preview_fields
from mqbridge.message import Message


def preview(message: Message, origin_prefix: str | None, _now_ms: int) -> list[tuple[str, str | bytes]]:
    """Return the fields that would be stored, by name; no field needs the current time. Raises MappingError for a defect."""
    return preview_fields(message, origin_prefix)
