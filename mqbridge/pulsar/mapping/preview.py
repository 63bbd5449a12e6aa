"""Preview of a message as Pulsar metadata, for display."""

from mqbridge.errors import MappingError
from mqbridge.message import Message
from mqbridge.pulsar.mapping.request import Limits, encode
from mqbridge.pulsar.wire.batch import split_batch
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata

_HIDDEN_FIELDS = {"payload_size", "num_messages_in_batch", "properties"}
"""Fields of batch framing, and the properties, which are shown one by one."""


def preview(message: Message, origin_prefix: str | None, _now_ms: int) -> list[tuple[str, str | bytes]]:
    """Return names and values of the payload, the metadata fields and the properties. Raises MappingError.

    This is the `Preview` function of the adapter (see `adapter.registry`). `origin_prefix` is the prefix
    of the origin to write; with None the message keeps its own, if any. `_now_ms`, the current time, is not used.
    """
    entries, failures = encode([message], origin_prefix, Limits())
    if failures:
        raise MappingError(failures[0].reason)
    [entry] = entries
    metadata: MessageMetadata | SingleMessageMetadata = entry.metadata
    payload = entry.payload
    if entry.metadata.HasField("num_messages_in_batch"):
        [(metadata, payload)] = split_batch(entry.payload, 1)
    fields: list[tuple[str, str | bytes]] = [("payload", payload)]
    for field, value in metadata.ListFields():
        if field.name not in _HIDDEN_FIELDS:
            fields.append((f"{metadata.DESCRIPTOR.name}.{field.name}", value if isinstance(value, bytes) else str(value)))
    return fields + [(f"property {pair.key}", pair.value) for pair in metadata.properties]
