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

_ROCKETMQ = (ROCKETMQ_OWN, ROCKETMQ_BACKING)
_BY_GROUP = (LOG_BACKING, ROCKETMQ_BACKING)


def _differs(text: str, *backings: Backing) -> dict[Backing, SupportCell]:
    return {backing: SupportCell(Support.DIFFERS, text) for backing in backings}


def _refused(text: str, code: str) -> SupportCell:
    return SupportCell(Support.REFUSED, text, code)


_PARKED = SupportCell(Support.PARKED, "the message waits in a topic of the listener (`parking`)")
_DELAYED = dict.fromkeys(_ROCKETMQ, SupportCell(Support.NATIVE))

TABLE = (
    SupportRow("Producers: single messages, batches, one-way, keys, tags, properties, flags, compressed bodies"),
    SupportRow("Producers: order within a queue, queue selectors"),
    SupportRow(
        "Hosts of messages",
        SupportCell(Support.DIFFERS, "the born host is that of the listener: nothing carries the address of the producer"),
    ),
    SupportRow("Delay levels and timers", _PARKED, _DELAYED),
    SupportRow("Push consumers, concurrent and orderly, filters by tag"),
    SupportRow("Filters by SQL92", _refused(NO_SQL, "SYSTEM_ERROR")),
    SupportRow("Retries with their delays, dead-letter topics of groups", _PARKED, _DELAYED),
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
        "Begin of a new group by time",
        exceptions=_differs("it begins half an hour ago: heartbeats do not tell the time that the client wants", *_BY_GROUP),
    ),
    SupportRow("Offsets: committed, searched by time, reset by tools (`manage`)"),
    SupportRow("Transactions with checks", SupportCell(Support.PARKED, "half messages wait in topics of the listener")),
    SupportRow(
        "Requests and replies",
        SupportCell(Support.DIFFERS, "the client that asks and the one that replies are connected to the same gateway"),
    ),
    SupportRow(
        "Queries by id and by key",
        SupportCell(Support.DIFFERS, "there is no index: a search by key reads the messages of the time that it names"),
    ),
    SupportRow("Message traces: stored in their topic"),
    SupportRow("POP consumers", _refused(NO_POP, "NO_PERMISSION")),
    SupportRow("Missing topics with `create: false`", _refused("does not exist", "TOPIC_NOT_EXIST")),
    SupportRow("Deleting, resetting and changing without `manage: true`", _refused(NOT_MANAGED, "NO_PERMISSION")),
    SupportRow("Changing settings of brokers and name servers", _refused(NO_SETTINGS, "NO_PERMISSION")),
)
"""The rows of the table, in the order of the page."""
