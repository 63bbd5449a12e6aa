"""A client of a cluster that connects on its first request."""

import asyncio
from collections.abc import Mapping

from mqbridge.rocketmq.client.base_client import SUCCESS
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.wire.command import Command


class LazyClusterClient(ClusterClient):
    """Made inside a running loop. `ready` connects once; requests to brokers do so by themselves."""

    _is_connected = False
    _connecting: asyncio.Lock | None = None

    async def ready(self) -> None:
        """Connect if that has not been done. Raises Unreachable."""
        if self._is_connected:
            return
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if not self._is_connected:
                await self.connect()
                self._is_connected = True

    async def request(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout: float | None = None,
        accept: frozenset[int] = SUCCESS,
    ) -> Command:
        """Connect, then as `BaseClient.request`."""
        await self.ready()
        return await super().request(address, code, ext, body, timeout=timeout, accept=accept)

    async def oneway(
        self, address: str, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", *, remark: str | None = None
    ) -> None:
        """Connect, then as `BaseClient.oneway`."""
        await self.ready()
        await super().oneway(address, code, ext, body, remark=remark)
