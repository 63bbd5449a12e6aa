"""A named sender at a deduplicating broker stores the whole source exactly once, whichever messages were sent before."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import Receipt
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, Failure, LocalProtocolError
from mqbridge.mapping.sequences import sequence_of
from mqbridge.message import Batch, Message, Partition, Position, Share
from mqbridge.pulsar.adapter.batches import make_batch
from mqbridge.pulsar.adapter.bounds import EMPTY_PARTITION
from mqbridge.pulsar.adapter.config import PulsarOutboundOptions
from mqbridge.pulsar.adapter.outbound import PulsarOutbound
from mqbridge.pulsar.adapter.topics import Topics
from mqbridge.pulsar.client.connection import handshake
from mqbridge.pulsar.mapping.stored import decode_plain
from mqbridge.pulsar.wire.entry import Entry, decode_entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import scripted_client, silent, until
from tests.pulsar.client.store import Store
from tests.pulsar.entries import batch

SOURCE = Partition("here", "orders", "0", 0)
TOPIC = "persistent://public/default/t"
NAME = "job"


class EmptyCluster:
    """The cluster that `resume` queries, with an empty topic."""

    operations = None

    async def bounds(self, _: str) -> dict[str, Bounds]:
        await asyncio.sleep(0)
        return {"-1": Bounds(EMPTY_PARTITION, EMPTY_PARTITION)}


class Senders:
    """Outbounds to one topic of the scripted broker."""

    def __init__(self) -> None:
        self.store = Store()
        self.client = scripted_client()
        self._open: list[PulsarOutbound] = []

    def outbound(self, sender: str | None = NAME, max_elapsed_s: float | None = None, **options: Any) -> PulsarOutbound:
        spec = OutboundSpec("t", sender=sender, max_elapsed_s=max_elapsed_s, options=PulsarOutboundOptions(**options))
        target, topics = Partition("c", "t", "-1", 0), Topics(self.client, "c", "public/default")
        made = PulsarOutbound(EmptyCluster(), self.client, topics, spec, [target], 1 << 20)  # type: ignore[arg-type]
        self._open.append(made)
        return made

    async def resumed(self, **options: Any) -> PulsarOutbound:
        outbound = self.outbound(**options)
        async with asyncio.timeout(PATIENCE_S):
            await outbound.resume(SOURCE)
        return outbound

    @property
    def stored(self) -> list[Message]:
        """The messages stored in the topic."""
        return [message for data in self.store.logs[TOPIC] for message in decode_plain(decode_entry(data))]

    @property
    def sequences(self) -> list[tuple[int, int]]:
        """The first and highest sequence id of each SEND."""
        asked = self.store.asked[BaseCommand.SEND]
        return [(send.sequence_id, max(send.sequence_id, send.highest_sequence_id)) for send in asked]

    async def close(self) -> None:
        for outbound in self._open:
            await outbound.close(0.0)
        await self.client.close()


@pytest_asyncio.fixture
async def senders(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Senders]:
    senders = Senders()
    monkeypatch.setattr(handshake, "dial", senders.store.dial)
    yield senders
    await senders.close()


def messages(numbers: Iterable[int]) -> list[Message]:
    return [Message(b"%d" % number, position=(number,)) for number in numbers]


def payloads(found: Sequence[Message]) -> list[int]:
    return [int(message.payload or b"") for message in found]


async def send(outbound: PulsarOutbound, numbers: Iterable[int]) -> Receipt:
    async with asyncio.timeout(PATIENCE_S):
        return await outbound.send(0, Share(Batch.of(messages(numbers), SOURCE)))


async def send_all(outbound: PulsarOutbound, numbers: Sequence[int], size: int) -> None:
    """Send these numbers in shares of `size` messages."""
    for begin in range(0, len(numbers), size):
        assert not (await send(outbound, numbers[begin : begin + size])).failures


async def test_entries_carry_the_positions_of_their_first_and_last_message(senders: Senders) -> None:
    outbound = await senders.resumed(batch_messages=3)
    await send(outbound, [2, 3, 7, 9, 20])
    await send(outbound, [21])
    assert senders.sequences == [(2, 7), (9, 20), (21, 21)]
    metadata = [decode_entry(data).metadata for data in senders.store.logs[TOPIC]]
    assert [(one.producer_name, one.sequence_id, one.highest_sequence_id) for one in metadata] == [
        (NAME, 2, 7),
        (NAME, 9, 20),
        (NAME, 21, 0),
    ]


async def test_refused_and_filtered_messages_leave_holes(senders: Senders) -> None:
    outbound = await senders.resumed()
    sent = messages(range(6))
    sent[0] = Message(b"raw", position=(0,), defect="broken")
    sent[5] = Message(b"raw", position=(5,), defect="broken")
    receipt = await outbound.send(0, Share(Batch.of(sent, SOURCE), [0, 1, 3, 4, 5]))
    assert [failure.index for failure in receipt.failures] == [0, 4]
    assert (senders.sequences, payloads(senders.stored)) == ([(1, 4)], [1, 3, 4])
    await send(outbound, [6])
    assert payloads(senders.stored) == [1, 3, 4, 6]


@pytest.mark.parametrize("stored", [[], [(7, 10, 0)], [(7, 10, 0), (7, 10, 1)]])
async def test_incomplete_chunks_that_are_delivered_late_change_no_sequence_id(senders: Senders, stored: list[Position]) -> None:
    """Chunks of an incomplete message are delivered after entries with later ids."""
    first = await senders.resumed()
    if stored:
        assert not (
            await first.send(0, Share(Batch.of([Message(b"0", position=position) for position in stored], SOURCE)))
        ).failures
    await first.close()
    metadata, payload, _ = batch([b"1", b"2"])
    entries = [Entry(metadata, payload, ledger=7, entry=10 + 3 * number) for number in range(3)]
    late = Entry(type(metadata)(), b"raw", ledger=7, entry=4, defect="incomplete")
    outbound = await senders.resumed()
    for source in ([entries[0], late, *entries[1:]], [late]):
        receipt = await outbound.send(0, Share(make_batch(SOURCE, source, None, (7, 20, 0))))
        assert [failure.failure_kind for failure in receipt.failures] == [Failure.REFUSED]
    expected = [0] * len(stored) + [1, 2][len(stored) :] + [1, 2, 1, 2]
    assert payloads(senders.stored) == expected


async def test_remaining_messages_of_entries_keep_their_positions(senders: Senders) -> None:
    outbound = await senders.resumed()
    entries = []
    for number in range(2):
        metadata, payload, _ = batch([b"%d" % (10 * number + index) for index in range(3)])
        entries.append(Entry(metadata, payload, ledger=7, entry=number, ack_set=(0b110,) if number == 0 else (0b011,)))
    source = make_batch(SOURCE, entries)
    assert not (await outbound.send(0, Share(source))).failures
    assert senders.sequences == [(sequence_of((7, 0, 1)), sequence_of((7, 1, 1)))]
    assert payloads(senders.stored) == [1, 2, 10, 11]


@pytest.mark.parametrize("stored", [0, 1, 5, 14, 15, 29, 30])
@pytest.mark.parametrize("sizes", [(7, 7, 10), (7, 4, 10), (5, 30, 3), (30, 7, 4)])
async def test_a_second_attempt_with_other_batches_stores_the_missing_messages(
    senders: Senders, stored: int, sizes: tuple[int, int, int]
) -> None:
    """The second attempt sends the whole source again, not only the part after the position that `resume` returns."""
    numbers = list(range(0, 60, 2))
    first = await senders.resumed(batch_messages=sizes[2])
    await send_all(first, numbers[:stored], sizes[0])
    await first.close()
    second = senders.outbound(batch_messages=sizes[2] + 1)
    assert await second.resume(SOURCE) == ({0: (numbers[stored - 1],)} if stored else {})
    await send_all(second, numbers, sizes[1])
    assert payloads(senders.stored) == numbers


async def test_messages_that_the_broker_has_are_stored_at_an_unknown_position(senders: Senders) -> None:
    await send(await senders.resumed(), range(5))
    again = await senders.resumed()
    receipt = await send(again, range(3, 8))
    assert (receipt.failures, [bool(position) for position in receipt.positions]) == ([], [False, False, True, True, True])
    receipt = await send(await senders.resumed(), range(3, 8))
    assert (receipt.failures, receipt.highest_position) == ([], ())
    assert payloads(senders.stored) == list(range(8))


async def test_entries_that_are_stored_in_part_are_decoded_and_cut(senders: Senders) -> None:
    def source() -> Batch:
        metadata, payload, _ = batch([b"0", b"1", b"2"])
        return make_batch(SOURCE, [Entry(metadata, payload, ledger=7, entry=4)])

    first = await senders.resumed()
    assert not (await first.send(0, Share(source(), [0, 1]))).failures
    await first.close()
    second = senders.outbound()
    assert await second.resume(SOURCE) == {0: (7, 4, 1)}
    assert not (await second.send(0, Share(source()))).failures
    assert payloads(senders.stored) == [0, 1, 2]


@pytest.mark.parametrize("numbers", [[4], [9], [3, 20], [10, 12, 12], [10, 12, 11]])
async def test_messages_in_descending_order_are_refused_before_sending(senders: Senders, numbers: list[int]) -> None:
    outbound = await senders.resumed()
    await send(outbound, range(10))
    with pytest.raises(ClusterError, match="not in ascending order") as caught:
        await send(outbound, numbers)
    assert caught.value.failure is Failure.FATAL
    await send(outbound, [10, 11])
    assert payloads(senders.stored) == list(range(12))


@pytest.mark.parametrize("position", [(), (1 << 61,), (0, 1 << 15), (1, 2, 3, 4)])
async def test_positions_that_have_no_sequence_id_are_refused(senders: Senders, position: Position) -> None:
    outbound = await senders.resumed()
    with pytest.raises(ClusterError, match="remove the sender's name"):
        await outbound.send(0, Share(Batch.of([Message(b"x", position=position)], SOURCE)))
    assert senders.sequences == []


async def test_a_sender_resumes_before_it_sends_and_has_one_source(senders: Senders) -> None:
    outbound, other = senders.outbound(), Partition("here", "orders", "1", 1)
    with pytest.raises(LocalProtocolError, match="must call resume"):
        await send(outbound, [0])
    await outbound.resume(SOURCE)
    with pytest.raises(LocalProtocolError, match="must call resume"):
        outbound.send(0, Share(Batch.of(messages([0]), other)))
    with pytest.raises(LocalProtocolError, match="may send only messages of partition"):
        await outbound.resume(other)
    assert senders.sequences == []


async def test_a_name_that_another_kind_of_source_has_used(senders: Senders) -> None:
    await send(await senders.resumed(), [5])
    again = await senders.resumed()
    with pytest.raises(ClusterError, match="choose another sender name"):
        await again.send(0, Share(Batch.of([Message(b"x", position=(28, 0))], SOURCE)))


async def test_after_a_failure_sends_continue_only_after_a_resume(senders: Senders) -> None:
    outbound = await senders.resumed()
    answer = senders.store.on[BaseCommand.SEND]
    senders.store.on[BaseCommand.SEND] = silent
    lost = outbound.send(0, Share(Batch.of(messages([0, 1]), SOURCE)))
    await until(lambda: bool(senders.sequences))
    outbound.withdraw([lost])
    senders.store.on[BaseCommand.SEND] = answer
    senders.store.link.drop()
    async with asyncio.timeout(PATIENCE_S):
        assert [failure.failure_kind for failure in (await lost).failures] == [Failure.RETRY] * 2
    receipt = await send(outbound, [2, 3])
    assert [(failure.index, failure.failure_kind) for failure in receipt.failures] == [(0, Failure.RETRY), (1, Failure.RETRY)]
    assert await outbound.resume(SOURCE) == {}
    await send(outbound, range(4))
    assert payloads(senders.stored) == [0, 1, 2, 3]


@pytest.mark.parametrize("answer_first", [False, True])
async def test_a_lost_connection_stores_everything_once(senders: Senders, answer_first: bool) -> None:
    outbound = await senders.resumed(batch_messages=4)
    senders.store.answer_first = answer_first
    senders.store.cut_at = senders.store.seen + 3
    sends = [outbound.send(0, Share(Batch.of(messages(range(begin, begin + 10)), SOURCE))) for begin in range(0, 50, 10)]
    async with asyncio.timeout(PATIENCE_S):
        receipts = await asyncio.gather(*sends)
    assert not any(receipt.failures for receipt in receipts)
    assert payloads(senders.stored) == list(range(50))


async def test_a_name_that_was_used_while_the_connection_was_away_ends_the_sender(senders: Senders) -> None:
    """The broker would drop the waiting entries as duplicates, and they would count as stored."""
    outbound = await senders.resumed()
    await send(outbound, range(5))
    senders.store.on[BaseCommand.SEND] = silent
    waiting = outbound.send(0, Share(Batch.of(messages(range(5, 15)), SOURCE)))
    await until(lambda: len(senders.sequences) == 2)
    senders.store.highest[TOPIC, NAME] = 9
    senders.store.link.drop()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ClusterError, match=r"another producer named 'job' has sent to topic .*"):
            await waiting
    await outbound.close()
    closed = [asked.producer_id for asked in senders.store.asked[BaseCommand.CLOSE_PRODUCER]]
    assert len(closed) == 1, "the broker is told, so that it lets others in"


async def test_without_a_sender_nothing_is_numbered(senders: Senders) -> None:
    outbound = senders.outbound(None)
    await send(outbound, [5, 6])
    await send(outbound, [3])
    assert senders.sequences == [(0, 1), (2, 2)]
