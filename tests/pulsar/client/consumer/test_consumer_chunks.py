"""An ordered consumer against a model of its broker: interleaved and dangling chunks, lost registrations, redelivery, restarts.

Whatever happens, what the broker counts as acknowledged was acknowledged by the application, and in the end that is everything.
A message within the limits is readable, only chunk 0 begins a message, and an orderly shutdown repeats nothing acknowledged.
"""

import asyncio
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.pulsar.client.consumer.acknowledger import Acknowledger
from mqbridge.pulsar.client.consumer.consumer_state import ConsumerState
from mqbridge.pulsar.client.consumer.entry_receiver import EntryReceiver
from mqbridge.pulsar.client.consumer.flow_permits import ReceiveBudget
from mqbridge.pulsar.client.consumer.receiver_queue import ReceiverQueue
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.chunk_joiner import ChunkLimits
from mqbridge.pulsar.wire.entry import encode_entry_prefix
from mqbridge.pulsar.wire.frame import FrameMeter, encode_frame_prefix, parse_frame
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata
from mqbridge.wire.cutter import FrameCutter
from tests.example_counts import examples

Stored = tuple[str, int, int]
"""An entry: the id of its message, its chunk number, and the number of chunks (0: it is no chunk)."""
DRAIN = 400
"""Number of steps that suffices to take and acknowledge the whole topic."""


def topic_of(random: Random) -> list[Stored]:
    """Return plain and chunked messages; chunked ones are interleaved, never completed, repeated, or lack their first chunks."""
    entries: list[Stored] = []
    begun: list[tuple[str, int, int]] = []
    continued = random.choice([0.1, 0.6])
    for number in range(random.randint(5, 40)):
        if random.random() < 0.5:
            entries.append((f"plain{number}", 0, 0))
        elif random.random() < 0.9:
            begun.append((f"chunked{number}", 0, random.randint(2, 4)))
        else:
            begun.append((f"{HEADLESS}{number}", 1, random.randint(2, 4)))
        while begun and random.random() < continued:
            name, chunk, count = begun.pop(random.randrange(len(begun)))
            entries.append((name, chunk, count))
            if chunk + 1 < count and random.random() < 0.9:
                begun.append((name, chunk + 1, count))
            elif random.random() < 0.3:
                entries += [(name, again, count) for again in range(random.randint(0, chunk), chunk + 1)]
    for name, chunk, count in begun:  # as if their producers wrote at the same time
        entries += [(name, each, count) for each in range(chunk, count)] if random.random() < 0.8 else []
    return entries


HEADLESS = "headless"
"""Start of the names of messages without their first chunk."""


def readable_messages(topic: list[Stored], limit: int) -> set[str]:
    """Return the chunked messages with all chunks that begin while fewer than `limit` others are incomplete."""
    incomplete, begun, ended = set[str](), set[str](), set[str]()
    for name, chunk, count in topic:
        if count and chunk == 0:
            begun |= {name} if len(incomplete - {name}) < limit else set()
            incomplete.add(name)
        elif count and chunk == count - 1:
            ended.add(name)
            incomplete.discard(name)
    return begun & ended


class Life:
    """The consumer, its broker (which is also its connection), and the application."""

    alive = True
    pongs = 0

    def __init__(self, random: Random) -> None:
        self.random, self.topic, self.endpoint = random, topic_of(random), self
        self.mark, self.single, self.next = -1, set[int](), 0
        self.hears, self.has_lost_acks = True, False
        self.connected: Life | None = None
        self.readable, self.expired = set[str](), set[str]()
        """Chunked messages that the application has received whole, and those whose chunks did not come in time."""
        self.finished, self.unsure = set[int](), set[int]()
        """Entries that the application had acknowledged when the consumer was closed; of the latter, some acknowledgements were
        lost."""
        self.batches: list[tuple[int, EntryId, list[tuple[EntryId, ...]], EntryId]] = []
        """Unacknowledged batches of the application: generation, last entry, chunks of all entries, and last delivered entry."""
        self.stored: set[int] = set()
        self.limits = random.choice([ChunkLimits(1), ChunkLimits(2), ChunkLimits(), ChunkLimits()])._replace(expiry_s=3600.0)
        self.begin()

    def begin(self) -> None:
        """Make a new consumer, and subscribe."""
        limits = self.limits
        self.state = ConsumerState(in_order=True, failover=False, start=None)
        self.inbox = ReceiverQueue(self.state, True, ReceiveBudget(1 << 20), limits)
        link = lambda: self.connected  # noqa: E731 - given to two
        subscription = Subscription("s", Types.Exclusive, chunk_limits=limits)
        self.acks = Acknowledger(0, "t", subscription, self.state, self.inbox, link, lambda _: None, 1.0)  # type: ignore[arg-type]
        self.intake = EntryReceiver(self.state, self.inbox, self.acks, -1, 3600.0, link, lambda: None)  # type: ignore[arg-type]
        self.subscribe()

    # --- the broker -------------------------------------------------------------------------------------------------

    def send(self, *pieces: bytes) -> None:
        for data in FrameCutter(FrameMeter(1 << 20).measure).feed(b"".join(pieces)) if self.hears else ():
            ack = parse_frame(data).command.ack
            for _, entry in map(ids.entry_id, ack.message_id):
                if ack.ack_type == pb.CommandAck.Cumulative:
                    self.mark = max(self.mark, entry)
                else:
                    self.single.add(entry)
        while self.mark + 1 in self.single:
            self.mark += 1
        told = [index for index in range(len(self.topic)) if index <= self.mark or index in self.single]
        early = [index for index in told if not self.topic[index][2] and index not in self.stored]
        assert not early, f"acknowledged, and not by the application: {early}"

    def check_soon(self) -> int:
        return 1

    def deliver(self) -> bool:
        while self.next <= self.mark or self.next in self.single:
            self.next += 1
        if self.next >= len(self.topic):
            return False
        name, chunk, count = self.topic[self.next]
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        if count:
            metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg, metadata.total_chunk_msg_size = (
                name,
                chunk,
                count,
                count,
            )
        prefix = encode_entry_prefix(metadata, b"x")
        message = pb.CommandMessage(consumer_id=0, message_id=ids.message_id(1, self.next), consumer_epoch=self.state.epoch)
        frame = encode_frame_prefix(BaseCommand(type=BaseCommand.MESSAGE, message=message), len(prefix) + 1) + prefix + b"x"
        (data,) = FrameCutter(FrameMeter(1 << 20).measure).feed(frame)
        assert self.next not in self.finished, "delivered again after an orderly shutdown, although it was acknowledged"
        self.next += 1
        self.intake.add(parse_frame(data))
        begins = [self.topic[first] for _, first in self.inbox.chunks.first_chunk_ids()]
        assert all(chunk == 0 for _, chunk, _ in begins), f"waits for chunks of a message that never began here: {begins}"
        return True

    # --- the registration ------------------------------------------------------------------------------------------------

    def subscribe(self) -> None:
        self.state.begin_subscribe()
        cursor = (1, self.mark) if self.state.needs_cursor else None
        assert not self.state.on_subscribed(cursor)
        self.connected, self.next = self, self.mark + 1
        self.acks.flush()

    def leave(self) -> None:
        self.connected = None
        skips_delivered = self.state.on_detached(self.inbox.earliest_open_chunk(self.state.delivered))
        self.inbox.drop()
        self.acks.on_disconnected(skips_delivered=skips_delivered)

    def flush(self) -> None:
        self.acks.flush()

    def restart(self) -> None:
        """Close the consumer in order, and begin with another one."""
        self.acks.release_withheld()
        self.acks.flush()
        self.leave()
        self.stop()
        if self.has_lost_acks:
            self.unsure |= self.stored
        self.has_lost_acks = False
        self.finished |= self.stored - self.unsure
        self.batches.clear()
        self.begin()

    def lose(self) -> None:
        self.hears = self.random.random() < 0.5
        self.has_lost_acks |= not self.hears
        self.acks.flush()
        self.hears = True
        self.leave()
        for _ in range(self.random.randint(0, 2)):
            self.acknowledge()
        self.subscribe()

    def redeliver(self) -> None:
        self.acks.flush()
        self.leave()
        self.state.rewind()
        self.inbox.rewind()
        self.subscribe()

    # --- the application --------------------------------------------------------------------------------------------

    def take(self) -> bool:
        entries = [entry for _ in range(self.random.randint(1, 3)) if (entry := self.inbox.take()) is not None]
        self.readable |= {self.topic[entry.entry][0] for entry in entries if entry.defect is None}
        taken = [entry.id for entry in entries]
        if taken:
            chunks = [self.inbox.chunks_of(index) for index in taken]
            self.batches.append((self.state.generation, taken[-1], chunks, self.state.delivered))
        return bool(taken)

    def acknowledge(self) -> bool:
        if not self.batches:
            return False
        run, last, taken, end = self.batches.pop(0)
        if run == self.state.generation:
            self.stored |= {entry for chunks in taken for _, entry in chunks}
            self.acks.acknowledge_up_to(end, None, 1)
            if last < end:
                self.acks.acknowledge_up_to(last, None, 1)
        return True

    def expire(self) -> bool:
        expired = self.inbox.chunks.expire(float("inf"))
        self.expired |= {self.topic[joined.chunk_ids[0][1]][0] for joined in expired}
        self.acks.acknowledge_undelivered(self.inbox.add_joined(expired))
        return bool(expired)

    # --- both -------------------------------------------------------------------------------------------------------

    def live(self) -> None:
        events = [self.deliver] * 9 + [self.take] * 4 + [self.acknowledge] * 4 + [self.flush]
        events += [self.expire] if self.random.random() < 0.5 else []
        for _ in range(self.random.randint(0, 120)):
            self.random.choice([*events, self.lose, self.redeliver, self.restart])()
        for _ in range(DRAIN):
            if self.mark == len(self.topic) - 1:
                break
            if not (self.deliver() or self.take() or self.acknowledge() or self.expire()):
                self.acks.flush()
        assert self.mark == len(self.topic) - 1, "something is never acknowledged"
        unreadable = readable_messages(self.topic, self.limits.messages) - self.readable - self.expired
        assert not unreadable, f"all chunks of a message are there, and it was never received: {unreadable}"
        seen = {self.topic[index][0] for index in self.stored}
        assert seen == {name for name, _, _ in self.topic}, "of some messages the application has seen nothing"

    def stop(self) -> None:
        self.acks.stop()
        self.intake.stop()


@settings(max_examples=examples(300))
@given(st.randoms(use_true_random=False))
def test_only_entries_acknowledged_by_the_application_are_acknowledged(random: Random) -> None:
    async def live() -> None:
        life = Life(random)
        try:
            life.live()
        finally:
            life.stop()

    asyncio.run(live())
