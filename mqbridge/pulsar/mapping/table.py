"""What becomes of the fields of a Pulsar message, and of what other systems say.

MessageMetadata is the entry's, and in an entry that is no batch the message's; SingleMessageMetadata stands before each
message of a batch. Properties that are the gateway's own are written under their names.
"""

from mqbridge.mapping.field_table import CARRIED, DROPPED, NATIVE, RECOMPUTED, Row, Table
from mqbridge.message import MSG_TYPE

_CHUNKS = "a message in chunks is one message here, or a defect where it cannot be joined"
_SECRET = "an entry that cannot be decrypted is a defect; what is written is not encrypted"  # noqa: S105 - a reason
_TRANSACTION = "only committed messages are delivered, and a copy is sent outside of any transaction"
_KEY = "text, or bytes where partition_key_b64_encoded says so"
_NO_KEY = "a key that is not there says the same"
_SCALABLE = "of brokers since 5.0, which fill it in themselves"

METADATA = (
    Row("MessageMetadata.producer_name", None, RECOMPUTED, "who sends; deduplication goes by it"),
    Row("MessageMetadata.sequence_id", None, RECOMPUTED, "the producer counts"),
    Row("MessageMetadata.publish_time", "publish_time", RECOMPUTED, "read, never copied: each producer stamps its own"),
    Row("MessageMetadata.properties", "properties", NATIVE, "in order, repeats kept"),
    Row("MessageMetadata.replicated_from", None, DROPPED, "where a replicator of the source took it from"),
    Row("MessageMetadata.partition_key", "key", NATIVE, _KEY + "; an entry has that of its first message"),
    Row("MessageMetadata.replicate_to", None, DROPPED, "clusters of the source's instance"),
    Row("MessageMetadata.compression", None, RECOMPUTED, "undone when read; the outbound's option says what is written"),
    Row("MessageMetadata.uncompressed_size", None, RECOMPUTED, "of what is written"),
    Row("MessageMetadata.num_messages_in_batch", None, RECOMPUTED, "a batch becomes messages, and messages become batches"),
    Row("MessageMetadata.event_time", "event_time", NATIVE, "0 is none on the wire"),
    Row("MessageMetadata.encryption_keys", None, DROPPED, _SECRET),
    Row("MessageMetadata.encryption_algo", None, DROPPED, _SECRET),
    Row("MessageMetadata.encryption_param", None, DROPPED, _SECRET),
    Row(
        "MessageMetadata.schema_version", None, DROPPED, "a number of the source's schema registry, which means nothing elsewhere"
    ),
    Row("MessageMetadata.partition_key_b64_encoded", "key", NATIVE, "a binary key"),
    Row("MessageMetadata.ordering_key", "ordering_key", NATIVE, "bytes; an entry has that of its first message"),
    Row("MessageMetadata.deliver_at_time", "deliver_at", NATIVE, "in an entry of its own"),
    Row("MessageMetadata.marker_type", None, DROPPED, "markers are the brokers' own and never reach a consumer"),
    Row("MessageMetadata.txnid_least_bits", None, DROPPED, _TRANSACTION),
    Row("MessageMetadata.txnid_most_bits", None, DROPPED, _TRANSACTION),
    Row("MessageMetadata.highest_sequence_id", None, RECOMPUTED, "the producer counts"),
    Row("MessageMetadata.null_value", "payload", NATIVE, "a tombstone"),
    Row("MessageMetadata.uuid", None, RECOMPUTED, _CHUNKS),
    Row("MessageMetadata.num_chunks_from_msg", None, RECOMPUTED, _CHUNKS),
    Row("MessageMetadata.total_chunk_msg_size", None, RECOMPUTED, _CHUNKS),
    Row("MessageMetadata.chunk_id", None, RECOMPUTED, _CHUNKS),
    Row("MessageMetadata.null_partition_key", None, DROPPED, _NO_KEY),
)
SINCE_5 = (
    Row("MessageMetadata.compacted_batch_indexes", None, DROPPED, _SCALABLE),
    Row("MessageMetadata.schema_id", None, DROPPED, "an id of a registry that means nothing elsewhere"),
    Row("MessageMetadata.entry_hash_min", None, DROPPED, _SCALABLE),
    Row("MessageMetadata.entry_hash_max", None, DROPPED, _SCALABLE),
)
"""Fields that our own .proto need not know: nothing is read from them."""
SINGLE = (
    Row("SingleMessageMetadata.properties", "properties", NATIVE, "in order, repeats kept"),
    Row("SingleMessageMetadata.partition_key", "key", NATIVE, _KEY),
    Row("SingleMessageMetadata.payload_size", None, RECOMPUTED, "of what is written"),
    Row("SingleMessageMetadata.compacted_out", None, RECOMPUTED, "such a message is not delivered"),
    Row("SingleMessageMetadata.event_time", "event_time", NATIVE, "0 is none on the wire"),
    Row("SingleMessageMetadata.partition_key_b64_encoded", "key", NATIVE, "a binary key"),
    Row("SingleMessageMetadata.ordering_key", "ordering_key", NATIVE, "bytes"),
    Row("SingleMessageMetadata.sequence_id", None, RECOMPUTED, "the producer counts"),
    Row("SingleMessageMetadata.null_value", "payload", NATIVE, "a tombstone"),
    Row("SingleMessageMetadata.null_partition_key", None, DROPPED, _NO_KEY),
)
OTHERS = (
    Row("payload", "payload", NATIVE, "byte for byte, decompressed"),
    Row("ledger, entry, index in the batch", "position", RECOMPUTED, "where it lies; every topic has its own"),
    Row(
        "CommandMessage.redelivery_count", "delivery_count", RECOMPUTED, "read, never written: a copy has not been delivered yet"
    ),
    Row(f"property {MSG_TYPE}", "msg_type", NATIVE, "Pulsar's spelling of a type, whoever wrote it; stays a property too"),
    Row("", "defect", DROPPED, "what could not be read is never delivered"),
)
OURS = (
    Row("mqbridge.attributes", "attributes", CARRIED, "byte for byte"),
    Row("mqbridge.attributes.b64", "attributes", CARRIED, "where it is not UTF-8"),
    Row("mqbridge.keys", "keys", CARRIED, "percent-encoded, joined by commas"),
    Row("mqbridge.msg_type", "msg_type", CARRIED, "a type that no $msgType$ says"),
    Row("mqbridge.event_time", "event_time", CARRIED, "the first millisecond of all, which is none on the wire"),
    Row("mqbridge.without", "msg_type", CARRIED, "a property $msgType$ that is no type", own=True),
    Row("mqbridge.origin", "origin", CARRIED, "cluster, topic, partition and position of the source"),
    Row("mqbridge.hops", "hops", CARRIED, "from the second gateway on"),
    Row("mqbridge.u.*", "properties", CARRIED, "a user's property whose name is one of these"),
)

TABLE = Table("pulsar", "Pulsar", (*METADATA, *SINCE_5, *SINGLE, *OTHERS, *OURS))
