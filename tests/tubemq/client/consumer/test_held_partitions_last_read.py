"""A Broker is killed while nobody reads a partition, and gives offsets of lost messages to new ones: the next reader reads them.

The position of the group survives in the Broker, and may lie behind the new messages. A reader compares what was read last.
"""

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import ClusterError, ConnectionLost, RequestTimeout
from mqbridge.tubemq.client.consumer import held_partitions, read_history
from mqbridge.tubemq.client.consumer.held_partitions import MemoryPositions, StartOffset
from mqbridge.tubemq.client.consumer.partition_state import FETCHING
from mqbridge.tubemq.wire import rpc
from tests.kit.conversation import until
from tests.tubemq.client.members import (
    KEY,
    REF,
    Member,
    before_each,
    filled_model,
    kill,
    member,
    read_to_end,
    remember_every_pack,
    run,
    send,
    shorten_all_pauses,
    stored,
)
from tests.tubemq.client.model import STEP, Model, ModelConnection

PACK = 5
"""Messages of a pack of the model."""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_all_pauses(monkeypatch)
    remember_every_pack(monkeypatch)


@pytest.fixture
def model() -> Model:
    return filled_model()


@pytest.fixture
def positions() -> MemoryPositions:
    return MemoryPositions()


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


@pytest.mark.parametrize("has_read", [True, False], ids=["read before", "read nothing"])
async def test_what_another_member_has_read_is_not_repeated(
    model: Model, positions: MemoryPositions, has_read: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Not at the next assignments either, which read nothing themselves, nor after a kill that the other one has noticed."""
    await run(model, positions if has_read else MemoryPositions())
    assert (await run(model, positions) == []) or has_read
    send(model, 100)
    await run(model, MemoryPositions())
    for _ in range(2):
        assert await run(model, positions) == []
    kill(model, 108)
    assert await run(model, positions) == []
    assert "goes back" not in caplog.text


async def test_a_restart_in_order_does_not_repeat_what_another_member_has_read(model: Model, positions: MemoryPositions) -> None:
    await run(model, positions)
    send(model, 100)
    await run(model, MemoryPositions())
    async with member(model, positions) as one:
        partition = await one.take()
        assert await read_to_end(partition) == []
        model.broker.restart_cleanly()
        send(model, 1)
        assert [message.messageId for message in (await partition.fetch()).messages] == [108]


async def test_a_loss_that_another_member_has_made_good_is_not_made_good_again(model: Model, positions: MemoryPositions) -> None:
    others = MemoryPositions()
    await run(model, positions)
    send(model, 5)
    await run(model, others)
    kill(model, 9)
    send(model, 10)
    assert set(await run(model, others)) >= set(range(13, 23))
    send(model, 1000)
    await run(model, others)
    assert await run(model, positions) == []


async def test_an_operators_reset_is_kept(
    model: Model, positions: MemoryPositions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The pack before the new position is seconds older: the messages between them are no sign of a loss."""
    monkeypatch.setattr(read_history, "TRACE_SPACING_S", 15.0)
    send(model, 92)
    await run(model, positions)
    model.broker.confirmed[KEY] = 60 * STEP
    assert (await run(model, positions))[0] == 60
    assert "goes back" not in caplog.text


async def test_a_pack_that_is_confirmed_by_the_release_ends_where_the_group_is(positions: MemoryPositions) -> None:
    model = Model({"demo": 1})
    send(model, 3)
    model.broker.store_foreign("demo", 0, 10)
    async with member(model, positions) as one:
        (await one.take_pack()).confirm()
        await one.close()
    assert model.broker.confirmed[KEY] == 13 * STEP
    kill(model, 3)
    send(model, 10)
    assert set(await run(model, positions)) >= set(range(3, 13))


async def test_a_get_in_flight_at_the_release_may_move_the_group(
    model: Model, positions: MemoryPositions, monkeypatch: pytest.MonkeyPatch
) -> None:
    respond = ModelConnection._respond

    def respond_late(self: ModelConnection, on_answer: Any, answer: Any) -> None:
        asyncio.get_running_loop().call_later(0.03, respond, self, on_answer, answer)

    async with member(model, positions) as one:
        partition = await one.take()
        await read_to_end(partition)
        model.broker.store_foreign("demo", 0, 12)
        monkeypatch.setattr(ModelConnection, "_respond", respond_late)
        polling = asyncio.ensure_future(partition.poll())
        await until(lambda: partition.state.pack_state is FETCHING)
        await one.close()
        await asyncio.gather(polling, return_exceptions=True)
        monkeypatch.setattr(ModelConnection, "_respond", respond)
    assert model.broker.confirmed[KEY] == 20 * STEP
    kill(model, 8)
    send(model, 12)
    assert set(await run(model, positions)) >= set(range(8, 20))


async def test_a_release_without_responses_sets_no_idle_group_back(model: Model, positions: MemoryPositions) -> None:
    async with member(model, positions) as one:
        partition = await one.take()
        await read_to_end(partition)
        await held_partitions.cancel(*one.held._tasks)
        await partition.poll_once()
        assert partition.state.has_moved

        def unanswered(request: Any, number: int) -> None:
            if getattr(request, "opType", rpc.OP_UNREGISTER) == rpc.OP_UNREGISTER:
                raise RequestTimeout("silence")

        with before_each(model, rpc.COMMIT, unanswered), before_each(model, rpc.PARTITION_REGISTER, unanswered):
            await partition.release()
        assert partition.unsettled is None


async def test_a_release_does_not_confirm_messages_that_were_deleted(model: Model, positions: MemoryPositions) -> None:
    """In a store without other partitions, a position that moves without messages is a gap."""
    async with member(model, positions) as one:
        one.held._is_alone = lambda _: True
        partition = await one.take()
        await read_to_end(partition)
        await held_partitions.cancel(*one.held._tasks)
        await partition.poll_once()
        send(model, 10)
        model.broker.deleted["demo", 0] = 18 * STEP
        await partition.poll_once()
        await partition.release()
    last_read = positions.last_read(REF)
    assert last_read is not None
    assert last_read.confirmed == 8 * STEP


async def test_a_kill_between_the_comparison_and_the_registration_is_noticed(model: Model, positions: MemoryPositions) -> None:
    await run(model, positions)
    kill(model, 8)

    def kill_again(request: Any, number: int) -> None:
        if request.opType == rpc.OP_REGISTER and number == 3:  # after the first registration and that of the comparison
            kill(model, 3)
            send(model, 10)
            raise ConnectionLost("the Broker was killed")

    with before_each(model, rpc.PARTITION_REGISTER, kill_again):
        assert set(await run(model, positions)) >= set(range(8, 18))


async def test_messages_that_arrive_at_lost_offsets_during_the_comparison_are_read(
    model: Model, positions: MemoryPositions
) -> None:
    """The Broker's data ends before the position: registering there would begin at the end of that moment."""
    model.broker.store_foreign("demo", 0, 12)
    await run(model, positions)
    kill(model, 8)

    def send_one(request: Any, number: int) -> None:
        if number == 3:
            send(model, 1)

    with before_each(model, rpc.PARTITION_REGISTER, send_one):
        assert (await run(model, positions))[-1:] == [8]


async def test_a_renewal_over_two_connections_says_nothing_about_the_broker(
    model: Model, positions: MemoryPositions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with member(model, positions) as one:
        partition = await one.take()
        await read_to_end(partition)
        numbers = iter([7])
        monkeypatch.setattr(partition._calls, "connect", lambda: asyncio.sleep(0, next(numbers)))
        partition.state.on_registration_forgotten(partition.state.generation)
        assert not await partition._registration.renew()
        assert partition.registered_over == 0


async def test_a_failed_seek_forgets_nothing(model: Model, positions: MemoryPositions) -> None:
    async with member(model, positions) as one:
        partition = await one.take()
        await read_to_end(partition)
        before = partition.last_read.packs
        count = model.faults.counts[rpc.PARTITION_REGISTER]
        model.faults.plan = {(rpc.PARTITION_REGISTER, count + n): 503 for n in range(1, 6)}
        with pytest.raises(ClusterError):
            await partition.seek(0)
        assert partition.last_read.packs == before


async def test_deleted_data_that_was_read_is_no_gap(positions: MemoryPositions) -> None:
    model = Model({"demo": 1})
    send(model, 15)
    await run(model, positions)
    kill(model, 10)
    send(model, 5)
    model.broker.deleted["demo", 0] = 7 * STEP
    async with member(model, positions) as one:
        one.held._is_alone = lambda _: True
        assert set(await read_to_end(await one.take())) >= set(range(15, 20))


async def test_a_comparison_waits_while_the_broker_limits_the_rate(model: Model, positions: MemoryPositions) -> None:
    await run(model, positions)
    kill(model, 8)
    model.faults.plan = {(rpc.GET, model.faults.counts[rpc.GET] + 1): 452}
    async with member(model, positions) as one:
        assert (await one.take()).state.safe_offset == 8 * STEP


async def test_many_short_assignments_leave_the_trace_two_minutes_long(
    model: Model, positions: MemoryPositions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_history, "TRACE_SPACING_S", 15.0)
    async with member(model, positions) as one:
        for _ in range(12):
            send(model, 20)
            partition = await one.take()
            await read_to_end(partition)
            await partition.release()
        await one.close()
    kill(model, 0)
    count = 8 + 12 * 20
    send(model, count)
    assert set(await run(model, positions)) >= set(range(count, 2 * count))


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
