"""Field rules of Pulsar: the fields of its metadata, and the reserved properties for fields of other systems.

MessageMetadata belongs to an entry; if the entry is not a batch, also to its only message. SingleMessageMetadata belongs to a
message in a batch. Each rule contains Pulsar's field (empty: none), the field of `Message` (None: none), the fate of the value
when a message is written, and a note for the published page. With `own=True` only values that come from Pulsar are written. See
`mqbridge.mapping.field_table`.
"""

from mqbridge.mapping.field_table import CARRIED, DROPPED, NATIVE, RECOMPUTED, FieldRule, FieldTable
from mqbridge.message import MSG_TYPE

_CHUNKS = "a chunked message is one message here; chunks that cannot be joined are raw messages"
_ENCRYPTED = "an encrypted entry is a raw message, which has it; other written entries are not encrypted"
_TRANSACTION = "only committed messages are delivered, and copies are sent outside of any transaction"
_PROPERTIES = "in order, repeats kept; bytes that are not UTF-8 are kept"
_KEY = "text, or bytes if partition_key_b64_encoded is set"
_NO_KEY = "a missing key means the same"
_SET_BY_BROKERS = "set by the brokers themselves, since 5.0"

MESSAGE_METADATA = (
    FieldRule("MessageMetadata.producer_name", None, RECOMPUTED, "the sending producer; used by deduplication"),
    FieldRule("MessageMetadata.sequence_id", None, RECOMPUTED, "numbered by the producer"),
    FieldRule("MessageMetadata.publish_time", "publish_time", RECOMPUTED, "read, never copied: each producer sets its own"),
    FieldRule("MessageMetadata.properties", "properties", NATIVE, _PROPERTIES),
    FieldRule("MessageMetadata.replicated_from", None, DROPPED, "the cluster that a replicator of the source copied it from"),
    FieldRule("MessageMetadata.partition_key", "key", NATIVE, _KEY + "; an entry has the key of its first message"),
    FieldRule("MessageMetadata.replicate_to", None, DROPPED, "names of clusters of the source's Pulsar instance"),
    FieldRule("MessageMetadata.compression", None, RECOMPUTED, "undone on reading; written as the outbound's option says"),
    FieldRule("MessageMetadata.uncompressed_size", None, RECOMPUTED, "of the written entry"),
    FieldRule("MessageMetadata.num_messages_in_batch", None, RECOMPUTED, "batches become messages, messages become batches"),
    FieldRule("MessageMetadata.event_time", "event_time", NATIVE, "0 on the wire means no event time"),
    FieldRule("MessageMetadata.encryption_keys", None, DROPPED, _ENCRYPTED),
    FieldRule("MessageMetadata.encryption_algo", None, DROPPED, _ENCRYPTED),
    FieldRule("MessageMetadata.encryption_param", None, DROPPED, _ENCRYPTED),
    FieldRule("MessageMetadata.schema_version", None, DROPPED, "a number of the source's schema registry, meaningless elsewhere"),
    FieldRule("MessageMetadata.partition_key_b64_encoded", "key", NATIVE, "a binary key"),
    FieldRule(
        "MessageMetadata.ordering_key", "ordering_key", NATIVE, "bytes; an entry has the ordering key of its first message"
    ),
    FieldRule("MessageMetadata.deliver_at_time", "deliver_at", NATIVE, "a message with a delivery time gets an entry of its own"),
    FieldRule("MessageMetadata.marker_type", None, DROPPED, "markers are internal to brokers and never reach a consumer"),
    FieldRule("MessageMetadata.txnid_least_bits", None, DROPPED, _TRANSACTION),
    FieldRule("MessageMetadata.txnid_most_bits", None, DROPPED, _TRANSACTION),
    FieldRule("MessageMetadata.highest_sequence_id", None, RECOMPUTED, "numbered by the producer"),
    FieldRule("MessageMetadata.null_value", "payload", NATIVE, "a tombstone"),
    FieldRule("MessageMetadata.uuid", None, RECOMPUTED, _CHUNKS),
    FieldRule("MessageMetadata.num_chunks_from_msg", None, RECOMPUTED, _CHUNKS),
    FieldRule("MessageMetadata.total_chunk_msg_size", None, RECOMPUTED, _CHUNKS),
    FieldRule("MessageMetadata.chunk_id", None, RECOMPUTED, _CHUNKS),
    FieldRule("MessageMetadata.null_partition_key", None, DROPPED, _NO_KEY),
)
METADATA_SINCE_5 = (
    FieldRule("MessageMetadata.compacted_batch_indexes", None, DROPPED, _SET_BY_BROKERS),
    FieldRule("MessageMetadata.schema_id", None, DROPPED, "an id of a schema registry, meaningless elsewhere"),
    FieldRule("MessageMetadata.entry_hash_min", None, DROPPED, _SET_BY_BROKERS),
    FieldRule("MessageMetadata.entry_hash_max", None, DROPPED, _SET_BY_BROKERS),
)
"""Fields missing in our own .proto: nothing is read from them."""
SINGLE_MESSAGE_METADATA = (
    FieldRule("SingleMessageMetadata.properties", "properties", NATIVE, _PROPERTIES),
    FieldRule("SingleMessageMetadata.partition_key", "key", NATIVE, _KEY),
    FieldRule("SingleMessageMetadata.payload_size", None, RECOMPUTED, "of the written entry"),
    FieldRule("SingleMessageMetadata.compacted_out", None, DROPPED, "set by compaction; topics are read uncompacted"),
    FieldRule("SingleMessageMetadata.event_time", "event_time", NATIVE, "0 on the wire means no event time"),
    FieldRule("SingleMessageMetadata.partition_key_b64_encoded", "key", NATIVE, "a binary key"),
    FieldRule("SingleMessageMetadata.ordering_key", "ordering_key", NATIVE, "bytes"),
    FieldRule("SingleMessageMetadata.sequence_id", None, RECOMPUTED, "numbered by the producer"),
    FieldRule("SingleMessageMetadata.null_value", "payload", NATIVE, "a tombstone"),
    FieldRule("SingleMessageMetadata.null_partition_key", None, DROPPED, _NO_KEY),
)
OTHER_FIELDS = (
    FieldRule("payload", "payload", NATIVE, "byte for byte, decompressed"),
    FieldRule("ledger, entry, index in the batch", "position", RECOMPUTED, "the position in the source; every topic has its own"),
    FieldRule("CommandMessage.redelivery_count", "delivery_count", RECOMPUTED, "read, never written: a copy starts undelivered"),
    FieldRule(f"property {MSG_TYPE}", "msg_type", NATIVE, "the message type in Pulsar, from any client; also stays a property"),
    FieldRule("", "defect", DROPPED, "an unreadable message is never delivered; its dead letter is raw"),
)
RESERVED_PROPERTIES = (
    FieldRule("mqbridge.attributes", "attributes", CARRIED, "byte for byte"),
    FieldRule("mqbridge.attributes.b64", "attributes", CARRIED, "if it is not UTF-8"),
    FieldRule("mqbridge.keys", "keys", CARRIED, "percent-encoded, joined by commas"),
    FieldRule("mqbridge.msg_type", "msg_type", CARRIED, "the type, if no property $msgType$ has it"),
    FieldRule("mqbridge.event_time", "event_time", CARRIED, "time 0, which means none on the wire"),
    FieldRule("mqbridge.without", "msg_type", CARRIED, "there is a property $msgType$, but no type", own=True),
    FieldRule("mqbridge.origin", "origin", CARRIED, "cluster, topic, partition and position of the source"),
    FieldRule("mqbridge.hops", "hops", CARRIED, "number of gateways passed, from the second gateway on"),
    FieldRule("mqbridge.u.*", "properties", CARRIED, "a user's property with one of these names"),
)

TABLE = FieldTable(
    "pulsar",
    "Pulsar",
    (*MESSAGE_METADATA, *METADATA_SINCE_5, *SINGLE_MESSAGE_METADATA, *OTHER_FIELDS, *RESERVED_PROPERTIES),
    listener="Where the backing stores entries of Pulsar (the embedded log), they pass as they are, with everything in them."
    " Elsewhere each message becomes an entry of its own, with its fields that are native or carried.",
)
