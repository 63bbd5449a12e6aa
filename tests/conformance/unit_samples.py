"""Units of the systems' own formats, as their SDKs make them."""

import zlib
from collections.abc import Callable

from mqbridge.message import Unit
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.compression import compress
from mqbridge.pulsar.wire.entry import stored_entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import CompressionType, KeyValue, MessageMetadata, SingleMessageMetadata
from mqbridge.rocketmq.wire import compression, properties
from mqbridge.rocketmq.wire.neutral_record import encode_neutral
from mqbridge.rocketmq.wire.record import SysFlag
from mqbridge.tubemq.mapping.unit_format import unit_of_data
from mqbridge.tubemq.wire.payload import join_payload

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


def rocketmq_records() -> list[Unit]:
    """A plain record, one with a compressed body, and one with a flag and properties that no `Message` holds."""
    block = properties.encode(
        [
            ("UNIQ_KEY", "7F00000100010000000000000003"),
            ("WAIT", "true"),
            ("DELAY", "3"),
            ("REAL_TOPIC", "elsewhere"),
            ("TRACE_CONTEXT", "trace-1"),
            ("KEYS", "order-7 order-8"),
            ("TAGS", "paid"),
            ("a", "1"),
            ("a", "2"),
        ]
    )
    body = b"compressed " * 500
    return [
        Unit(encode_neutral(b"plain", born_timestamp=PUBLISHED_MS), 1, PUBLISHED_MS),
        Unit(
            encode_neutral(zlib.compress(body), sys_flag=SysFlag.COMPRESSED | compression.ZLIB, born_timestamp=PUBLISHED_MS + 1),
            1,
            PUBLISHED_MS + 1,
        ),
        Unit(
            encode_neutral(b"all fields", block, flag=7, born_timestamp=PUBLISHED_MS + 1, reconsume_times=2), 1, PUBLISHED_MS + 2
        ),
    ]


def tubemq_messages() -> list[Unit]:
    """A message without attributes, one with those of a Java producer, and one with items that are no properties."""
    attributes = b"$msgType$=paid,$msgTime$=202311142213,a=1,a=2"
    messages = [join_payload(None, b"plain"), join_payload(attributes, b"body"), join_payload(b"odd,,a=1,b=\xff", b"all fields")]
    return [unit_of_data(data, flag)._replace(published_ms=PUBLISHED_MS + index) for index, (data, flag) in enumerate(messages)]


SAMPLES: dict[str, Callable[[], list[Unit]]] = {
    "pulsar.entry": pulsar_entries,
    "rocketmq.record": rocketmq_records,
    "tubemq.message": tubemq_messages,
}
"""Units by the name of their format."""
