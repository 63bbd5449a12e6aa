"""Field table: what happens to each field of a RocketMQ record, and to each system property.

The mapping takes its sets of names from here.
"""

from mqbridge.mapping.field_table import CARRIED, DROPPED, NATIVE, RECOMPUTED, FieldRule, FieldTable
from mqbridge.rocketmq.wire.properties import SYSTEM_NAMES, TRANSIENT_PREFIX, Name

FLAG = "mqbridge.rocketmq.flag"
SHARDED = "mqbridge.rocketmq.sharded"
ESCAPE_PREFIX = "mqbridge.x."
EMPTY, ORDER = "mqbridge.empty", "mqbridge.order"

_TIMER = "bookkeeping of a delay that has passed; a copy would be delayed again"
_TRANSACTION = "only committed messages are delivered, and a copy is sent outside of any transaction"
_REQUEST = "kept for whoever reads the copy, written escaped: a copy must not be answered, the requester waits elsewhere"
_POP = "receipt of one delivery"
_BROKER = "the broker notes it on what it stores"
_INNER = "layout of an inner batch, whose messages are read one by one"
_LEGACY = "an internal mark of old versions that no client reads"

RECORD = (
    FieldRule("TOTALSIZE", None, RECOMPUTED, "the broker measures what it stores"),
    FieldRule("MAGIC", None, RECOMPUTED, "the layout that the broker chose"),
    FieldRule("BODYCRC", None, RECOMPUTED, "checked when read (a wrong one is a defect); the broker makes the next"),
    FieldRule("QUEUEID", "position", RECOMPUTED, "the batch's partition says it; the route chooses the target's"),
    FieldRule("FLAG", "properties", NATIVE, f"the application's number; other than 0 it is the property {FLAG}", own=True),
    FieldRule("QUEUEOFFSET", "position", RECOMPUTED, "where it lies in its queue; every log counts its own"),
    FieldRule("PHYSICALOFFSET", None, RECOMPUTED, "where it lies in the broker's commit log"),
    FieldRule("SYSFLAG", None, RECOMPUTED, "compression is undone when read; transaction bits are never copied"),
    FieldRule("BORNTIMESTAMP", "event_time", NATIVE, "the event time unless a gateway wrote it; a batch has that of its first"),
    FieldRule("BORNHOST", None, RECOMPUTED, "the broker notes who sends"),
    FieldRule("STORETIMESTAMP", "publish_time", RECOMPUTED, "read, never written: the broker's clock"),
    FieldRule("STOREHOST", None, RECOMPUTED, "the broker's own address"),
    FieldRule("RECONSUMETIMES", "delivery_count", RECOMPUTED, "read, never written: a copy has not been delivered yet"),
    FieldRule("PREPAREDTRANSACTIONOFFSET", None, DROPPED, _TRANSACTION),
    FieldRule("BODY", "payload", NATIVE, "byte for byte, decompressed; brokers refuse an empty one: a zero byte stands for it"),
    FieldRule("TOPIC", None, RECOMPUTED, "the batch's partition says it; the route names the target's"),
    FieldRule("PROPERTIES", "properties", NATIVE, "the user's, in stored order; the rows below say what becomes of the system's"),
)
"""The fields of a record in their order."""

SYSTEM = (
    FieldRule(Name.KEYS, "keys", NATIVE, "joined by one blank; its first is the key where no __SHARDINGKEY is"),
    FieldRule(Name.TAGS, "msg_type", NATIVE, "the one tag, by which brokers filter"),
    FieldRule(Name.SHARDING_KEY, "key", NATIVE, "written where the key is not the first of KEYS anyway"),
    FieldRule(
        Name.TIMER_DELIVER_MS,
        "deliver_at",
        NATIVE,
        "while it lies ahead; later it is carried: nothing is delayed twice. Before 5.0 it is the next DELAY level",
    ),
    FieldRule(
        Name.UNIQ_KEY,
        "properties",
        NATIVE,
        "the producer's id, a property of the same name; not one that a gateway or a broker made",
    ),
    FieldRule(Name.BUYER_ID, "properties", NATIVE, "set by applications: a property of the same name", own=True),
    FieldRule(Name.MSG_TYPE, "properties", CARRIED, _REQUEST, own=True),
    FieldRule(Name.CORRELATION_ID, "properties", CARRIED, _REQUEST, own=True),
    FieldRule(Name.REPLY_TO_CLIENT, "properties", CARRIED, _REQUEST, own=True),
    FieldRule(Name.TTL, "properties", CARRIED, _REQUEST, own=True),
    FieldRule(
        Name.DLQ_ORIGIN_TOPIC,
        "properties",
        CARRIED,
        "says what a dead letter was; kept for its reader, written escaped",
        own=True,
    ),
    FieldRule(
        Name.DLQ_ORIGIN_MESSAGE_ID,
        "properties",
        CARRIED,
        "says what a dead letter was; kept for its reader, written escaped",
        own=True,
    ),
    FieldRule(Name.WAIT, None, DROPPED, "how the producer wanted its broker to store it"),
    FieldRule(Name.DELAY, None, DROPPED, "a level counts from the first sending, and has elapsed; a copy would be delayed again"),
    FieldRule(Name.TIMER_DELAY_SEC, None, DROPPED, _TIMER),
    FieldRule(Name.TIMER_DELAY_MS, None, DROPPED, _TIMER),
    FieldRule(Name.TIMER_OUT_MS, None, DROPPED, _TIMER),
    FieldRule(Name.TIMER_ENQUEUE_MS, None, DROPPED, _TIMER),
    FieldRule(Name.TIMER_DEQUEUE_MS, None, DROPPED, _TIMER),
    FieldRule(Name.TIMER_ROLL_TIMES, None, DROPPED, _TIMER),
    FieldRule(Name.TIMER_DELAY_LEVEL, None, DROPPED, _TIMER),
    FieldRule(Name.TIMER_DEL_UNIQKEY, None, DROPPED, "cancels a delayed message of its own cluster"),
    FieldRule(Name.EXTEND_UNIQ_INFO, None, DROPPED, "a proxy's note to itself"),
    FieldRule(
        Name.RETRY_TOPIC, None, DROPPED, "the topic that a redelivery came from; a copy with it would be taken for a redelivery"
    ),
    FieldRule(Name.REAL_TOPIC, None, DROPPED, "the topic while the message waited; a copy would be sent there"),
    FieldRule(Name.REAL_QID, None, DROPPED, "the queue while the message waited"),
    FieldRule(Name.ORIGIN_MESSAGE_ID, None, DROPPED, "the place of the first attempt in another commit log"),
    FieldRule(Name.RECONSUME_TIME, None, DROPPED, "a client's request to count redeliveries"),
    FieldRule(Name.MAX_RECONSUME_TIMES, None, DROPPED, "a client's request to count redeliveries"),
    FieldRule(Name.TRAN_MSG, None, DROPPED, _TRANSACTION),
    FieldRule(Name.PGROUP, None, DROPPED, _TRANSACTION),
    FieldRule(Name.CHECK_IMMUNITY_TIME_IN_SECONDS, None, DROPPED, _TRANSACTION),
    FieldRule(Name.TRAN_PREPARED_QUEUE_OFFSET, None, DROPPED, _TRANSACTION),
    FieldRule(Name.TRANSACTION_CHECK_TIMES, None, DROPPED, _TRANSACTION),
    FieldRule(Name.TRANSACTION_ID, None, DROPPED, _TRANSACTION),
    FieldRule(Name.MIN_OFFSET, None, DROPPED, "a consumer's note about its pull"),
    FieldRule(Name.MAX_OFFSET, None, DROPPED, "a consumer's note about its pull"),
    FieldRule(Name.CONSUME_START_TIME, None, DROPPED, "a consumer's note about its own work"),
    FieldRule(Name.MSG_REGION, None, RECOMPUTED, _BROKER),
    FieldRule(Name.TRACE_ON, None, RECOMPUTED, _BROKER),
    FieldRule(Name.CLUSTER, None, RECOMPUTED, _BROKER),
    FieldRule(Name.TRACE_CONTEXT, None, DROPPED, "the trace of the first sending"),
    FieldRule(Name.ARRIVE_TIME, None, DROPPED, "when a reply reached its broker"),
    FieldRule(Name.PUSH_REPLY_TIME, None, DROPPED, "when a reply was pushed to its requester"),
    FieldRule(Name.INSTANCE_ID, None, DROPPED, "the producer's namespace, which its topic's name tells too"),
    FieldRule(Name.POP_CK, None, DROPPED, _POP),
    FieldRule(Name.POP_CK_OFFSET, None, DROPPED, _POP),
    FieldRule(Name.FIRST_POP_TIME, None, DROPPED, _POP),
    FieldRule(Name.INNER_NUM, None, DROPPED, _INNER),
    FieldRule(Name.INNER_BASE, None, DROPPED, _INNER),
    FieldRule(Name.INNER_MULTI_DISPATCH, None, DROPPED, _INNER),
    FieldRule(Name.INNER_MULTI_QUEUE_OFFSET, None, DROPPED, _INNER),
    FieldRule(Name.BORN_HOST, None, DROPPED, "a proxy's note of who sent"),
    FieldRule(Name.BORN_TIMESTAMP, None, DROPPED, "a proxy's note of when; the record's own field counts"),
    FieldRule(Name.CRC32, None, DROPPED, "a checksum of the properties as they were"),
    FieldRule(Name.DUP_INFO, None, DROPPED, "a client's note about repeats"),
    FieldRule(Name.TRANSFER_FLAG, None, DROPPED, _LEGACY),
    FieldRule(Name.CORRECTION_FLAG, None, DROPPED, _LEGACY),
    FieldRule(Name.MQ2_FLAG, None, DROPPED, _LEGACY),
    FieldRule(Name.REDIRECT, None, DROPPED, _LEGACY),
    FieldRule(Name.FORWARD_QUEUE_ID, None, DROPPED, _LEGACY),
    FieldRule(TRANSIENT_PREFIX + "*", None, DROPPED, "a client's notes that are not meant to be stored"),
)
"""The properties that the system gives a meaning to."""

OURS = (
    FieldRule("mqbridge.key", "key", CARRIED, "a key of which the property string cannot hold the characters"),
    FieldRule("mqbridge.key.b64", "key", CARRIED, "a binary key"),
    FieldRule("mqbridge.ordering_key", "ordering_key", CARRIED, "base64"),
    FieldRule("mqbridge.keys", "keys", CARRIED, "where a key holds a blank, or KEYS could not be taken apart again"),
    FieldRule("mqbridge.msg_type", "msg_type", CARRIED, "a type that TAGS cannot hold: empty, or with a separator"),
    FieldRule("mqbridge.attributes", "attributes", CARRIED, "byte for byte"),
    FieldRule("mqbridge.attributes.b64", "attributes", CARRIED, "where it is not UTF-8"),
    FieldRule("mqbridge.event_time", "event_time", CARRIED, "exact; the born timestamp is shared by a batch"),
    FieldRule(
        "mqbridge.deliver_at", "deliver_at", CARRIED, "a time that has passed, or that a broker before 5.0 keeps by a level"
    ),
    FieldRule("mqbridge.null", "payload", CARRIED, "a tombstone; believed while the body is one zero byte"),
    FieldRule(EMPTY, "payload", CARRIED, "a payload of no bytes; believed while the body is one zero byte"),
    FieldRule("mqbridge.without", "key", CARRIED, "keys without a key", own=True),
    FieldRule("mqbridge.origin", "origin", CARRIED, "cluster, topic, partition and position of the source"),
    FieldRule("mqbridge.hops", "hops", CARRIED, "from the second gateway on"),
    FieldRule("mqbridge.u.*", "properties", CARRIED, "a user's property whose name is one of these"),
    FieldRule(ESCAPE_PREFIX + "N.*", "properties", CARRIED, "repeats, empty texts, separators, the system's names"),
    FieldRule(ORDER, "properties", CARRIED, "of a message sent alone: brokers mix up the properties", own=True),
    FieldRule(FLAG, "properties", CARRIED, "the FLAG of a RocketMQ message in other systems", own=True),
    FieldRule(SHARDED, "properties", CARRIED, "in other systems: __SHARDINGKEY was there beside a KEYS that says it", own=True),
    FieldRule("mqbridge.v", None, CARRIED, "a gateway wrote it, where nothing else says so: born is no event time"),
    FieldRule("", "defect", DROPPED, "what could not be read is never delivered"),
)

TABLE = FieldTable("rocketmq", "RocketMQ", (*RECORD, *SYSTEM, *OURS))

KEPT_NAMES = frozenset(row.native for row in SYSTEM if row.field == "properties")
"""System properties that become properties of the message."""
WRITTEN_NAMES = frozenset(row.native for row in SYSTEM if row.field == "properties" and row.fate is NATIVE)
"""Those of them that are written as they are."""
ESCAPED_NAMES = (SYSTEM_NAMES | {""}) - WRITTEN_NAMES
"""Names that a property of the user's must not have as it is written."""
IGNORED_NAMES = frozenset(row.native for row in SYSTEM if row.fate in {DROPPED, RECOMPUTED})
"""System properties that are never copied."""


def is_plain(name: str) -> bool:
    """Whether a property of this name may stand in the property string as what it is."""
    return name not in ESCAPED_NAMES and not name.startswith((TRANSIENT_PREFIX, ESCAPE_PREFIX))
