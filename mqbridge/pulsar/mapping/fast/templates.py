"""Parse templates of single-message metadata, see `mqbridge.mapping.parse_templates`.

The fixed bytes of a template hold all tags, lengths and names, so where they fit there is no other way to read the metadata.
"""

from mqbridge.errors import RemoteProtocolError
from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.mapping.lazy_properties import property_names
from mqbridge.mapping.parse_templates import ParseTemplate
from mqbridge.mapping.reserved_properties import CARRIED_NAMES, USER_PREFIX
from mqbridge.message import MSG_TYPE
from mqbridge.pulsar.mapping.fast.messages import BatchedMessage, CarriedFields, CarriedMessage
from mqbridge.pulsar.wire.single_metadata import (
    EVENT_TIME,
    PARTITION_KEY,
    PAYLOAD_SIZE,
    PROPERTY,
    SEQUENCE_ID,
    Span,
    UnsupportedLayout,
    is_varint,
    value_spans,
)
from mqbridge.wire.varint import decode_varint


class MetadataTemplate(ParseTemplate):
    """Indexes of the values in what `unpack` gives.

    `users` are the values of the user's properties; `texts` these, the carried ones and the key; each other index is that of one
    value, 0 for none.
    """

    __slots__ = ("carried", "key", "lengths", "message_class", "names", "sequence_id", "size", "texts", "time", "type", "users")

    def __init__(self, metadata: bytes) -> None:
        """Raises UnsupportedLayout, IndexError, RemoteProtocolError, UnicodeDecodeError."""
        spans = value_spans(metadata)
        super().__init__(metadata, _alternate(spans, len(metadata)))
        names, carried = _divide([span.name for span in spans if span.tag == PROPERTY])
        indexes = {span.tag: 2 * number + 1 for number, span in enumerate(spans) if span.tag != PROPERTY}
        count = len(names)
        self.names = property_names(tuple(names))
        self.lengths = tuple([span.end - span.start for span in spans[:count]])
        self.users = slice(1, 2 * count, 2)
        texts = self.names.texts
        self.type = 2 * texts.index(MSG_TYPE) + 1 if MSG_TYPE in texts else 0
        self.key, self.size, self.time, self.sequence_id = (
            indexes.get(tag, 0) for tag in (PARTITION_KEY, PAYLOAD_SIZE, EVENT_TIME, SEQUENCE_ID)
        )
        self.texts = slice(1, 2 * (count + len(carried) + (self.key > 0)), 2)
        self.carried = CarriedFields(carried) if carried else None
        self.message_class = CarriedMessage if carried else BatchedMessage


def _alternate(spans: list[Span], size: int) -> list[int]:
    """The lengths of fixed bytes and values in turn, fixed bytes first and last."""
    lengths: list[int] = []
    done = 0
    for span in (*spans, Span(0, size, size)):
        lengths += (span.start - done, span.end - span.start)
        done = span.end
    return lengths


def _divide(names: list[bytes]) -> tuple[list[bytes], dict[bytes, int]]:
    """The user's names, and the indexes of the carried ones behind these, where gateways put them."""
    users: list[bytes] = []
    carried: dict[bytes, int] = {}
    for number, name in enumerate(names):
        if name in CarriedFields.NAMES and name not in carried:
            carried[name] = 2 * number + 1
        elif carried or name.decode() in CARRIED_NAMES or name.startswith(USER_PREFIX.encode()):
            raise UnsupportedLayout
        else:
            users.append(name)
    return users, carried


def template_of(metadata: bytes) -> MetadataTemplate | None:
    """The template of metadata; None where it has anything unusual."""
    try:
        return MetadataTemplate(metadata)
    except (UnsupportedLayout, IndexError, RemoteProtocolError, UnicodeDecodeError):
        return None


class Numbers(BoundedCache[bytes, int]):
    """Numbers by their varints, -1 for bytes that are not exactly one."""

    def __init__(self) -> None:
        super().__init__(lambda data: decode_varint(data, 0)[0] if is_varint(data) else -1)
