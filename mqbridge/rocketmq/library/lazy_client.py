"""A cluster client that connects on its first request."""

import asyncio
from collections.abc import Mapping

from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.connection.base_client import SUCCESS
from mqbridge.rocketmq.wire.command import Command


class LazyClusterClient(ClusterClient):
    """A ClusterClient whose `request` and `oneway` connect it on first use. Create it inside a running loop."""

    _is_connected = False
    _connect_lock: asyncio.Lock | None = None

    async def ensure_connected(self) -> None:
        """Connect, unless it is connected. Concurrent calls wait for the same attempt. Raises Unreachable."""
        if self._is_connected:
            return
        if self._connect_lock is None:
            self._connect_lock = asyncio.Lock()
        async with self._connect_lock:
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
        """Connect if necessary, then do the same as `BaseClient.request`."""
        await self.ensure_connected()
        return await super().request(address, code, ext, body, timeout=timeout, accept=accept)

    async def oneway(
        self, address: str, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", *, remark: str | None = None
    ) -> None:
        """Connect if necessary, then do the same as `BaseClient.oneway`."""
        await self.ensure_connected()
        await super().oneway(address, code, ext, body, remark=remark)
