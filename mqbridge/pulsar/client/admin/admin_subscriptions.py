"""Calls of the admin interface about subscriptions and their positions."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote_plus

from mqbridge.pulsar.client.admin.admin_http import AdminHttp, path_of
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.names import TopicName


class AdminSubscriptions:
    """Calls about the subscriptions of topics. Each call raises ClusterError.

    If the response of a call is lost, the call is repeated only if it is a GET or marked `idempotent`.
    """

    def __init__(self, http: AdminHttp) -> None:
        self._call = http.call

    async def subscriptions(self, topic: TopicName) -> list[str]:
        """Return the subscription names of a topic, partitioned or not."""
        return sorted(await self._call("GET", f"{path_of(topic)}/subscriptions"))

    async def mark_delete_positions(self, topic: TopicName) -> Mapping[str, EntryId]:
        """Return subscription -> mark-delete position (all entries up to it are acknowledged).

        `topic` is a partition or an unpartitioned topic.
        """
        stats = await self._call("GET", f"{path_of(topic)}/internalStats")
        # This response, unlike all others, encodes subscription names as in the query of a URL (a space as "+").
        return {unquote_plus(name): _entry_id(cursor["markDeletePosition"]) for name, cursor in stats["cursors"].items()}

    async def create_subscription(self, topic: TopicName, name: str, at: EntryId | None = None) -> None:
        """Create a subscription of a topic; it begins with entry `at`, or at the topic's end if `at` is None.

        With `at`, the topic must be a partition or an unpartitioned topic. Raises ServerRefused (409) if the name is taken.
        """
        body = None if at is None else _message_id(at)
        await self._call("PUT", _path(topic, name), body)

    async def delete_subscription(self, topic: TopicName, name: str, *, force: bool = False) -> None:
        """Delete a subscription; with `force` also if it has consumers."""
        await self._call("DELETE", f"{_path(topic, name)}?force={str(force).lower()}")

    async def reset_to_time(self, topic: TopicName, name: str, publish_time: int) -> None:
        """Reset a subscription of a topic, partitioned or not, to the first message published at this time or later.

        `publish_time` is in milliseconds since the epoch.
        """
        await self._call("POST", f"{_path(topic, name)}/resetcursor/{publish_time}", idempotent=True)

    async def reset_to(self, topic: TopicName, name: str, entry: EntryId) -> None:
        """Reset a subscription of a partition or an unpartitioned topic to this entry, which is then delivered first."""
        await self._call("POST", f"{_path(topic, name)}/resetcursor", _message_id(entry), idempotent=True)

    async def skip(self, topic: TopicName, name: str, messages: int) -> None:
        """Skip this number of messages of a partition or an unpartitioned topic, as if they were acknowledged."""
        await self._call("POST", f"{_path(topic, name)}/skip/{messages}")

    async def skip_all(self, topic: TopicName, name: str) -> None:
        """Skip all messages of a topic, partitioned or not, as if they were acknowledged."""
        await self._call("POST", f"{_path(topic, name)}/skip_all")

    async def expire(self, topic: TopicName, name: str, older_than_s: int) -> None:
        """Skip all messages of a topic, partitioned or not, that are older than `older_than_s` seconds (by publish time)."""
        await self._call("POST", f"{_path(topic, name)}/expireMessages/{older_than_s}")


def _path(topic: TopicName, name: str) -> str:
    return f"{path_of(topic)}/subscription/{quote(name, safe='')}"


def _message_id(entry: EntryId) -> dict[str, Any]:
    return {"ledgerId": entry[0], "entryId": entry[1], "partitionIndex": -1}  # -1: the path of the call names the partition


def _entry_id(text: str) -> EntryId:
    """Parse a position of the form `ledger:entry`."""
    ledger, entry = text.split(":")
    return int(ledger), int(entry)
