"""Field table: the rule for each field of a RocketMQ record, each system property and each reserved property of gateways.

The sets of property names that the mapping uses are computed from this table. `FieldRule` explains the fates, and `own`: the
value is specific to RocketMQ, so values from other systems are not written there. To escape a property is to write it under the
name `mqbridge.x.N.NAME`, which brokers and clients do not interpret.
"""

from collections.abc import Iterable

from mqbridge.mapping.field_table import (
    ACTED_ON,
    CARRIED,
    DROPPED,
    IF_SENT,
    KEPT,
    LEFT_OUT,
    NATIVE,
    RECOMPUTED,
    SET,
    FieldRule,
    FieldTable,
    Returned,
)
from mqbridge.rocketmq.wire.neutral_record import ADDED_NAMES
from mqbridge.rocketmq.wire.properties import SYSTEM_NAMES, TRANSIENT_PREFIX, Name

FLAG = "mqbridge.rocketmq.flag"
"""Property that holds the FLAG of a RocketMQ record, unless the FLAG is 0."""
SHARDED = "mqbridge.rocketmq.sharded"
"""Marks a message whose record had a __SHARDINGKEY equal to the first index key; unmarked, a copy would have none."""
BLOCK = "mqbridge.rocketmq.block"
"""Property that holds what a listener's SDK sent beside the body, see `sent_block`."""
CUT, DEFECT = "mqbridge.rocketmq.cut", "mqbridge.rocketmq.defect"
"""Properties of what a listener's SDK gets: the number of properties that did not fit, and why the body is raw."""
ESCAPE_PREFIX = "mqbridge.x."
"""Start of the names of escaped properties."""
EMPTY, ORDER = "mqbridge.empty", "mqbridge.order"
"""Names of two reserved properties; RESERVED_PROPERTIES describes them."""

# Reasons that several rules have.
_TIMER = "state of a delay that has passed; with it, the broker would delay the copy again"
_TRANSACTION = "only committed messages are delivered, and a copy is sent outside of any transaction"
_REQUEST = "written escaped, for consumers to read: nobody may reply to a copy, because the requester waits in the source cluster"
_POP = "receipt handle of one delivery"
_BROKER = "the broker adds it to every message that it stores"
_INNER = "layout of an inner batch; its messages are read one by one"
_ALLOWED = "written escaped, so that it has no effect on the copy: clients let applications set it, so it may be theirs"
_LEGACY = "an internal mark of old versions that no client reads"

_NOT_KEPT: dict[str, Returned] = {
    **dict.fromkeys(("TOTALSIZE", "MAGIC", "BODYCRC", "QUEUEID", "QUEUEOFFSET", "PHYSICALOFFSET", "SYSFLAG", "BORNHOST"), SET),
    **dict.fromkeys(("STORETIMESTAMP", "STOREHOST", "TOPIC"), SET),
    "PREPAREDTRANSACTIONOFFSET": LEFT_OUT,
    **dict.fromkeys(ADDED_NAMES, LEFT_OUT),
    **dict.fromkeys((Name.DELAY, Name.TIMER_DELIVER_MS, Name.TIMER_DELAY_SEC, Name.TIMER_DELAY_MS), ACTED_ON),
    **dict.fromkeys((Name.TRAN_MSG, Name.PGROUP), ACTED_ON),
}
"""The fields and system properties that SDKs do not simply get back from a listener."""


def _for_listeners(rules: Iterable[FieldRule], default: Returned) -> tuple[FieldRule, ...]:
    """Return the rules with what SDKs get from a listener: the `default`, unless _NOT_KEPT says something else."""
    return tuple(rule._replace(listener=_NOT_KEPT.get(rule.native, default)) if rule.native else rule for rule in rules)


RECORD_FIELDS = (
    FieldRule("TOTALSIZE", None, RECOMPUTED, "the broker computes the size"),
    FieldRule("MAGIC", None, RECOMPUTED, "the broker chooses the layout"),
    FieldRule("BODYCRC", None, RECOMPUTED, "checked when read (a mismatch is a defect); the broker computes the new one"),
    FieldRule("QUEUEID", "position", RECOMPUTED, "part of the batch's partition; the route chooses the target queue"),
    FieldRule("FLAG", "properties", NATIVE, f"a number of the application; unless it is 0, the property {FLAG} has it", own=True),
    FieldRule("QUEUEOFFSET", "position", RECOMPUTED, "the offset in the queue; every queue counts its own"),
    FieldRule("PHYSICALOFFSET", None, RECOMPUTED, "the offset in the broker's commit log"),
    FieldRule(
        "SYSFLAG",
        None,
        RECOMPUTED,
        "bodies are decompressed when read, and compressed as the outbound's option says; transaction bits are never copied",
    ),
    FieldRule(
        "BORNTIMESTAMP",
        "event_time",
        NATIVE,
        "the event time, unless a gateway wrote the record; a written batch has the time of its first message",
    ),
    FieldRule("BORNHOST", None, RECOMPUTED, "the broker stores the sender's address"),
    FieldRule("STORETIMESTAMP", "publish_time", RECOMPUTED, "read, never written: the broker's clock"),
    FieldRule("STOREHOST", None, RECOMPUTED, "the broker's own address"),
    FieldRule("RECONSUMETIMES", "delivery_count", RECOMPUTED, "read, never written: a copy has not been delivered yet"),
    FieldRule("PREPAREDTRANSACTIONOFFSET", None, DROPPED, _TRANSACTION),
    FieldRule(
        "BODY", "payload", NATIVE, "byte for byte, decompressed; a zero byte stands for an empty body, which brokers refuse"
    ),
    FieldRule("TOPIC", None, RECOMPUTED, "part of the batch's partition; the route names the target topic"),
    FieldRule(
        "PROPERTIES",
        "properties",
        NATIVE,
        "user properties, in stored order; bytes that are not UTF-8 are kept; the rows below list the system properties",
    ),
)
"""The rules of the fields of a record, in their order."""

SYSTEM_PROPERTIES = (
    FieldRule(
        Name.KEYS,
        "keys",
        NATIVE,
        "index keys joined by a blank; the first one is the key if there is no __SHARDINGKEY. In a compacted topic, the key of a"
        " message without index keys",
    ),
    FieldRule(Name.TAGS, "msg_type", NATIVE, "the tag of the message, by which brokers filter"),
    FieldRule(Name.SHARDING_KEY, "key", NATIVE, "written if the key differs from the first index key"),
    FieldRule(
        Name.TIMER_DELIVER_MS,
        "deliver_at",
        NATIVE,
        "while the time is in the future; a past time is carried, so that no message is delayed twice. Brokers before 5.0 get the"
        " next longer DELAY level",
    ),
    FieldRule(
        Name.UNIQ_KEY,
        "properties",
        NATIVE,
        "the producer's message id, as a property of the same name; an id made by a gateway or a broker is not copied",
    ),
    FieldRule(Name.BUYER_ID, "properties", NATIVE, "set by applications; a property of the same name", own=True),
    FieldRule(Name.MSG_TYPE, "properties", CARRIED, _REQUEST, own=True),
    FieldRule(Name.CORRELATION_ID, "properties", CARRIED, _REQUEST, own=True),
    FieldRule(Name.REPLY_TO_CLIENT, "properties", CARRIED, _REQUEST, own=True),
    FieldRule(Name.TTL, "properties", CARRIED, _REQUEST, own=True),
    FieldRule(
        Name.DLQ_ORIGIN_TOPIC,
        "properties",
        CARRIED,
        "the origin of a dead letter; written escaped, for consumers to read",
        own=True,
    ),
    FieldRule(
        Name.DLQ_ORIGIN_MESSAGE_ID,
        "properties",
        CARRIED,
        "the origin of a dead letter; written escaped, for consumers to read",
        own=True,
    ),
    FieldRule(Name.WAIT, None, DROPPED, "the producer's request to wait for the flush or a replica"),
    FieldRule(Name.DELAY, None, DROPPED, "a delay that has elapsed; with it, the broker would delay the copy again"),
    FieldRule(Name.TIMER_DELAY_SEC, None, DROPPED, _TIMER),
    FieldRule(Name.TIMER_DELAY_MS, None, DROPPED, _TIMER),
    FieldRule(Name.TIMER_OUT_MS, None, DROPPED, _TIMER),
    FieldRule(Name.TIMER_ENQUEUE_MS, None, DROPPED, _TIMER),
    FieldRule(Name.TIMER_DEQUEUE_MS, None, DROPPED, _TIMER),
    FieldRule(Name.TIMER_ROLL_TIMES, None, DROPPED, _TIMER),
    FieldRule(Name.TIMER_DELAY_LEVEL, None, DROPPED, _TIMER),
    FieldRule(Name.TIMER_DEL_UNIQKEY, None, DROPPED, "cancels a delayed message of its own cluster"),
    FieldRule(Name.EXTEND_UNIQ_INFO, None, DROPPED, "internal to a proxy"),
    FieldRule(Name.RETRY_TOPIC, None, DROPPED, "the topic of a redelivered message; with it, a copy would count as a redelivery"),
    FieldRule(Name.REAL_TOPIC, None, DROPPED, "the target topic of a delayed message; with it, a copy would go there"),
    FieldRule(Name.REAL_QID, None, DROPPED, "the target queue of a delayed message"),
    FieldRule(Name.ORIGIN_MESSAGE_ID, None, DROPPED, "the message id of the first attempt, in another commit log"),
    FieldRule(Name.RECONSUME_TIME, None, DROPPED, "a client's request to count redeliveries"),
    FieldRule(Name.MAX_RECONSUME_TIMES, None, DROPPED, "a client's request to count redeliveries"),
    FieldRule(Name.TRAN_MSG, None, DROPPED, _TRANSACTION),
    FieldRule(Name.PGROUP, None, DROPPED, _TRANSACTION),
    FieldRule(Name.CHECK_IMMUNITY_TIME_IN_SECONDS, "properties", CARRIED, _ALLOWED, own=True),
    FieldRule(Name.TRAN_PREPARED_QUEUE_OFFSET, None, DROPPED, _TRANSACTION),
    FieldRule(Name.TRANSACTION_CHECK_TIMES, "properties", CARRIED, _ALLOWED, own=True),
    FieldRule(Name.TRANSACTION_ID, "properties", CARRIED, _ALLOWED, own=True),
    FieldRule(Name.MIN_OFFSET, None, DROPPED, "added by a consumer to what it pulls"),
    FieldRule(Name.MAX_OFFSET, None, DROPPED, "added by a consumer to what it pulls"),
    FieldRule(Name.CONSUME_START_TIME, None, DROPPED, "added by a consumer when it begins to process the message"),
    FieldRule(Name.MSG_REGION, None, RECOMPUTED, _BROKER),
    FieldRule(Name.TRACE_ON, None, RECOMPUTED, _BROKER),
    FieldRule(Name.CLUSTER, None, RECOMPUTED, _BROKER),
    FieldRule(Name.TRACE_CONTEXT, "properties", CARRIED, _ALLOWED, own=True),
    FieldRule(Name.ARRIVE_TIME, None, DROPPED, "the time at which a reply reached its broker"),
    FieldRule(Name.PUSH_REPLY_TIME, None, DROPPED, "the time at which a reply was pushed to its requester"),
    FieldRule(Name.INSTANCE_ID, None, DROPPED, "the producer's namespace, which is also part of the topic name"),
    FieldRule(Name.POP_CK, None, DROPPED, _POP),
    FieldRule(Name.POP_CK_OFFSET, None, DROPPED, _POP),
    FieldRule(Name.FIRST_POP_TIME, None, DROPPED, _POP),
    FieldRule(Name.INNER_NUM, "properties", CARRIED, _ALLOWED, own=True),
    FieldRule(Name.INNER_BASE, "properties", CARRIED, _ALLOWED, own=True),
    FieldRule(Name.INNER_MULTI_DISPATCH, "properties", CARRIED, _ALLOWED, own=True),
    FieldRule(Name.INNER_MULTI_QUEUE_OFFSET, None, DROPPED, _INNER),
    FieldRule(Name.BORN_HOST, None, DROPPED, "the sender's address, added by a proxy"),
    FieldRule(
        Name.BORN_TIMESTAMP, None, DROPPED, "the time of the send, added by a proxy; the record's own field is used instead"
    ),
    FieldRule(Name.CRC32, None, DROPPED, "a checksum of the stored properties, which change"),
    FieldRule(Name.DUP_INFO, None, DROPPED, "a client's information about duplicates"),
    FieldRule(Name.TRANSFER_FLAG, None, DROPPED, _LEGACY),
    FieldRule(Name.CORRECTION_FLAG, None, DROPPED, _LEGACY),
    FieldRule(Name.MQ2_FLAG, None, DROPPED, _LEGACY),
    FieldRule(Name.REDIRECT, "properties", CARRIED, _ALLOWED, own=True),
    FieldRule(Name.FORWARD_QUEUE_ID, "properties", CARRIED, _ALLOWED, own=True),
    FieldRule(TRANSIENT_PREFIX + "*", "properties", CARRIED, _ALLOWED, own=True),
)
"""The rules of the system properties, to which RocketMQ gives a meaning."""

RESERVED_PROPERTIES = (
    FieldRule("mqbridge.key", "key", CARRIED, "a key with characters that the property string cannot hold"),
    FieldRule("mqbridge.key.b64", "key", CARRIED, "a binary key"),
    FieldRule("mqbridge.ordering_key", "ordering_key", CARRIED, "base64"),
    FieldRule("mqbridge.keys", "keys", CARRIED, "index keys that KEYS cannot hold, such as a key with a blank"),
    FieldRule("mqbridge.msg_type", "msg_type", CARRIED, "a type that TAGS cannot hold: empty, or with a separator"),
    FieldRule("mqbridge.attributes", "attributes", CARRIED, "byte for byte"),
    FieldRule("mqbridge.attributes.b64", "attributes", CARRIED, "attributes that are not UTF-8"),
    FieldRule("mqbridge.event_time", "event_time", CARRIED, "the exact time; all messages of a batch share one born timestamp"),
    FieldRule(
        "mqbridge.deliver_at",
        "deliver_at",
        CARRIED,
        "a time that has passed, or that a broker before 5.0 rounds to a delay level",
    ),
    FieldRule("mqbridge.null", "payload", CARRIED, "a tombstone; valid only if the body is one zero byte"),
    FieldRule(EMPTY, "payload", CARRIED, "an empty payload; valid only if the body is one zero byte"),
    FieldRule("mqbridge.without", "key", CARRIED, "a message with index keys but no key", own=True),
    FieldRule("mqbridge.origin", "origin", CARRIED, "cluster, topic, partition and position of the source"),
    FieldRule("mqbridge.hops", "hops", CARRIED, "the number of gateways passed, if it is at least 2"),
    FieldRule("mqbridge.u.*", "properties", CARRIED, "a user property whose own name is reserved"),
    FieldRule(
        ESCAPE_PREFIX + "N.*",
        "properties",
        CARRIED,
        "user properties with a repeated name, an empty text, a separator, or a system property's name",
    ),
    FieldRule(
        ORDER,
        "properties",
        CARRIED,
        "the order of the properties of a message sent alone, because brokers reorder them",
        own=True,
    ),
    FieldRule(FLAG, "properties", CARRIED, "in other systems: the FLAG of a RocketMQ message", own=True),
    FieldRule(
        SHARDED,
        "properties",
        CARRIED,
        "in other systems: the message had a __SHARDINGKEY equal to its first index key",
        own=True,
    ),
    FieldRule(
        BLOCK,
        "properties",
        CARRIED,
        "in other systems: what an SDK sent to a listener beside the body, for SDKs that read it there",
        own=True,
    ),
    FieldRule(
        CUT, "properties", CARRIED, "at a listener: the number of properties that did not fit the property string", own=True
    ),
    FieldRule(DEFECT, "properties", CARRIED, "at a listener: why the message cannot be decoded; its body is raw", own=True),
    FieldRule(
        "mqbridge.v",
        None,
        CARRIED,
        "marks a message that a gateway wrote, if it has no other reserved property: its born timestamp is no event time",
    ),
    FieldRule("", "defect", DROPPED, "a message that cannot be decoded is never sent; its dead letter is raw"),
)
"""The rules of the properties that only gateways write."""

TABLE = FieldTable(
    "rocketmq",
    "RocketMQ",
    (
        *_for_listeners((*RECORD_FIELDS, *SYSTEM_PROPERTIES), KEPT),
        *_for_listeners(RESERVED_PROPERTIES, IF_SENT),
    ),
    listener="Where the backing stores records of RocketMQ (RocketMQ, the embedded log), they pass as they are, compressed bodies"
    f" included. Elsewhere the property {BLOCK} carries the property string, the flag, the number of redeliveries and the born"
    " timestamp. A message that a route has edited, or that a client of another system has sent, is given to SDKs with its own"
    " fields: tag, keys, __SHARDINGKEY and user properties. A message without UNIQ_KEY gets one from its position.",
)

KEPT_NAMES = frozenset(rule.native for rule in SYSTEM_PROPERTIES if rule.field == "properties")
"""System properties that become properties of the message."""
WRITTEN_NAMES = frozenset(rule.native for rule in SYSTEM_PROPERTIES if rule.field == "properties" and rule.fate is NATIVE)
"""System properties that are written unescaped from a property of the message."""
ESCAPED_NAMES = (SYSTEM_NAMES | {""}) - WRITTEN_NAMES
"""Names of user properties that are escaped when they are written; an empty name is one of them."""
IGNORED_NAMES = frozenset(rule.native for rule in SYSTEM_PROPERTIES if rule.fate in {DROPPED, RECOMPUTED})
"""System properties that are neither read nor copied."""


def is_plain(name: str) -> bool:
    """Return True if a user property of this name is written unescaped."""
    return name not in ESCAPED_NAMES and not name.startswith((TRANSIENT_PREFIX, ESCAPE_PREFIX))
