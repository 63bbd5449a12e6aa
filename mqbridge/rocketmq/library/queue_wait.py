"""Waits for a topic that has no writable queue now, because its brokers have no master or no name server can be reached."""

import asyncio
import logging
from collections.abc import Sequence

from mqbridge.errors import ClusterError, Failure
from mqbridge.net.backoff import Backoff
from mqbridge.rocketmq.client.producer.queue_producer import QueueProducer
from mqbridge.rocketmq.wire.bodies.queue import Queue

log = logging.getLogger(__name__)

MIN_RETRY_PAUSE_S, MAX_RETRY_PAUSE_S = 0.2, 2.0
"""Bounds of the pause before the route is queried again; a change of the route that arrives earlier ends the pause."""


class QueueWait:
    """Returns the writable queues of a producer's topic; waits for them in the order of the calls."""

    def __init__(self, producer: QueueProducer) -> None:
        self._producer = producer
        self._waiting = 0
        """Number of calls that wait; later calls wait behind them, so that no message overtakes another one."""
        self._turn = asyncio.Lock()
        """Held by the first call that waits; the others follow in their order."""
        self._loop = asyncio.get_running_loop()

    async def queues(self) -> Sequence[Queue]:
        """Return the writable queues; while there are none, wait for at most the producer's `max_elapsed_s` (None: for ever).

        Raises ClusterError: the last error after that time; at once FATAL if the topic does not exist or the producer is closed.
        """
        if not self._waiting:
            try:
                return await self._producer.queues()
            except ClusterError as error:
                if not self._may_pass(error):
                    raise
                log.warning("a send to topic %s waits for a queue: %s", self._producer.topic, error)
        self._waiting += 1
        last_error = ClusterError(f"topic {self._producer.topic} had no queue that accepts messages", Failure.RETRY)
        try:
            async with asyncio.timeout(self._producer.max_elapsed_s), self._turn:
                backoff = Backoff(MIN_RETRY_PAUSE_S, MAX_RETRY_PAUSE_S)
                while True:
                    try:
                        return await self._producer.queues()
                    except ClusterError as error:
                        if not self._may_pass(error):
                            raise
                        last_error = error
                    self._producer.client.routes.invalidate(self._producer.topic)
                    await self._producer.wait_for_route(backoff.delay())
        except TimeoutError:
            raise last_error from None
        finally:
            self._waiting -= 1

    def _may_pass(self, error: ClusterError) -> bool:
        if self._producer.closing:
            raise ClusterError(f"the producer of topic {self._producer.topic} is closed", Failure.FATAL)
        return error.failure in (Failure.RETRY, Failure.REFRESH)
