"""A Broker is killed while nobody reads a partition, and gives offsets of lost messages to new ones: the next reader reads them.

The position of the group survives in the Broker, and may lie behind the new messages. A reader compares what was read last.
"""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import ConnectionLost
from mqbridge.tubemq.client.consumer import read_history
from mqbridge.tubemq.client.consumer.held_partitions import MemoryPositions, StartOffset
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.wire import rpc
from tests.kit.conversation import until
from tests.tubemq.client.members import KEY, REF, Member, filled_model, member, send, shorten_all_pauses
from tests.tubemq.client.model import STEP, Model

PACK = 5
"""Messages of a pack of the model."""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_all_pauses(monkeypatch)
    monkeypatch.setattr(read_history, "SPACING_S", 0.0)
    monkeypatch.setattr(read_history, "TRACE_SPACING_S", 0.0)


@pytest.fixture
def model() -> Model:
    return filled_model()


@pytest.fixture
def positions() -> MemoryPositions:
    return MemoryPositions()


async def read_to_end(partition: HeldPartition) -> list[int]:
    """Read and confirm until the store has no more; return the ids of the messages, in order of reading."""
    ids: list[int] = []

    async def read() -> None:
        while True:
            ids.extend(message.messageId for message in (await partition.fetch()).messages)
            partition.confirm()

    reading = asyncio.ensure_future(read())
    await until(lambda: (partition.caught_up and not partition._request_lock.locked()) or reading.done())
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading
    return ids


async def run(model: Model, positions: MemoryPositions) -> list[int]:
    """Return the ids that one member reads from its start to its orderly end."""
    async with member(model, positions) as one:
        ids = await read_to_end(await one.take())
        await one.close()
    return ids


def kill(model: Model, kept: int) -> None:
    """Kill the Broker, which keeps that many entries of the index."""
    model.broker.forget()
    model.broker.lose("demo", 0, kept)
    for connection in model.connections.values():
        connection.cut(ConnectionLost("the Broker was killed"))


def stored(model: Model) -> list[int]:
    return [entry.messageId for entry in model.broker.stored["demo", 0] if entry is not None]


@pytest.mark.parametrize("kept", [0, 2, 5, 7])
async def test_new_messages_at_offsets_of_read_ones_are_read(
    model: Model, positions: MemoryPositions, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert await run(model, positions) == list(range(8))
    kill(model, kept)
    send(model, 8 - kept)
    assert set(await run(model, positions)) >= set(range(8, 8 + 8 - kept))
    assert "the Broker no longer has what was read before that offset" in caplog.text


async def test_nothing_is_repeated_if_nothing_was_lost(model: Model, positions: MemoryPositions) -> None:
    await run(model, positions)
    kill(model, 8)
    send(model, 3)
    assert await run(model, positions) == [8, 9, 10]


async def test_messages_among_lost_entries_of_other_partitions_are_read(model: Model, positions: MemoryPositions) -> None:
    """An idle partition has moved on past the entries of others: its last pack is still there, and says nothing of them."""
    model.broker.store_foreign("demo", 0, 12)
    await run(model, positions)
    assert model.broker.confirmed[KEY] == 20 * STEP
    kill(model, 8)
    send(model, 12)
    assert set(await run(model, positions)) >= set(range(8, 20))


async def test_a_position_that_moves_up_to_the_release_is_recorded(model: Model, positions: MemoryPositions) -> None:
    """The position of an idle partition is queried every few seconds only, and once more at the release."""
    async with member(model, positions) as one:
        partition = await one.take()
        await read_to_end(partition)
        model.broker.store_foreign("demo", 0, 12)
        model.broker.confirmed[KEY] = 20 * STEP  # as a get that finds no data does
        partition.state.on_get_sent()
        partition.state.on_no_data()
        await one.close()
    last_read = positions.last_read(REF)
    assert last_read is not None
    assert last_read.confirmed == 20 * STEP
    kill(model, 8)
    send(model, 12)
    assert set(await run(model, positions)) >= set(range(8, 20))


async def test_the_position_of_another_member_is_kept(model: Model, positions: MemoryPositions) -> None:
    """What it has read is unknown here, and is not repeated while the last pack is still there."""
    await run(model, positions)
    send(model, 10)
    assert await run(model, MemoryPositions()) == list(range(8, 18))
    kill(model, 18)
    send(model, 1)
    assert await run(model, positions) == [18]


async def test_the_position_of_another_member_is_not_trusted_if_the_last_pack_is_gone(
    model: Model, positions: MemoryPositions
) -> None:
    await run(model, positions)
    send(model, 10)
    await run(model, MemoryPositions())
    kill(model, 6)
    send(model, 12)
    assert set(await run(model, positions)) >= set(range(18, 30))


async def test_a_broker_that_still_has_the_connection_is_not_compared(model: Model, positions: MemoryPositions) -> None:
    async with member(model, positions) as one:
        partition = await one.take()
        await read_to_end(partition)
        await partition.release()
        again = await one.take()
        assert again.counters.registrations == 1
        for connection in model.connections.values():
            connection.cut(ConnectionLost("the Broker may have been killed"))
        await again.release()
        assert (await one.take()).counters.registrations == 2, "once more after the comparison"


async def test_a_reader_that_reads_nothing_passes_on_what_was_read_before(model: Model, positions: MemoryPositions) -> None:
    for _ in range(2):
        await run(model, positions)
    async with member(model, positions) as one:
        for _ in range(2):
            await (await one.take()).release()
        await one.close()
    kill(model, 2)
    send(model, 6)
    assert set(await run(model, positions)) >= set(range(8, 14))


async def test_other_message_types_are_not_compared(model: Model, positions: MemoryPositions) -> None:
    """With other types a get at the same offset returns other messages, which is no loss."""
    await run(model, positions)
    async with member(model, positions) as one:
        one.held.membership.filters["demo"] = frozenset({"a"})
        partition = await one.take()
        assert partition.state.safe_offset == 8 * STEP


@pytest.mark.parametrize("fails_at", range(1, 6))
async def test_a_comparison_that_fails_or_is_killed_loses_nothing(
    model: Model, positions: MemoryPositions, fails_at: int
) -> None:
    """Comparing moves the group, past unread messages too; the next start sets it back."""
    await run(model, positions)
    kill(model, 3)
    send(model, 40)
    async with member(model, positions) as one:
        requests = 0
        handler = model.broker.get

        def get(request: object) -> object:
            nonlocal requests
            requests += 1
            if requests >= fails_at:
                raise ConnectionLost("the member is killed")
            return handler(request)  # type: ignore[arg-type]

        model.handlers[rpc.GET] = (model.handlers[rpc.GET][0], get)  # type: ignore[assignment]
        with contextlib.suppress(Exception):
            await one.take()
        await one.kill()
        model.handlers[rpc.GET] = (model.handlers[rpc.GET][0], handler)
    model.broker.forget()
    assert set(await run(model, positions)) >= set(stored(model)[3:])


async def test_a_group_whose_position_the_broker_has_lost_does_not_start_at_the_end_again(
    model: Model, positions: MemoryPositions
) -> None:
    await run(model, positions)
    kill(model, 8)
    model.broker.confirmed.clear()
    send(model, 3)
    async with member(model, positions) as one:
        one.held._start = StartOffset.LATEST
        assert set(await read_to_end(await one.take())) >= {8, 9, 10}


EVENTS = st.tuples(st.sampled_from(["send", "send", "foreign", "read", "read", "end", "kill"]), st.integers(0, 12))


class History:
    """A partition in the life of a Broker that is killed, and of a gateway that holds it at times."""

    def __init__(self) -> None:
        self.model, self.positions = Model({"demo": 1}), MemoryPositions()
        self.gateway = Member(self.model, self.positions)
        self.read: set[int] = set()

    async def happen(self, event: str, count: int) -> None:
        """`read` takes the partition, reads to its end and releases it; `end` replaces the process; `kill` loses entries."""
        if event == "send":
            send(self.model, count)
        elif event == "foreign":
            self.model.broker.store_foreign("demo", 0, count)
        elif event == "read":
            partition = await self.gateway.take()
            self.read.update(await read_to_end(partition))
            await partition.release()
        elif event == "end":
            await self.gateway.close()
            self.gateway = Member(self.model, self.positions)
        else:
            kill(self.model, max(0, len(self.model.broker.stored["demo", 0]) - count))


@given(st.lists(EVENTS, max_size=14))
def test_whatever_a_killed_broker_has_is_read(events: list[tuple[str, int]]) -> None:
    async def scenario() -> None:
        history = History()
        for event, count in [*events, ("read", 0)]:
            await history.happen(event, count)
        await history.gateway.close()
        missing = set(stored(history.model)) - history.read
        assert not missing, f"{len(missing)} messages were never read"

    asyncio.run(scenario())
