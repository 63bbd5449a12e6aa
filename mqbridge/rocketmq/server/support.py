"""The support table of the server for RocketMQ clients, with the texts of what it refuses."""

from mqbridge.listener.support import Backing, Support, SupportCell, SupportRow

LOG_OWN, LOG_BACKING = Backing("log", "own"), Backing("log", "backing")
ROCKETMQ_OWN, ROCKETMQ_BACKING = Backing("rocketmq", "own"), Backing("rocketmq", "backing")
BACKINGS = (LOG_OWN, LOG_BACKING, ROCKETMQ_OWN, ROCKETMQ_BACKING)

NO_SQL = "The broker does not support consumer to filter message by SQL92"
"""The text by which clients recognize a broker with this filter switched off."""
NO_POP = "POP is not supported: consumers of this listener pull"
NO_DELAY = "messages cannot be delayed in this cluster, and no topics can be created for those that wait"
NOT_MANAGED = "set `manage: true` in the configuration of the listener"
NO_SETTINGS = "the listener has no settings that clients can change"
UNKNOWN_REQUEST = "is not supported"
NO_CREATION = "does not exist"
NO_TOPIC_SETTINGS = "topics have no permissions (perm) and no fixed order (order) here"
NO_GROUP_SETTINGS = "groups have no settings of their own here: consumers bring theirs"

_ROCKETMQ = (ROCKETMQ_OWN, ROCKETMQ_BACKING)
_BY_GROUP = (LOG_BACKING, ROCKETMQ_BACKING)


def _differs(text: str, *backings: Backing) -> dict[Backing, SupportCell]:
    return {backing: SupportCell(Support.DIFFERS, text) for backing in backings}


def _refused(text: str, code: str) -> SupportCell:
    return SupportCell(Support.REFUSED, text, code)


_PARKED = SupportCell(Support.PARKED, "the message waits in a topic of the listener (`parking`)")
_DELAYED = dict.fromkeys(_ROCKETMQ, SupportCell(Support.NATIVE))

_RETRY_TOPIC = "the retry topic of a group is `%retry%GROUP` in the cluster"
_RETRIES = SupportCell(Support.PARKED, f"the message waits in a topic of the listener (`parking`); {_RETRY_TOPIC}")
_RETRIED = dict.fromkeys(_ROCKETMQ, SupportCell(Support.DIFFERS, _RETRY_TOPIC))

TABLE = (
    SupportRow("Producers: single messages, batches, one-way, keys, tags, properties, flags, compressed bodies"),
    SupportRow("Producers: order within a queue, queue selectors"),
    SupportRow(
        "Producers: answers",
        SupportCell(
            Support.DIFFERS,
            "what the cluster has not stored within 2.5 s is answered as busy (`SYSTEM_BUSY`), before clients give up at 3 s: "
            "they send it again, and it may be stored twice",
        ),
    ),
    SupportRow(
        "Producers: bodies up to 4 MiB, properties up to 32 KiB",
        SupportCell(Support.DIFFERS, "the cluster's own limit counts if it is smaller (`MESSAGE_ILLEGAL`)"),
    ),
    SupportRow(
        "Hosts of messages",
        SupportCell(Support.DIFFERS, "the born host is that of the listener: nothing carries the address of the producer"),
    ),
    SupportRow(
        "Message ids",
        SupportCell(
            Support.DIFFERS,
            "unique ids of clients stay; offset ids name this listener, and a delayed message has none before it is due",
        ),
    ),
    SupportRow("Offsets of queues: those of the cluster"),
    SupportRow("Delay levels, timers up to 3 days", _PARKED, _DELAYED),
    SupportRow("Recalling a timer", _refused(UNKNOWN_REQUEST, "REQUEST_CODE_NOT_SUPPORTED")),
    SupportRow("Push consumers, concurrent and orderly, filters by tag"),
    SupportRow("Filters by SQL92", _refused(NO_SQL, "SYSTEM_ERROR")),
    SupportRow("Retries with their delays", _RETRIES, _RETRIED),
    SupportRow("Dead-letter topics of groups (`%DLQ%GROUP`)"),
    SupportRow("Broadcasting, pull consumers, lite pull consumers"),
    SupportRow(
        "Groups that several gateways share",
        exceptions={
            **_differs("one gateway serves a group", LOG_OWN, ROCKETMQ_OWN),
            **_differs(
                "the backing shares the queues among the gateways, and each gateway's consumers share what it holds",
                *_BY_GROUP,
            ),
        },
    ),
    SupportRow(
        "Begin of a new group at the last message",
        SupportCell(
            Support.DIFFERS,
            "in a topic that has lost none of at most 100,000 messages, it begins at the first one: so does a broker, as long as "
            "the first message is in its memory",
        ),
    ),
    SupportRow(
        "Begin of a new group by time",
        exceptions=_differs("it begins half an hour ago: heartbeats do not tell the time that the client wants", *_BY_GROUP),
    ),
    SupportRow("Offsets of groups: committed, read, searched by time"),
    SupportRow(
        "Offsets of groups: reset by tools (`manage`)",
        exceptions=_differs(
            "a queue is moved by the gateway that holds it; at another one the request is answered as busy (`SYSTEM_BUSY`)",
            *_BY_GROUP,
        ),
    ),
    SupportRow(
        "Transactions with checks", SupportCell(Support.PARKED, "half messages wait in topics of the listener (`parking`)")
    ),
    SupportRow(
        "Requests and replies",
        SupportCell(Support.DIFFERS, "the client that asks and the one that replies are connected to the same gateway"),
    ),
    SupportRow(
        "Queries by id and by key",
        SupportCell(Support.DIFFERS, "there is no index: a search by key reads the messages of the time that it names"),
    ),
    SupportRow("Message traces: stored in their topic"),
    SupportRow(
        "Topics: lists, routes, growth, auto-creation (`create`)",
        SupportCell(
            Support.DIFFERS,
            "clients see one broker with all queues; a topic has as many queues to read as to write, and no permissions",
        ),
    ),
    SupportRow("Topics: permissions, fixed order", _refused(NO_TOPIC_SETTINGS, "SYSTEM_ERROR")),
    SupportRow("Groups: settings of their own", _refused(NO_GROUP_SETTINGS, "SYSTEM_ERROR")),
    SupportRow("POP consumers", _refused(NO_POP, "NO_PERMISSION")),
    SupportRow("Missing topics with `create: false`", _refused(NO_CREATION, "TOPIC_NOT_EXIST")),
    SupportRow("Deleting, resetting and changing without `manage: true`", _refused(NOT_MANAGED, "NO_PERMISSION")),
    SupportRow("Changing settings of brokers and name servers", _refused(NO_SETTINGS, "NO_PERMISSION")),
    SupportRow(
        "Other requests: of controllers, users and their rights, cold data",
        _refused(UNKNOWN_REQUEST, "REQUEST_CODE_NOT_SUPPORTED"),
    ),
)
"""The rows of the table, in the order of the page."""
