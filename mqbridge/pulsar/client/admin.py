"""The part of Pulsar's admin REST interface (base path /admin/v2) that the binary protocol has no commands for."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from mqbridge.errors import Failure, RequestTimeout, ServerRefused, Unreachable
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.names import TopicName

_HTTP_FAILURES = {401: Failure.FATAL, 403: Failure.FATAL, 404: Failure.FATAL, 405: Failure.FATAL, 409: Failure.REFUSED}
_HTTP_FAILURES |= {412: Failure.FATAL, 400: Failure.FATAL}
"""Every other status may pass."""


class Admin:
    """Calls of one cluster. Each raises ClusterError."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        self._http = httpx.AsyncClient(base_url=f"{url}/admin/v2", timeout=timeout_s)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """One call; the parsed answer, None when it is empty."""
        try:
            answer = await self._http.request(method, path, json=body)
        except httpx.TimeoutException as error:
            raise RequestTimeout(f"{self._url} did not answer {method} {path} in time") from error
        except httpx.TransportError as error:
            raise Unreachable(f"{self._url} cannot be reached: {error}") from error
        if answer.status_code >= 300:
            said = answer.text[:300]
            failure = _HTTP_FAILURES.get(answer.status_code, Failure.RETRY)
            raise ServerRefused(f"{method} {path}: HTTP {answer.status_code}: {said}", answer.status_code, failure)
        return answer.json() if answer.content else None

    # --- topics -----------------------------------------------------------------------------------------------------

    async def namespaces(self) -> list[str]:
        """All `tenant/namespace`."""
        found: list[str] = []
        for tenant in await self.call("GET", "/tenants"):
            found += await self.call("GET", f"/namespaces/{quote(tenant, safe='')}")
        return found

    async def create(self, topic: TopicName, partitions: int) -> None:
        """Create a partitioned topic, or one without partitions for 0. Refused with code 409 when it exists."""
        if partitions:
            await self.call("PUT", f"{_path(topic)}/partitions", partitions)
        else:
            await self.call("PUT", _path(topic))

    async def grow(self, topic: TopicName, partitions: int) -> None:
        """Give a partitioned topic more partitions."""
        await self.call("POST", f"{_path(topic)}/partitions", partitions)

    # --- subscriptions ----------------------------------------------------------------------------------------------

    async def subscriptions(self, topic: TopicName) -> list[str]:
        """The names of the subscriptions of a topic, partitioned or not."""
        return sorted(await self.call("GET", f"{_path(topic)}/subscriptions"))

    async def mark_delete_positions(self, topic: TopicName) -> Mapping[str, EntryId]:
        """By subscription the last entry up to which everything is acknowledged; of a partition, or a topic without."""
        stats = await self.call("GET", f"{_path(topic)}/internalStats")
        return {quoted: _entry_id(cursor["markDeletePosition"]) for quoted, cursor in stats["cursors"].items()}


def _path(topic: TopicName) -> str:
    return f"/{topic.domain}/{topic.tenant}/{topic.namespace}/{quote(topic.local, safe='')}"


def _entry_id(text: str) -> EntryId:
    ledger, entry = text.split(":")
    return int(ledger), int(entry)
