"""What a message would be in memory, for people."""

from mqbridge.mapping.field_preview import preview_fields
from mqbridge.message import Message


def preview(message: Message, origin: str | None, _: int) -> list[tuple[str, str | bytes]]:
    """Its fields. Raises MappingError for a message that could not be read."""
    return preview_fields(message, origin)
