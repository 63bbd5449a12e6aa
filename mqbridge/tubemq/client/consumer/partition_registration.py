"""Registers a partition at its Broker: for the first time, again if the Broker lost the registration, or for a seek.

A request is abandoned if its caller no longer waits for the response. It may reach the Broker at any later time and move the
group's position. So an abandoned request is fenced: the partition is unregistered and registered again with a new client id. The
Broker then refuses the abandoned request, which has the old client id.

A Broker that has lost the registration has restarted, or the lease has expired. Which of them, and whether the Broker was killed
or shut down in order, is not known. So `_find_offset` compares the Broker's position and data with what was read before. It may
also restart between the requests of one renewal, which then finds nothing out of the ordinary: `renew` sees a new connection.
`find_start` does the same for a first registration, with what an earlier assignment of the partition has read.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Protocol

from mqbridge.errors import ClusterError, ServerRefused, Unreachable
from mqbridge.net.connectivity import retry_log_level
from mqbridge.tubemq.client.consumer.group_member import MemberIdentity
from mqbridge.tubemq.client.consumer.pack_reader import PackReader
from mqbridge.tubemq.client.consumer.partition_calls import Unregistered
from mqbridge.tubemq.client.consumer.partition_state import CONFIRMED, DELIVERED, FORGOTTEN, MAX_COMPARED_GETS, NO_LIMIT, RELEASED
from mqbridge.tubemq.client.consumer.read_history import NO_ID, ReadPack
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import RegisterResponseB2C

log = logging.getLogger(__name__)

MASTER_TIMEOUT_S = 30.0
"""After this time without a heartbeat a Master assigns our partitions to other members."""
REGISTER_ATTEMPTS = 5
"""Number of attempts to register at a Broker."""
REGISTER_PAUSE_S = 1.0
"""Pause after a failed attempt to register."""
OCCUPIED_RETRY_S = 1.0
"""Pause after an attempt that failed because another consumer holds the partition."""
COMPARE_LIMITED_S = 10.0
"""How long a comparison waits for a Broker that limits the rate of gets."""
COMPARE_PAUSE_S = 1.0
"""Largest pause between its gets meanwhile."""
MASTER_SILENT_PAUSE_S = 1.0
"""Pause before `renew` returns False, while the Master does not respond."""


class Comparison(Enum):
    """Result of comparing a pack that was read with what the Broker now has at its offset.

    SAME        the Broker has its first and its last message, and nothing new between the pack and the confirmed offset
    SAME_START  the Broker has its first message, but the last one was not found, or there is something new after it
    DIFFERENT   the Broker has other messages there, or none
    DELETED     the Broker has deleted the data there
    """

    SAME = "same"
    SAME_START = "same start"
    DIFFERENT = "different"
    DELETED = "deleted"


class MessageIds:
    """Ids of the messages that the Broker has from the group's position on, read by gets.

    `read` sends a get, which with `consumed` confirms the previous one, and returns its ids; None without data.
    """

    def __init__(self, read: "Callable[..., Awaitable[list[int] | None]]") -> None:
        self._read = read
        self._ids: list[int] = []
        """Ids that were read and not returned yet, the next one last."""
        self._last: int | None = None
        self._gets = 0

    async def next(self) -> int | None:
        """Return the next id; None if there is none in MAX_COMPARED_GETS gets, some of which may have no message of ours."""
        while not self._ids and self._gets < MAX_COMPARED_GETS:
            ids = await self._read(consumed=self._gets > 0)
            self._gets += 1
            if ids is None:
                self._last = None
                return None
            self._ids = ids[::-1]
        self._last = self._ids.pop() if self._ids else None
        return self._last

    async def skip_to(self, wanted: int) -> bool:
        """Skip messages until one has this id, or the one returned last has; return False if none has."""
        found: int | None = self._last
        while found is not None and found != wanted:
            found = await self.next()
        return found is not None


class RegistrationContext(Protocol):
    """The part of a consumer that registrations need."""

    membership: MemberIdentity

    @property
    def master_seen_at(self) -> float:
        """Loop time of the Master's last successful response."""


class PartitionRegistration:
    """Registers the partition of a reader. The caller ensures that no other request of the partition is in flight.

    LaneRevoked means that the partition was revoked or released, so its lane (the reading of the partition) has ended.
    """

    def __init__(self, context: RegistrationContext, reader: PackReader) -> None:
        self._context, self._reader = context, reader
        self._calls, self._state = reader.calls, reader.state
        self._found_position = 0
        """The group's position when `_find_offset` began."""
        self._was_forgotten = False
        """True if the Broker answered a fencing request that it does not know the registration."""
        self._loop = asyncio.get_running_loop()

    async def register(self, read_status: int, offset: int | None, requested: int | None = None) -> RegisterResponseB2C:
        """Register at the Broker; `offset` sets the group's position, None keeps it.

        `read_status` says where a group without a position starts, see `StartOffset`; `requested` is as in `_register_once`.
        There are up to REGISTER_ATTEMPTS attempts, and abandoned requests are fenced before each. If another consumer holds the
        partition, only the first attempt is repeated: if that consumer is dead and its lease has expired, the first attempt makes
        the Broker remove the lease, and the second succeeds. Raises ClusterError after the last attempt, and LaneRevoked if the
        partition was revoked or released between two attempts: the Master may then assign it again, also to this member.
        """
        for attempts_left in range(REGISTER_ATTEMPTS - 1, -1, -1):
            try:
                if self._state.abandoned:
                    await self._fence()
                return await self._register_once(read_status, offset, requested)
            except ClusterError as error:
                occupied = isinstance(error, ServerRefused) and error.code == codes.PARTITION_OCCUPIED
                if not attempts_left or (occupied and attempts_left < REGISTER_ATTEMPTS - 1):
                    raise
                pause_s = OCCUPIED_RETRY_S if occupied else REGISTER_PAUSE_S
                level = retry_log_level(error, logging.INFO)
                log.log(level, "registering %s failed, retrying in %g s: %s", self._calls, pause_s, error)
                await asyncio.sleep(pause_s)
            if self._state.is_over:
                self._state.raise_if_stopped()
        raise AssertionError("the loop over the attempts ended without a result or an error")

    async def start_at(self, read_status: int, offset: int, *, exact: bool = True) -> int:
        """Register at `offset` and return the offset at which the Broker starts.

        If the Broker starts later than `offset`, its data was deleted up to there. With `exact` this is a gap: the next fetch of
        the partition raises GapError. If the Broker starts earlier, its data ends before `offset`: this is only logged.
        """
        response = await self.register(read_status, offset, offset if exact else None)
        if (start := response.currOffset) < offset:
            log.warning(
                "%s: reading starts at offset %d, where the Broker's data ends, instead of at offset %d",
                self._calls,
                start,
                offset,
            )
        return start

    async def seek(self, offset: int, *, exact: bool = True) -> int:
        """Continue at `offset`; return the offset at which the Broker continues.

        Raises LaneRevoked, and ClusterError if the seek fails: reading then continues where it was before.
        """
        if self._state.is_over:  # revoked or released; a gap also stops reading, but a seek continues after it
            self._state.raise_if_stopped()
        start = await self.start_at(read_status=0, offset=offset, exact=exact)
        self._reader.history.clear()
        self._reader.history.begin(start)
        if self._state.is_over:  # revoked during the registration
            self._state.raise_if_stopped()
        return start

    async def renew(self) -> bool:
        """Register again after the Broker lost the registration or a request was abandoned; return True if done.

        Returns False, after a pause, if the Master has not responded for MASTER_TIMEOUT_S: it may have assigned the partition to
        another member. Also returns False if the connection was lost between two requests: the Broker may have restarted after
        the first, so the partition has to be registered again. Raises ClusterError, LaneRevoked.
        """
        if self._loop.time() - self._context.master_seen_at > MASTER_TIMEOUT_S:
            await self._state.sleep_unless_revoked(MASTER_SILENT_PAUSE_S)
            return False
        connection_number = await self._calls.connect()
        if self._state.abandoned:
            await self._fence()
        # The registration overwrites `safe_offset`, the end of the confirmed messages, and what is known of the last pack.
        state = self._state
        safe_offset, offset = state.safe_offset, state.resume_offset
        pack: tuple[bool, int | None] = (state.pack_state is DELIVERED, None)
        if state.lease is FORGOTTEN or self._was_forgotten:
            offset, pack_end = await self._find_offset(offset)
            if pack_end is not None:
                pack = (True, pack_end)
                if state.pack_state is CONFIRMED:  # confirmed meanwhile
                    offset = pack_end
        # If `offset` is None, the Broker continues at the group's position, because readStatus is 0.
        response = await self._register_once(read_status=0, offset=offset, requested=offset, pack=pack)
        if response.currOffset < safe_offset:
            self._reader.warn_set_back(safe_offset, response.currOffset)
        if self._calls.connection_number != connection_number:
            self._state.on_registration_forgotten(self._state.generation)
            self._reader.registered_over = 0  # what was found may be of an earlier process of the Broker
            return False
        return True

    async def _find_offset(self, offset: int | None) -> tuple[int, int | None]:
        """Find out where to read on at a Broker that has lost our registration.

        `offset` is the offset up to which messages are confirmed; None if only the Broker knows it. Returns the offset at which
        to register, and the end of the pack that is out, if the Broker knows it. Raises ClusterError.

        While a pack is out, only a Broker that shut down in order moves the group behind it: it has lost nothing. In all other
        cases the Broker may have been killed, and may have given the offsets of lost messages to new ones. It has lost nothing
        before `offset` if it still has the pack that was read last, and nothing new between that pack and `offset`. If not,
        reading goes back to the newest remembered pack that the Broker has: without one, to its own position.

        Comparing moves the group. So only the position that the first of several attempts found is used.
        """
        state = self._state
        is_out = state.pack_state is DELIVERED
        response = await self._send_registration(0, None)
        if not state.is_locating:
            state.is_locating, self._found_position = True, response.currOffset
        position = self._found_position
        if offset is None:
            offset = position
        elif is_out and position > offset:
            return offset, position
        remembered = self._reader.history.newest_first(offset)
        if remembered:
            match await self._compare(remembered[0], offset):
                case Comparison.SAME | Comparison.DELETED:
                    return offset, None
                case Comparison.SAME_START:
                    return remembered[0].offset, None
        return await self._newest_same(remembered[1:], min([offset, position, *(pack.offset for pack in remembered)])), None

    async def find_start(self, position: int, offset: int) -> int:
        """Find out where to read on at a Broker that may have been killed since another reader had the partition.

        The reader's history is what the other one has read, and nobody has read more. `position` is the group's position at the
        Broker, and `offset` where reading would start. Returns where it has to start. Comparing moves the group, so a
        registration has to follow in any case. Raises ClusterError, LaneRevoked.

        If the offset is before the last pack, and the Broker still has that pack, then somebody has set the group back.
        """
        self._state.is_locating = True  # until the next registration
        newest, *earlier = self._reader.history.newest_first(NO_LIMIT)
        match await self._compare(newest, offset if newest.offset <= offset else None):
            case Comparison.SAME | Comparison.DELETED:
                return offset
            case Comparison.SAME_START:
                return min(newest.offset, offset)
        earlier = [pack for pack in earlier if pack.offset <= offset]
        return await self._newest_same(earlier, min([offset, position, newest.offset, *(pack.offset for pack in earlier)]))

    async def _newest_same(self, packs: Sequence[ReadPack], otherwise: int) -> int:
        """Return the offset of the first of these packs that the Broker still has, or whose data it has deleted."""
        for pack in packs:
            if await self._compare(pack, None) is not Comparison.DIFFERENT:
                return pack.offset
        return otherwise

    async def _compare(self, pack: ReadPack, offset: int | None) -> "Comparison":
        """Compare a pack that was read with what the Broker has at its offset. Moves the group. Raises ClusterError, LaneRevoked.

        With `offset`, the messages after the pack have to begin at `offset` or later, too.
        """
        if pack.first_id == NO_ID and offset in (None, pack.offset):  # there is nothing to compare
            return Comparison.SAME
        response = await self._send_registration(0, pack.offset)
        if (start := response.currOffset) != pack.offset:
            return Comparison.DELETED if start > pack.offset else Comparison.DIFFERENT
        if offset is not None and response.maxOffset < offset:  # what was there is lost, and new messages may come at any time
            return Comparison.SAME_START
        read = MessageIds(self._read_ids)
        if pack.first_id != NO_ID:
            if await read.next() != pack.first_id:
                return Comparison.DIFFERENT
            if not await read.skip_to(pack.last_id):
                return Comparison.SAME_START
        if offset is None or offset == pack.offset or (following := await read.next()) is None:
            return Comparison.SAME
        # Offsets of messages inside a pack are unknown: the message after the pack is the first one at `offset`, or it is before.
        start = (await self._send_registration(0, offset)).currOffset
        is_after = start >= offset and await MessageIds(self._read_ids).next() == following
        return Comparison.SAME if is_after else Comparison.SAME_START

    async def _read_ids(self, *, consumed: bool) -> list[int] | None:
        """Return the ids of the messages of a get, which with `consumed` confirms the previous one; None if it found no data.

        Raises ClusterError, and LaneRevoked if the partition is over.
        """
        if self._state.is_over:
            self._state.raise_if_stopped()
        deadline = self._loop.time() + COMPARE_LIMITED_S
        while True:
            try:
                response, messages, _ = await self._calls.get(consumed=consumed)
            except (ServerRefused, Unreachable):
                raise
            except BaseException:
                self._state.on_registration_abandoned()
                raise
            if response.errCode != codes.SPEED_LIMIT or self._loop.time() > deadline:
                break
            await self._state.sleep_unless_revoked(min(max(response.minLimitTime, 1) / 1000, COMPARE_PAUSE_S))
        if response.errCode not in (codes.SUCCESS, codes.NOT_FOUND):
            raise codes.refusal_error(f"reading {self._calls}", response.errCode, response.errMsg)
        return [message.messageId for message in messages] if response.errCode == codes.SUCCESS else None

    async def _fence(self) -> None:
        """Fence abandoned requests: unregister, and switch to a new client id for the next registration.

        If only the Broker knows where to continue, send a commit first: its response contains the offset. `consumed` is
        True if the commit or unregister request confirms the last pack (the messages of the last get). Raises ClusterError.
        """
        if self._state.can_query_position:
            try:
                await self._reader.commit(consumed=self._state.pack_state is CONFIRMED)
            except ServerRefused as error:
                if error.code not in (codes.NO_NODE, codes.UNAUTHORIZED):
                    raise
                # The Broker restarted. A Broker that shuts down cleanly counts the last pack that it sent as confirmed, so its
                # position cannot be used.
                log.info(
                    "%s: the Broker lost the registration and the position (%s); registering again at the last confirmed offset",
                    self._calls,
                    error,
                )
        self._was_forgotten |= await self._calls.unregister(consumed=False) == codes.NO_NODE
        self._calls.client_id = self._context.membership.fresh_client_id()

    async def _register_once(
        self, read_status: int, offset: int | None, requested: int | None, pack: tuple[bool, int | None] = (False, None)
    ) -> RegisterResponseB2C:
        """Register in one attempt, at `offset` if given.

        If the Broker starts after the offset `requested`, data was deleted; if `requested` is None, any start is accepted. `pack`
        says whether the reader keeps the delivered pack, and where that pack ends; see `PartitionState.on_registered_again`.
        """
        response = await self._send_registration(read_status, offset)
        self._was_forgotten = False
        self._reader.on_registered(response.currOffset)
        self._reader.counters.registrations += 1
        keeps_pack, pack_end = pack
        if keeps_pack and self._state.pack_state is DELIVERED:  # it may have been settled during the request
            self._state.on_registered_again(response.currOffset, response.maxOffset, requested, pack_end)
        else:
            self._state.on_registered(response.currOffset, response.maxOffset, requested)
        self._reader.report_possible_gap()
        # If the partition was released while this request was in flight, undo the registration.
        if self._state.lease is RELEASED and await self._calls.try_unregister(consumed=False) is Unregistered.UNKNOWN:
            self._state.on_registration_abandoned()
        return response

    async def _send_registration(self, read_status: int, offset: int | None) -> RegisterResponseB2C:
        """Send a request to register, without changing the state unless the request is abandoned. Raises ClusterError."""
        try:
            return await self._calls.register(read_status, offset)
        except (ServerRefused, Unreachable):  # the Broker responded, or the request was never sent
            raise
        except BaseException:
            self._state.on_registration_abandoned()
            raise
