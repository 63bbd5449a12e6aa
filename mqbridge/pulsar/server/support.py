"""The support table of the server for Pulsar clients, with the texts of what it refuses."""

from mqbridge.listener.support import Backing, Support, SupportCell, SupportRow

LOG_OWN, LOG_BACKING = Backing("log", "own"), Backing("log", "backing")
ROCKETMQ_OWN, ROCKETMQ_BACKING = Backing("rocketmq", "own"), Backing("rocketmq", "backing")
BACKINGS = (LOG_OWN, LOG_BACKING, ROCKETMQ_OWN, ROCKETMQ_BACKING)

NON_PERSISTENT = "non-persistent topics are not served: the backing stores everything"
TRANSACTIONS = "transactions are not supported"
TOPIC_WATCHERS = "topic watchers are not supported: the client asks for the topics from time to time"
NOT_MANAGED = "set `manage: true` in its configuration"
UNKNOWN_REQUEST = "is not supported by this listener: its data is in a cluster without this request"
NO_CREATION = "does not exist"
MARKERS = "markers are not accepted: only brokers write them"

_ROCKETMQ = (ROCKETMQ_OWN, ROCKETMQ_BACKING)
_BY_GROUP = (LOG_BACKING, ROCKETMQ_BACKING)


def _differs(text: str, *backings: Backing) -> dict[Backing, SupportCell]:
    return {backing: SupportCell(Support.DIFFERS, text) for backing in backings}


def _refused(text: str, code: str) -> SupportCell:
    return SupportCell(Support.REFUSED, text, code)


_SINGLE = "each message is an entry of its own: acknowledgements, redelivery and seeks are of single messages"
_WHOLE_PARTITIONS = (
    "several gateways share whole partitions: consumers at one gateway share what it holds, and a topic with one partition is"
    " served by one gateway at a time"
)

TABLE = (
    SupportRow("Producers: single messages, batches, keys, properties, event times, ordering keys, tombstones"),
    SupportRow("Producers: every compression, encrypted messages, chunks"),
    SupportRow("Producers: names, sequence ids, receipts in order, access modes"),
    SupportRow(
        "Producers: deduplication of named ones (`sends.deduplicate`)",
        exceptions=_differs("the last sequence id is searched within the last hour", *_ROCKETMQ),
    ),
    SupportRow("Boundaries of batches", exceptions=_differs(_SINGLE, *_ROCKETMQ)),
    SupportRow(
        "Message ids",
        exceptions=_differs(
            "the receipt of a batch names its first message, and a consumer sees an entry for each: a seek to an id that a"
            " producer got within a batch goes to the begin of the batch",
            *_ROCKETMQ,
        ),
    ),
    SupportRow(
        "Messages above the backing's limit",
        exceptions=_differs(
            "clients are told the backing's limit, less 10 KiB for metadata, and refuse them; chunks pass, and count twice in"
            " `limits.unacknowledged_bytes`",
            *_ROCKETMQ,
        ),
    ),
    SupportRow("Subscriptions: Exclusive", exceptions=_differs("each gateway admits one consumer", *_BY_GROUP)),
    SupportRow(
        "Subscriptions: Failover", exceptions=_differs("the backing chooses the gateway, which chooses the consumer", *_BY_GROUP)
    ),
    SupportRow("Subscriptions: Shared, Key_Shared, sticky ranges", exceptions=_differs(_WHOLE_PARTITIONS, *_BY_GROUP)),
    SupportRow("Acknowledgements: single, cumulative, batch index, receipts"),
    SupportRow(
        "Acknowledgements behind the oldest unacknowledged message",
        exceptions=_differs(
            "they are kept by the gateway (with `state` also across its restart): when another gateway gets the partition, these"
            " messages are delivered again",
            *_BY_GROUP,
        ),
    ),
    SupportRow("Negative acknowledgements, redelivery counts, dead-letter and retry topics of clients"),
    SupportRow(
        "Delayed delivery to Shared and Key_Shared",
        exceptions=_differs("the backing delays messages by itself, for every consumer", *_ROCKETMQ),
    ),
    SupportRow(
        "Delayed messages on Exclusive, Failover and readers: delivered at once",
        exceptions=_differs("the backing delays messages by itself, for every consumer", *_ROCKETMQ),
    ),
    SupportRow("Durable subscriptions, initial position, unsubscribe"),
    SupportRow("Readers, non-durable subscriptions, table views, last message id"),
    SupportRow(
        "Seek by id and by time",
        exceptions=_differs(
            "a partition is moved by the gateway that holds it; elsewhere the request is refused as not ready", *_BY_GROUP
        ),
    ),
    SupportRow("Partitioned topics, growth, regular expressions, auto-creation (`create`)"),
    SupportRow("Topic list watchers", _refused(TOPIC_WATCHERS, "NotAllowedError")),
    SupportRow(
        "Schemas",
        SupportCell(
            Support.DIFFERS, "versions are hashes of the definitions instead of 0, 1, 2 and so on, the same at every gateway"
        ),
    ),
    SupportRow("Non-persistent topics", _refused(NON_PERSISTENT, "NotAllowedError")),
    SupportRow("Transactions", _refused(TRANSACTIONS, "NotAllowedError")),
    SupportRow("Terminated topics", _refused(UNKNOWN_REQUEST, "501")),
    SupportRow("Markers of replication", _refused(MARKERS, "NotAllowedError")),
    SupportRow("Missing topics with `create: false`", _refused(NO_CREATION, "TopicNotFound")),
    SupportRow("Deleting, resetting and skipping without `manage: true`", _refused(NOT_MANAGED, "403")),
)
"""The rows of the table, in the order of the page."""
