"""Reads a partition by positions with a non-durable reader: the broker stores nothing, and no group moves.

A cancelled `receive` loses nothing: the next one takes the result, see `reading`. Only `seek` and `close` stop a reading. They
close its consumer as well; the next reading opens another one. Seeking with the consumer itself would not be faster: a broker
closes it for each SEEK.
"""

import asyncio

from mqbridge.adapter.tools.deadlines import resolve_deadline
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Batch, Partition, Position
from mqbridge.net.tasks import spawn
from mqbridge.pulsar.adapter.bounds import with_batch_index
from mqbridge.pulsar.adapter.known_entries import KnownEntries
from mqbridge.pulsar.adapter.reading import Reading
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.consumer.subscription import DEFAULT_MAX_BYTES


class PulsarReader:
    """Reads a partition from `begin` up to, not including, `end`; without `end` it reads on forever. See `PartitionReader`.

    `topic` is the partition's full topic name. `timeout_s` is the time to wait for an entry that is known to exist.
    `known_entries` are those of the cluster; without, only the range itself tells which entries existed. `max_bytes` bounds the
    queued entries, and those that are taken from the queue, until their batch is received.
    """

    def __init__(
        self,
        client: ClusterClient,
        partition: Partition,
        topic: str,
        begin: Position,
        end: Position | None,
        timeout_s: float,
        known_entries: KnownEntries | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self.partition = partition
        self._client, self._topic, self._timeout_s = client, topic, timeout_s
        self._known_entries = known_entries or KnownEntries()
        self._max_bytes = max_bytes
        self._end = None if end is None else with_batch_index(end)
        self._position = begin
        self._reading = self._read_from(begin)
        """What reads from the last `seek` on."""
        self._stopping: set[asyncio.Task[None]] = set()
        """Tasks that close earlier readings; a seek that is cancelled does not wait for its own."""
        self._closed = False

    def _read_from(self, position: Position) -> Reading:
        return Reading(
            self._client,
            self.partition,
            self._topic,
            position,
            self._end,
            self._timeout_s,
            self._known_entries,
            self._max_bytes,
        )

    @property
    def position(self) -> Position:
        """Position of the next message."""
        return self._position

    @property
    def caught_up(self) -> bool:
        """True if the last `confirm_caught_up` was True, no entry has arrived since, and the connection was kept."""
        return self._reading.caught_up

    async def confirm_caught_up(self) -> bool:
        """Ask the broker for the newest entry; return True if it was received. Raises ClusterError.

        False while no consumer is open, which the first `receive` opens, and if a seek has moved the reader meanwhile.
        """
        reading = self._reading
        return await reading.confirm_caught_up() and reading is self._reading

    async def receive(self) -> Batch | None:
        """Wait for the next batch and return it; None at the end. Raises ClusterError, and GapError if messages were deleted."""
        while True:
            self._check_open()
            reading = self._reading
            batch = await reading.receive()
            if reading is self._reading and not self._closed:  # else a seek has replaced it
                if batch is not None:
                    self._position = batch.next
                return batch

    async def seek(self, position: Position) -> None:
        """Continue with the message at this position; a waiting `receive` does so, too. FATAL ClusterError once closed."""
        self._check_open()
        self._stop()
        self._position, self._reading = position, self._read_from(position)
        await self._wait_stopped()

    async def close(self, deadline: float | None = None) -> None:
        """End the reader; a waiting `receive` raises ClusterError (FATAL). `deadline` is a loop time; None: CLOSE_S from now."""
        if not self._closed:
            self._closed = True
            self._stop(resolve_deadline(deadline))
        await self._wait_stopped()

    def _check_open(self) -> None:
        if self._closed:
            raise ClusterError(f"the reader of partition {self.partition} is closed", Failure.FATAL)

    def _stop(self, deadline: float | None = None) -> None:
        """Stop the present reading at once, and close its consumer in a task."""
        self._reading.cancel()
        stopping = spawn(self._reading.close(deadline), f"closing reader {self.partition}")
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)

    async def _wait_stopped(self) -> None:
        if self._stopping:
            await asyncio.wait(self._stopping)
