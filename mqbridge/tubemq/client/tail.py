"""Reads back the newest message of a partition, past the Master and as a group of its own.

Nothing in the protocol says where the last message of a partition begins: offsets count the messages of all partitions of a
store. So reading starts a little before the end, and further back until something is found or the store begins.
"""

import asyncio

from mqbridge.errors import RequestTimeout, ServerRefused
from mqbridge.tubemq.client.master import Masters, client_id
from mqbridge.tubemq.client.member import Member
from mqbridge.tubemq.client.partition import PartitionSession
from mqbridge.tubemq.client.session import Session
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import RegisterResponseB2C, TransferedMessage
from mqbridge.tubemq.wire.text import PartitionRef

GROUP = "mqbridge_tail"
INDEX_ENTRY_BYTES = 28
FIRST_WINDOW = 1000 * INDEX_ENTRY_BYTES
WIDER = 8
ALL_STORES = 303
"""qryPriorityId that also reads what is only in memory."""
OCCUPIED_S = 1.0
TIMEOUT_S = 60.0
"""Enough for another reader of the same partition to finish, or for its lease to end."""


class _Reader:
    """What a partition needs of a consumer, without a Master that assigned it."""

    def __init__(self, masters: Masters, topic: str, host: str) -> None:
        self.membership = Member(masters, GROUP, [topic], {}, priority=ALL_STORES)
        self.membership.client_id = client_id(host, GROUP)
        self.gets = asyncio.Semaphore(1)
        self.seen_at = asyncio.get_running_loop().time()

    def session_for(self, ref: PartitionRef) -> Session:
        return self.membership.masters.sessions.to(ref.broker.host, ref.broker.port)

    def dropped(self, partition: PartitionSession) -> None:
        """Nobody asks."""


async def newest(masters: Masters, ref: PartitionRef) -> TransferedMessage | None:
    """The newest message of a partition, None when it has none. Raises ClusterError; RequestTimeout after a minute."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await _newest(masters, ref)
    except TimeoutError as error:
        raise RequestTimeout(f"the newest message of {ref.topic} {ref.name} was not found within {TIMEOUT_S:g} s") from error


async def _newest(masters: Masters, ref: PartitionRef) -> TransferedMessage | None:
    session = PartitionSession(_Reader(masters, ref.topic, await masters.local_host()), ref)
    try:
        end = (await _when_free(session)).maxOffset
        window = FIRST_WINDOW
        while True:
            begin = max(0, end - window)
            first = (await session.register(0, begin)).currOffset
            found = await _last(session, end)
            if found is not None or begin == 0 or first > begin:
                return found
            window *= WIDER
    finally:
        await session.release()


async def _when_free(session: PartitionSession) -> RegisterResponseB2C:
    """Take the partition, after another gateway that may be doing the same."""
    while True:
        try:
            return await session.register(0)
        except ServerRefused as error:
            if error.code != codes.PARTITION_OCCUPIED:
                raise
        await asyncio.sleep(OCCUPIED_S)


async def _last(session: PartitionSession, end: int) -> TransferedMessage | None:
    """Read on until the store's index has been seen up to `end`."""
    last: TransferedMessage | None = None
    while True:
        pack = await session.poll()
        if pack is not None:
            last = pack.messages[-1]
            session.confirm()
        elif session.caught_up and await session.commit(consumed=True) >= end:
            return last
