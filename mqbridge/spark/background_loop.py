"""The event loop of one of Spark's Python processes: a thread that lives as long as the process.

Spark calls a data source without an event loop, in whichever of its processes it likes, and reuses most of them. So each process
gets one loop, and keeps connected clusters for the next task. Nothing is closed at the end: Spark kills its processes.
"""

import asyncio
import os
import pickle
import queue
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, TypeVar

from mqbridge.adapter.cluster import Cluster
from mqbridge.errors import ClusterError, RequestTimeout
from mqbridge.net.tasks import cancel, spawn
from mqbridge.spark.cluster_ref import ClusterRef

T = TypeVar("T")

CONNECT_S = 30.0
MAX_IDLE_CLUSTERS = 4
"""Clusters that stay connected while nobody uses them."""
AHEAD = 2
"""Items that an iteration makes before its consumer asks for them."""

_END = object()


class _Shared:
    """A cluster that users of one process share."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.users = 0
        self.connecting: asyncio.Task[None] = spawn(cluster.connect(), f"connecting to {cluster.name}", quiet=True)

    async def ready(self) -> Cluster:
        """The cluster once it is connected. Raises ClusterError."""
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.shield(self.connecting)
        except TimeoutError as error:
            raise RequestTimeout(f"cluster {self.cluster.name!r} did not answer within {CONNECT_S:g} s") from error
        return self.cluster


class Portal:
    """Runs coroutines on the loop of this process. Get it from `portal`; `run` and `iterate` are called from other threads."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = _new_loop()
        self._shared: dict[bytes, _Shared] = {}
        """By the pickled reference, the least recently used first."""
        threading.Thread(target=self._loop.run_forever, name="mqbridge", daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run it and wait for its result. Raises what it raises, and RequestTimeout after `timeout_s`, when it is cancelled."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():
                raise
            raise RequestTimeout(f"no result within {timeout_s:g} s") from None
        finally:
            future.cancel()

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """The items of an asynchronous generator, of which AHEAD are made ahead; closing the iterator closes the generator."""
        ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        room = asyncio.Semaphore(AHEAD)

        async def produce() -> None:
            async with aclosing(items):
                async for item in items:
                    await room.acquire()
                    ready.put(item)

        producing = asyncio.run_coroutine_threadsafe(produce(), self._loop)
        producing.add_done_callback(lambda _: ready.put(_END))
        try:
            while (item := ready.get()) is not _END:
                yield item
                self._loop.call_soon_threadsafe(room.release)
            producing.result()
        finally:
            producing.cancel()

    @asynccontextmanager
    async def cluster(self, ref: ClusterRef) -> AsyncIterator[Cluster]:
        """The cluster, connected; others of this process use it too, so it is not closed at the end. On the portal's loop only.

        Raises ClusterError.
        """
        key = pickle.dumps(ref)
        shared = self._shared.pop(key, None)
        if shared is None or _has_failed(shared.connecting):
            shared = _Shared(ref.make())
        self._shared[key] = shared
        shared.users += 1
        try:
            yield await shared.ready()
        finally:
            shared.users -= 1
            await self.close_idle()

    async def close_idle(self, most: int = MAX_IDLE_CLUSTERS) -> None:
        """Close clusters that nobody uses, but for so many; a process that lives on after its work leaves none."""
        while len(idle := [key for key, shared in self._shared.items() if not shared.users]) > most:
            shared = self._shared.pop(idle[0])
            await cancel(shared.connecting)
            with suppress(ClusterError):
                await shared.cluster.close()


_portal: Portal | None = None


def portal() -> Portal:
    """The portal of this process; a forked process gets its own."""
    global _portal  # noqa: PLW0603 - one per process is the point
    if _portal is None or _portal.pid != os.getpid():
        _portal = Portal()
    return _portal


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _has_failed(task: "asyncio.Task[None]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
