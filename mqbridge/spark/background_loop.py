"""The event loop of a Spark Python process, run by a thread that lives as long as the process.

Spark calls a data source from threads without an event loop, in any of its Python processes, and reuses most of these processes.
Each process therefore has one loop in a thread of its own, and keeps its clusters connected for later tasks. Nothing is closed at
the end, because Spark kills the processes.
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

CONNECT_TIMEOUT_S = 30.0
"""How long a task waits for the connection of its cluster."""
MAX_IDLE_CLUSTERS = 4
"""Maximum number of clusters that stay connected while no task uses them."""
PREFETCHED_ITEMS = 2
"""How many items the generator of `iterate` is ahead of the item that the caller is processing."""

_END = object()
"""Follows the last item in the queue of `iterate`."""


class _SharedCluster:
    """A cluster that all tasks of this process share."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.user_count = 0
        """Number of contexts of `BackgroundLoop.cluster` that are open."""
        self.connect_task: asyncio.Task[None] = spawn(cluster.connect(), f"connecting to {cluster.name}", log_errors=False)

    async def wait_connected(self) -> Cluster:
        """Wait for the connection and return the cluster. Raises ClusterError."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.shield(self.connect_task)  # other users of the cluster may wait for the same task
        except TimeoutError as error:
            raise RequestTimeout(f"cluster {self.cluster.name!r} did not connect within {CONNECT_TIMEOUT_S:g} s") from error
        return self.cluster


class BackgroundLoop:
    """Runs coroutines on the event loop of this process. Other threads call `run` and `iterate`.

    Get the instance of this process from `background_loop`.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        """Id of the process in which the thread runs. A forked process does not have the thread."""
        self._loop = _new_loop()
        self._shared_clusters: dict[bytes, _SharedCluster] = {}
        """Keyed by the pickled ClusterRef, least recently used first."""
        threading.Thread(target=self._loop.run_forever, name="mqbridge", daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None, operation: str = "an operation") -> T:
        """Run the coroutine on the loop, wait for it, and return its result.

        Raises what the coroutine raises. After `timeout_s` (None: never) the coroutine is cancelled, and RequestTimeout is
        raised with the name of the `operation`.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():  # the coroutine itself raised TimeoutError
                raise
            raise RequestTimeout(f"{operation} did not end within {timeout_s:g} s") from None
        finally:
            future.cancel()  # has an effect only after a timeout, or if this thread is interrupted

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Iterate over an asynchronous generator, PREFETCHED_ITEMS ahead. Closing the iterator closes the generator."""
        ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        free_slots = asyncio.Semaphore(PREFETCHED_ITEMS)

        async def produce() -> None:
            async with aclosing(items):
                async for item in items:
                    await free_slots.acquire()
                    ready.put(item)

        production = asyncio.run_coroutine_threadsafe(produce(), self._loop)
        production.add_done_callback(lambda _: ready.put(_END))
        try:
            while (item := ready.get()) is not _END:
                yield item
                self._loop.call_soon_threadsafe(free_slots.release)
            production.result()  # raises the error of the generator
        finally:
            production.cancel()

    @asynccontextmanager
    async def cluster(self, ref: ClusterRef) -> AsyncIterator[Cluster]:
        """Provide the connected cluster. Call on the background event loop only. Raises ClusterError.

        Other users in this process share the cluster, so leaving the context does not close it.
        """
        key = pickle.dumps(ref)
        shared = self._shared_clusters.pop(key, None)  # stored again below, as the most recently used
        if shared is not None and _has_failed(shared.connect_task):
            await _close(shared.cluster)
            shared = self._shared_clusters.pop(key, None)  # another task may have stored a new one while this one closed it
        if shared is None:
            shared = _SharedCluster(ref.make_cluster())
        self._shared_clusters[key] = shared
        shared.user_count += 1
        try:
            yield await shared.wait_connected()
        finally:
            shared.user_count -= 1
            await self.close_idle()

    async def close_idle(self, max_idle: int = MAX_IDLE_CLUSTERS) -> None:
        """Close idle clusters, the least recently used first, until `max_idle` remain connected."""
        while len(idle := [key for key, shared in self._shared_clusters.items() if not shared.user_count]) > max_idle:
            shared = self._shared_clusters.pop(idle[0])
            await cancel(shared.connect_task)
            await _close(shared.cluster)


_instance: BackgroundLoop | None = None


def background_loop() -> BackgroundLoop:
    """Return the loop of this process. A forked process gets its own."""
    global _instance  # noqa: PLW0603 - there is one loop per process
    if _instance is None or _instance.pid != os.getpid():
        _instance = BackgroundLoop()
    return _instance


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - uvloop does not exist on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _close(cluster: Cluster) -> None:
    with suppress(ClusterError):
        await cluster.close()


def _has_failed(task: "asyncio.Task[None]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
