"""Field rules of Pulsar: the fields of its metadata, and the reserved properties that carry fields of other systems.

MessageMetadata belongs to an entry, and to the message where the entry is no batch; SingleMessageMetadata belongs to a message of
a batch.
"""

from mqbridge.mapping.field_table import CARRIED, DROPPED, NATIVE, RECOMPUTED, FieldRule, FieldTable
from mqbridge.message import MSG_TYPE

_CHUNKS = "a message in chunks is one message here, or a defect where it cannot be joined"
_SECRET = "an entry that cannot be decrypted is a defect; what is written is not encrypted"  # noqa: S105 - a reason
_TRANSACTION = "only committed messages are delivered, and a copy is sent outside of any transaction"
_KEY = "text, or bytes where partition_key_b64_encoded says so"
_NO_KEY = "a key that is not there says the same"
_SCALABLE = "of brokers since 5.0, which fill it in themselves"

METADATA = (
    FieldRule("MessageMetadata.producer_name", None, RECOMPUTED, "who sends; deduplication goes by it"),
    FieldRule("MessageMetadata.sequence_id", None, RECOMPUTED, "the producer counts"),
    FieldRule("MessageMetadata.publish_time", "publish_time", RECOMPUTED, "read, never copied: each producer stamps its own"),
    FieldRule("MessageMetadata.properties", "properties", NATIVE, "in order, repeats kept"),
    FieldRule("MessageMetadata.replicated_from", None, DROPPED, "where a replicator of the source took it from"),
    FieldRule("MessageMetadata.partition_key", "key", NATIVE, _KEY + "; an entry has that of its first message"),
    FieldRule("MessageMetadata.replicate_to", None, DROPPED, "clusters of the source's instance"),
    FieldRule("MessageMetadata.compression", None, RECOMPUTED, "undone when read; the outbound's option says what is written"),
    FieldRule("MessageMetadata.uncompressed_size", None, RECOMPUTED, "of what is written"),
    FieldRule("MessageMetadata.num_messages_in_batch", None, RECOMPUTED, "a batch becomes messages, and messages become batches"),
    FieldRule("MessageMetadata.event_time", "event_time", NATIVE, "0 is none on the wire"),
    FieldRule("MessageMetadata.encryption_keys", None, DROPPED, _SECRET),
    FieldRule("MessageMetadata.encryption_algo", None, DROPPED, _SECRET),
    FieldRule("MessageMetadata.encryption_param", None, DROPPED, _SECRET),
    FieldRule(
        "MessageMetadata.schema_version", None, DROPPED, "a number of the source's schema registry, which means nothing elsewhere"
    ),
    FieldRule("MessageMetadata.partition_key_b64_encoded", "key", NATIVE, "a binary key"),
    FieldRule("MessageMetadata.ordering_key", "ordering_key", NATIVE, "bytes; an entry has that of its first message"),
    FieldRule("MessageMetadata.deliver_at_time", "deliver_at", NATIVE, "in an entry of its own"),
    FieldRule("MessageMetadata.marker_type", None, DROPPED, "markers are the brokers' own and never reach a consumer"),
    FieldRule("MessageMetadata.txnid_least_bits", None, DROPPED, _TRANSACTION),
    FieldRule("MessageMetadata.txnid_most_bits", None, DROPPED, _TRANSACTION),
    FieldRule("MessageMetadata.highest_sequence_id", None, RECOMPUTED, "the producer counts"),
    FieldRule("MessageMetadata.null_value", "payload", NATIVE, "a tombstone"),
    FieldRule("MessageMetadata.uuid", None, RECOMPUTED, _CHUNKS),
    FieldRule("MessageMetadata.num_chunks_from_msg", None, RECOMPUTED, _CHUNKS),
    FieldRule("MessageMetadata.total_chunk_msg_size", None, RECOMPUTED, _CHUNKS),
    FieldRule("MessageMetadata.chunk_id", None, RECOMPUTED, _CHUNKS),
    FieldRule("MessageMetadata.null_partition_key", None, DROPPED, _NO_KEY),
)
SINCE_5 = (
    FieldRule("MessageMetadata.compacted_batch_indexes", None, DROPPED, _SCALABLE),
    FieldRule("MessageMetadata.schema_id", None, DROPPED, "an id of a registry that means nothing elsewhere"),
    FieldRule("MessageMetadata.entry_hash_min", None, DROPPED, _SCALABLE),
    FieldRule("MessageMetadata.entry_hash_max", None, DROPPED, _SCALABLE),
)
"""Fields that our own .proto need not know: nothing is read from them."""
SINGLE = (
    FieldRule("SingleMessageMetadata.properties", "properties", NATIVE, "in order, repeats kept"),
    FieldRule("SingleMessageMetadata.partition_key", "key", NATIVE, _KEY),
    FieldRule("SingleMessageMetadata.payload_size", None, RECOMPUTED, "of what is written"),
    FieldRule("SingleMessageMetadata.compacted_out", None, DROPPED, "compaction's mark; a topic is read as it was written"),
    FieldRule("SingleMessageMetadata.event_time", "event_time", NATIVE, "0 is none on the wire"),
    FieldRule("SingleMessageMetadata.partition_key_b64_encoded", "key", NATIVE, "a binary key"),
    FieldRule("SingleMessageMetadata.ordering_key", "ordering_key", NATIVE, "bytes"),
    FieldRule("SingleMessageMetadata.sequence_id", None, RECOMPUTED, "the producer counts"),
    FieldRule("SingleMessageMetadata.null_value", "payload", NATIVE, "a tombstone"),
    FieldRule("SingleMessageMetadata.null_partition_key", None, DROPPED, _NO_KEY),
)
OTHERS = (
    FieldRule("payload", "payload", NATIVE, "byte for byte, decompressed"),
    FieldRule("ledger, entry, index in the batch", "position", RECOMPUTED, "where it lies; every topic has its own"),
    FieldRule(
        "CommandMessage.redelivery_count", "delivery_count", RECOMPUTED, "read, never written: a copy has not been delivered yet"
    ),
    FieldRule(f"property {MSG_TYPE}", "msg_type", NATIVE, "Pulsar's spelling of a type, whoever wrote it; stays a property too"),
    FieldRule("", "defect", DROPPED, "what could not be read is never delivered"),
)
RESERVED = (
    FieldRule("mqbridge.attributes", "attributes", CARRIED, "byte for byte"),
    FieldRule("mqbridge.attributes.b64", "attributes", CARRIED, "where it is not UTF-8"),
    FieldRule("mqbridge.keys", "keys", CARRIED, "percent-encoded, joined by commas"),
    FieldRule("mqbridge.msg_type", "msg_type", CARRIED, "a type that no $msgType$ says"),
    FieldRule("mqbridge.event_time", "event_time", CARRIED, "the first millisecond of all, which is none on the wire"),
    FieldRule("mqbridge.without", "msg_type", CARRIED, "a property $msgType$ that is no type", own=True),
    FieldRule("mqbridge.origin", "origin", CARRIED, "cluster, topic, partition and position of the source"),
    FieldRule("mqbridge.hops", "hops", CARRIED, "from the second gateway on"),
    FieldRule("mqbridge.u.*", "properties", CARRIED, "a user's property whose name is one of these"),
)

TABLE = FieldTable("pulsar", "Pulsar", (*METADATA, *SINCE_5, *SINGLE, *OTHERS, *RESERVED))
