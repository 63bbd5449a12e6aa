"""Units of the systems' own formats, as their SDKs make them."""

from collections.abc import Callable

from mqbridge.message import Unit
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.compression import compress
from mqbridge.pulsar.wire.entry import stored_entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import CompressionType, KeyValue, MessageMetadata, SingleMessageMetadata

PUBLISHED_MS = 1_700_000_000_000


def pulsar_entries() -> list[Unit]:
    """A single message, a batch, and a compressed batch, with names and numbers of a producer that no `Message` can hold."""
    single = MessageMetadata(producer_name="sdk-7", sequence_id=11, publish_time=PUBLISHED_MS, partition_key="k")
    single.properties.append(KeyValue(key="a", value="1"))
    batch = MessageMetadata(producer_name="sdk-7", sequence_id=12, publish_time=PUBLISHED_MS + 1, num_messages_in_batch=3)
    payload = join_batch((SingleMessageMetadata(sequence_id=12 + index), b"%06d" % index) for index in range(3))
    compressed = MessageMetadata()
    compressed.CopyFrom(batch)
    compressed.sequence_id, compressed.compression, compressed.uncompressed_size = 15, CompressionType.LZ4, len(payload)
    return [
        Unit(stored_entry(single, b"alone"), 1, PUBLISHED_MS),
        Unit(stored_entry(batch, payload), 3, PUBLISHED_MS + 1),
        Unit(stored_entry(compressed, compress(CompressionType.LZ4, payload)), 3, PUBLISHED_MS + 1),
    ]


SAMPLES: dict[str, Callable[[], list[Unit]]] = {"pulsar.entry": pulsar_entries}
"""Units by the name of their format."""
