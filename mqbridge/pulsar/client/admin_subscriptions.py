"""Calls of the admin interface about subscriptions: where they are, and where they shall be."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote_plus

from mqbridge.pulsar.client.admin_http import AdminHttp, path_of
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.names import TopicName


class AdminSubscriptions:
    """The subscriptions of topics. Each call raises ClusterError."""

    def __init__(self, http: AdminHttp) -> None:
        self._call = http.call

    async def subscriptions(self, topic: TopicName) -> list[str]:
        """The names of the subscriptions of a topic, partitioned or not."""
        return sorted(await self._call("GET", f"{path_of(topic)}/subscriptions"))

    async def mark_delete_positions(self, topic: TopicName) -> Mapping[str, EntryId]:
        """By subscription the last entry up to which everything is acknowledged; of a partition, or a topic without."""
        stats = await self._call("GET", f"{path_of(topic)}/internalStats")
        # Here, and nowhere else, names come encoded as in a URL's query.
        return {unquote_plus(name): _entry_id(cursor["markDeletePosition"]) for name, cursor in stats["cursors"].items()}

    async def create_subscription(self, topic: TopicName, name: str, at: EntryId | None = None) -> None:
        """Create it, to begin with this entry (of a partition, or a topic without), or at the end. Code 409 when it exists."""
        body = None if at is None else _message_id(at)
        await self._call("PUT", _path(topic, name), body)

    async def delete_subscription(self, topic: TopicName, name: str, *, force: bool = False) -> None:
        """Delete it; by force also with consumers."""
        await self._call("DELETE", f"{_path(topic, name)}?force={str(force).lower()}")

    async def reset_to_time(self, topic: TopicName, name: str, publish_time: int) -> None:
        """Let it continue with what was published at this time (ms) or later; of a topic, partitioned or not."""
        await self._call("POST", f"{_path(topic, name)}/resetcursor/{publish_time}", repeats=True)

    async def reset_to(self, topic: TopicName, name: str, place: EntryId) -> None:
        """Let it continue with this entry; of a partition, or a topic without."""
        await self._call("POST", f"{_path(topic, name)}/resetcursor", _message_id(place), repeats=True)

    async def skip(self, topic: TopicName, name: str, messages: int) -> None:
        """Count the next entries as acknowledged; of a partition, or a topic without."""
        await self._call("POST", f"{_path(topic, name)}/skip/{messages}")

    async def skip_all(self, topic: TopicName, name: str) -> None:
        """Count everything as acknowledged."""
        await self._call("POST", f"{_path(topic, name)}/skip_all")

    async def expire(self, topic: TopicName, name: str, older_than_s: int) -> None:
        """Count what is older as acknowledged."""
        await self._call("POST", f"{_path(topic, name)}/expireMessages/{older_than_s}")


def _path(topic: TopicName, name: str) -> str:
    return f"{path_of(topic)}/subscription/{quote(name, safe='')}"


def _message_id(place: EntryId) -> dict[str, Any]:
    return {"ledgerId": place[0], "entryId": place[1], "partitionIndex": -1}


def _entry_id(text: str) -> EntryId:
    ledger, entry = text.split(":")
    return int(ledger), int(entry)
