"""Statistics: connected producers and consumers, and the backlog of subscriptions.

Only what is known is there, under the names that brokers use: rates and sizes are left out. A backlog of -1 is unknown: the
positions of some clusters do not count messages.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote_plus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mqbridge.adapter.topics import Bounds
from mqbridge.errors import RefusalReason, RequestRefused
from mqbridge.message import Position
from mqbridge.pulsar.server.web.answers import iso_time, json_response
from mqbridge.pulsar.server.web.context import WebContext, for_each
from mqbridge.pulsar.server.web.requests import TOPIC_PATH, RequestedTopic, find_partition, find_target
from mqbridge.pulsar.server.web.served import ConsumerView, ProducerView, SubscriptionView
from mqbridge.pulsar.server.web.topics import partitions_of

UNKNOWN = -1
NO_CONSUMERS = SubscriptionView("None", (), True)
Stats = dict[str, Any]


class StatsPages:
    """See the module."""

    def __init__(self, context: WebContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes of the pages."""
        return [
            Route(f"{TOPIC_PATH}/stats", self._stats, methods=["GET"]),
            Route(f"{TOPIC_PATH}/partitioned-stats", self._partitioned, methods=["GET"]),
            Route(f"{TOPIC_PATH}/internalStats", self._internal, methods=["GET"]),
            Route(f"{TOPIC_PATH}/partitioned-internalStats", self._partitioned_internal, methods=["GET"]),
        ]

    async def _stats(self, request: Request) -> Response:
        target, partition = await find_partition(self._context, request)
        return json_response((await self._stats_of(target))[partition])

    async def _partitioned(self, request: Request) -> Response:
        """Return the sums over all partitions, and with `perPartition`, which is the default, those of each."""
        target = await self._find_partitioned(request)
        stats = await self._stats_of(target)
        content = _sum(list(stats.values())) | {"metadata": partitions_of(target)}
        if request.query_params.get("perPartition", "true").lower() != "false":
            content["partitions"] = {target.partition_name(partition): each for partition, each in stats.items()}
        return json_response(content)

    async def _internal(self, request: Request) -> Response:
        target, partition = await find_partition(self._context, request)
        return json_response((await self._internal_of(target))[partition])

    async def _partitioned_internal(self, request: Request) -> Response:
        target = await self._find_partitioned(request)
        internal = await self._internal_of(target)
        partitions = {target.partition_name(partition): each for partition, each in internal.items()}
        return json_response({"metadata": partitions_of(target), "partitions": partitions})

    async def _find_partitioned(self, request: Request) -> RequestedTopic:
        """Return the partitioned topic of a request. Raises RequestRefused for any other topic."""
        target = await find_target(self._context, request)
        if not target.is_whole:
            raise RequestRefused(f"Partitioned Topic {target.name} not found", RefusalReason.TOPIC_MISSING)
        return target

    # --- what is known ----------------------------------------------------------------------------------------------------

    async def _bounds(self, target: RequestedTopic) -> dict[int, Bounds]:
        async def bounds(partition: int) -> Bounds:
            return await self._context.services.partitions.bounds(target.topic, partition)

        return dict(zip(target.partitions, await for_each(target.partitions, bounds), strict=True))

    async def _committed(self, target: RequestedTopic) -> dict[str, Mapping[int, Position]]:
        """Return the positions of each subscription; nothing if the cluster does not list its groups."""
        groups = self._context.services.groups
        try:
            names = await groups.names(target.topic)
        except RequestRefused:
            return {}

        async def committed(name: str) -> Mapping[int, Position]:
            return await groups.committed(target.topic, name)

        return dict(zip(names, await for_each(names, committed), strict=True))

    async def _stats_of(self, target: RequestedTopic) -> dict[int, Stats]:
        """Return the statistics of each partition of the request."""
        bounds, committed = await self._bounds(target), await self._committed(target)
        served, backing = self._context.served, target.topic.backing
        stats: dict[int, Stats] = {}
        for partition in target.partitions:
            views = served.subscriptions(backing, partition)
            publishers = served.producers(backing, partition)
            subscriptions = {
                name: _subscription(
                    views.get(name, NO_CONSUMERS),
                    self._backlog(bounds[partition], committed.get(name, {}).get(partition)),
                    is_durable=name in committed or not committed,
                )
                for name in sorted({*committed, *views})
            }
            stats[partition] = _topic(publishers, subscriptions)
        return stats

    def _backlog(self, bounds: Bounds, committed: Position | None) -> int:
        """Return the number of messages from a position on; UNKNOWN if they cannot be counted."""
        if committed is None or not self._context.services.numbering.dense:
            return 0 if committed is not None and committed >= bounds.next else UNKNOWN
        count = bounds.count_between(max(committed, bounds.first), bounds.next)
        return UNKNOWN if count is None else max(0, count)

    async def _internal_of(self, target: RequestedTopic) -> dict[int, Stats]:
        """Return positions as ids: the last entry, and the last acknowledged one of each subscription."""
        bounds, committed = await self._bounds(target), await self._committed(target)
        internal: dict[int, Stats] = {}
        for partition, limits in bounds.items():
            ledger, after_last = self._context.id_of(limits.next)
            count = limits.message_count if self._context.services.numbering.dense else None
            cursors = {
                quote_plus(name): self._cursor(positions[partition])
                for name, positions in committed.items()
                if partition in positions
            }
            entries = UNKNOWN if count is None else count
            internal[partition] = {
                "entriesAddedCounter": UNKNOWN if count is None else after_last,
                "numberOfEntries": entries,
                "lastConfirmedEntry": _before(ledger, after_last),
                "state": "LedgerOpened",
                "ledgers": [{"ledgerId": ledger, "entries": entries, "size": UNKNOWN, "offloaded": False}],
                "cursors": cursors,
            }
        return internal

    def _cursor(self, committed: Position) -> Stats:
        ledger, entry = self._context.id_of(committed)
        return {"markDeletePosition": _before(ledger, entry), "readPosition": f"{ledger}:{entry}", "state": "Open"}


def _before(ledger: int, entry: int) -> str:
    """Return the id of the entry before this one as text; before the first one it is -1, as at a broker."""
    return f"{ledger}:{max(entry - 1, -1)}"


def _topic(publishers: Sequence[ProducerView], subscriptions: Mapping[str, Stats]) -> Stats:
    messages, size = sum(each.message_count for each in publishers), sum(each.byte_count for each in publishers)
    return {
        "msgInCounter": messages,
        "bytesInCounter": size,
        "averageMsgSize": size / messages if messages else 0.0,
        "publishers": [_publisher(each, index) for index, each in enumerate(publishers)],
        "subscriptions": dict(subscriptions),
        "replication": {},
    }


def _publisher(view: ProducerView, index: int) -> Stats:
    return {
        "producerId": index,
        "producerName": view.name,
        "address": f"/{view.address}",
        "connectedSince": iso_time(view.connected_since),
        "averageMsgSize": view.byte_count / view.message_count if view.message_count else 0.0,
        "metadata": {},
    }


def _subscription(view: SubscriptionView, backlog: int, *, is_durable: bool) -> Stats:
    return {
        "msgBacklog": backlog,
        "msgBacklogNoDelayed": backlog,
        "unackedMessages": sum(each.unacked for each in view.consumers),
        "type": view.type,
        "consumers": [_consumer(each) for each in view.consumers],
        "isDurable": is_durable,
        "isReplicated": False,
        "durable": is_durable,
        "replicated": False,
        "subscriptionProperties": {} if view.is_held else {"mqbridge.held": "by another gateway"},
    }


def _consumer(view: ConsumerView) -> Stats:
    return {
        "consumerName": view.name,
        "availablePermits": view.permits,
        "unackedMessages": view.unacked,
        "address": f"/{view.address}",
        "connectedSince": iso_time(view.connected_since),
        "metadata": {},
    }


def _sum(stats: Sequence[Stats]) -> Stats:
    """Return the statistics of a topic from those of its partitions."""
    messages, size = sum(each["msgInCounter"] for each in stats), sum(each["bytesInCounter"] for each in stats)
    subscriptions: dict[str, Stats] = {}
    for each in stats:
        for name, subscription in each["subscriptions"].items():
            subscriptions[name] = _joined(subscriptions[name], subscription) if name in subscriptions else subscription
    return {
        "msgInCounter": messages,
        "bytesInCounter": size,
        "averageMsgSize": size / messages if messages else 0.0,
        "publishers": [publisher for each in stats for publisher in each["publishers"]],
        "subscriptions": subscriptions,
        "replication": {},
    }


def _joined(one: Stats, other: Stats) -> Stats:
    """Return the statistics of a subscription in several partitions; an unknown backlog in one makes the sum unknown."""
    joined = dict(one)
    for key in ("msgBacklog", "msgBacklogNoDelayed"):
        joined[key] = UNKNOWN if UNKNOWN in {one[key], other[key]} else one[key] + other[key]
    joined["unackedMessages"] = one["unackedMessages"] + other["unackedMessages"]
    joined["type"] = other["type"] if one["type"] == NO_CONSUMERS.type else one["type"]
    joined["consumers"] = [*one["consumers"], *other["consumers"]]
    joined["subscriptionProperties"] = one["subscriptionProperties"] | other["subscriptionProperties"]
    return joined
