"""Broker restarts at the worst moments: during a release, a revocation, a close, or another restart; requests that get lost."""

import asyncio
import contextlib
from typing import Any

import pytest

from mqbridge.errors import ClusterError, ConnectionLost, GapError, RemoteProtocolError, RequestTimeout
from mqbridge.tubemq.client.consumer import held_partitions
from mqbridge.tubemq.client.consumer.held_partitions import MemoryPositions
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.consumer.partition_state import Unsettled
from mqbridge.tubemq.client.consumer.read_history import LastRead
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb import broker_pb2 as b
from tests.kit.conversation import until
from tests.patience import PATIENCE_S
from tests.tubemq.client import members
from tests.tubemq.client.members import (
    ADDRESS,
    KEY,
    MESSAGES,
    REF,
    Member,
    come_back,
    filled_model,
    member,
    read_on,
    send,
    shorten_all_pauses,
    shut_down,
)
from tests.tubemq.client.model import BROKER, MAX_PER_GET, STEP, Model


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_all_pauses(monkeypatch)


@pytest.fixture
def model() -> Model:
    return filled_model()


class Hold:
    """Holds the response to the n-th call of a method of PartitionCalls: the Broker has carried the request out."""

    def __init__(self, partition: HeldPartition, name: str, number: int = 1) -> None:
        self.reached, self.go_on, self.count = asyncio.Event(), asyncio.Event(), 0
        original = getattr(partition._calls, name)

        async def held(*args: Any, **named: Any) -> Any:
            self.count += 1
            mine = self.count
            result = await original(*args, **named)
            if mine == number:
                self.reached.set()
                await self.go_on.wait()
            return result

        setattr(partition._calls, name, held)


async def first_offset(model: Model, positions: Any = None) -> int:
    """Return the offset of the first pack that the next member gets; one more message is sent, so that there is one."""
    send(model, 1)
    async with asyncio.timeout(3):
        return await members.first_offset(model, positions)


def index(model: Model) -> int:
    return model.broker.confirmed[KEY] // STEP


async def test_a_lost_response_while_registering_beneath_a_pack_does_not_hang(model: Model) -> None:
    async with member(model) as one:
        partition = await one.take_pack()
        model.faults.plan[rpc.PARTITION_REGISTER, model.faults.counts[rpc.PARTITION_REGISTER] + 1] = "after"
        model.broker.restart_cleanly()
        await until(lambda: partition.state.is_detached)


@pytest.mark.parametrize("how", ["commit", "close"])
async def test_the_end_of_a_pack_is_not_moved_by_probing(model: Model, how: str) -> None:
    """Killed: the end of the pack is lost, other messages are there. A probing get is refused once (452: flow control)."""
    async with member(model) as one:
        partition = await one.take_pack()  # messages 0 to 4
        model.broker.lose("demo", 0, 3)
        model.broker.forget()
        send(model, 12)  # 3 to 14 are new, nobody has read them
        model.faults.plan[rpc.GET, model.faults.counts[rpc.GET] + 4] = 452
        await until(lambda: partition.state.is_detached)
        if how == "commit":  # an application stores this offset with its results: exactly-once
            with contextlib.suppress(ClusterError):
                stored = await partition.commit(consumed=True)
                assert stored <= 3 * STEP, f"messages 3 to {stored // STEP - 1} are skipped"
            return
        partition.confirm()
        await one.close()
    assert await first_offset(model) <= 3 * STEP


async def test_the_end_of_a_pack_is_not_the_end_of_a_probe(model: Model) -> None:
    """A second restart, in order, confirms the probe."""
    model.broker.lose("demo", 0, 2)
    async with member(model) as one:
        partition = await one.take_pack()  # messages 0 and 1
        send(model, 3)
        hold = Hold(partition, "get")
        model.broker.forget()
        await hold.reached.wait()
        model.broker.restart_cleanly()  # the probe had messages 0 to 4
        hold.go_on.set()
        model.faults.plan[rpc.PARTITION_REGISTER, model.faults.counts[rpc.PARTITION_REGISTER] + 1] = 503
        await until(lambda: partition.state.is_detached)
        partition.confirm()
        send(model, 1)
        pack = await partition.fetch()
        assert pack.offset <= 2 * STEP, f"messages 2 to {pack.offset // STEP - 1} are skipped"


async def test_a_revocation_while_locating_does_not_confirm_the_probe(model: Model) -> None:
    model.broker.lose("demo", 0, 2)
    async with member(model) as one:
        partition = await one.take_pack()  # messages 0 and 1
        partition.confirm()
        send(model, 3)
        model.broker.forget()  # killed, nothing lost; before a late commit
        hold = Hold(partition, "get", 2)  # the first is refused, the second compares
        reading = asyncio.ensure_future(partition.fetch())

        async def lane_watcher() -> None:  # as delivery/lane.py: _abort_when_revoked
            await partition.revoked.wait()
            reading.cancel()

        watcher = asyncio.ensure_future(lane_watcher())
        await hold.reached.wait()
        await partition.revoke()
        await asyncio.gather(reading, watcher, return_exceptions=True)
        await until(lambda: not one.held._restorations)
        await asyncio.sleep(0.05)
    assert await first_offset(model) <= 2 * STEP


async def test_a_release_while_locating_beneath_a_pack_confirmed_meanwhile(model: Model) -> None:
    """The pack is confirmed while the partition is being registered beneath it; then the member closes."""
    model.broker.lose("demo", 0, 2)
    async with member(model) as one:
        partition = await one.take_pack()
        send(model, 3)
        hold = Hold(partition, "get")
        model.broker.forget()
        await hold.reached.wait()
        partition.confirm()
        await one.close()
    assert await first_offset(model) <= 2 * STEP


async def test_a_release_while_locating_beneath_a_pack_sets_back_beyond_the_limit(model: Model) -> None:
    """Killed with a loss; the probing gets have gone beyond the end that the store had when the pack was read."""
    model.broker.lose("demo", 0, 5)
    async with member(model) as one:
        partition = await one.take_pack()  # 0 to 4, the end of the store
        model.broker.lose("demo", 0, 3)
        model.broker.forget()
        send(model, 12)
        hold = Hold(partition, "get", 3)
        await hold.reached.wait()
        print("provisional", index(model))
        await one.close()
    assert await first_offset(model) <= 3 * STEP


@pytest.mark.parametrize("idle", [True, False])
async def test_new_messages_at_lost_offsets_of_other_partitions_are_read(model: Model, idle: bool) -> None:
    async with member(model) as one:
        partition = await one.take()
        received: list[bytes] = []

        async def read() -> None:
            while True:
                pack = await partition.fetch()
                received.extend(message.payLoadData for message in pack.messages)
                partition.confirm()

        reading = asyncio.ensure_future(read())
        if idle:
            await until(lambda: partition.caught_up)
        model.broker.store_foreign("demo", 0, 20)
        await until(lambda: partition.state.safe_offset == (MESSAGES + 20) * STEP)
        model.broker.lose("demo", 0, MESSAGES + 4)
        model.broker.send(b.SendMessageRequestP2B(topicName="demo", partitionId=0, data=b"new", flag=0))
        model.broker.forget()
        await until(lambda: partition.state.generation == 2)
        model.broker.send(b.SendMessageRequestP2B(topicName="demo", partitionId=0, data=b"newer", flag=0))
        await until(lambda: b"newer" in received)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert b"new" in received


async def test_a_failed_commit_of_a_detached_pack_is_read_again(model: Model) -> None:
    async with member(model) as one:
        partition = await one.take_pack()
        model.broker.restart_cleanly()
        await until(lambda: partition.state.is_detached)
        count = model.faults.counts[rpc.PARTITION_REGISTER]
        for n in range(1, 6):
            model.faults.plan[rpc.PARTITION_REGISTER, count + n] = 503
        with pytest.raises(ClusterError):
            await partition.commit(consumed=True)
        assert (await partition.fetch()).offset == 0, "the commit failed and `confirm` was not called"


async def test_deletion_behind_a_detached_pack_is_a_gap(model: Model) -> None:
    async with member(model) as one:
        one.held._is_alone = lambda _: True
        partition = await one.take_pack()
        model.broker.restart_cleanly()
        await until(lambda: partition.state.is_detached)
        model.broker.deleted["demo", 0] = 7 * STEP  # 5 and 6 are lost
        await partition.commit(consumed=True)
        with pytest.raises(GapError):
            await partition.fetch()


async def test_deletion_of_the_pack_that_the_reader_has_is_no_gap(model: Model) -> None:
    async with member(model) as one:
        one.held._is_alone = lambda _: True
        partition = await one.take_pack()
        model.broker.deleted["demo", 0] = 3 * STEP
        model.broker.restart_cleanly()
        await until(lambda: partition.state.generation == 2)
        partition.confirm()  # 0 to 4 are stored by the targets
        assert (await partition.fetch()).offset == 5 * STEP


@pytest.mark.parametrize("is_rejected", [True, False], ids=["rejected", "never settled"])
@pytest.mark.parametrize("is_clean", [True, False], ids=["shut down", "killed"])
async def test_deletion_of_a_pack_that_is_read_again_is_a_gap(model: Model, is_clean: bool, is_rejected: bool) -> None:
    """While the pack was out the Broker has restarted, and retention has deleted the first messages of the pack."""
    async with member(model) as one:
        one.held._is_alone = lambda _: True
        partition = await one.take_pack()
        model.broker.deleted["demo", 0] = 3 * STEP
        if is_clean:
            model.broker.restart_cleanly()
        else:
            model.broker.forget()
        await until(lambda: partition.state.generation == 2)
        if is_rejected:
            partition.reject()  # 0 to 4 are not stored by the targets
        with pytest.raises(GapError, match="offset 0 was expected, but the Broker continued at offset 84"):
            await partition.fetch()


async def test_deletion_of_a_pack_whose_end_is_unknown_is_no_gap_once_it_is_confirmed(model: Model) -> None:
    async with member(model) as one:
        one.held._is_alone = lambda _: True
        partition = await one.take_pack()
        model.broker.deleted["demo", 0] = 3 * STEP
        model.broker.forget()
        await until(lambda: partition.state.generation == 2)
        partition.confirm()
        assert (await partition.fetch()).offset == 3 * STEP
        assert partition.state.stop_reason is None


async def test_an_unregistration_that_was_refused_is_not_a_release(model: Model) -> None:
    """Our token has just changed (415). The Broker keeps the pack as out, and may shut down in order within the lease."""
    positions = MemoryPositions()
    async with member(model, positions) as one:
        partition = await one.take_pack()
        model.faults.plan[rpc.PARTITION_REGISTER, model.faults.counts[rpc.PARTITION_REGISTER] + 1] = 415
        await partition.release()
        assert positions.unsettled(REF) is not None


async def test_a_revoked_partition_is_free_only_when_its_group_is_set_back(model: Model) -> None:
    """The Master learns this later, so that the next owner does not register first."""
    async with member(model) as one:
        partition = await one.take_pack()
        shut_down(model)
        await partition.release()
        waiting = asyncio.ensure_future(one.held.wait_set_back())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        come_back(model)
        await waiting
        assert model.broker.confirmed[KEY] == 0


async def test_a_reader_that_waits_for_the_read_budget_is_not_caught_up(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last response gets older and older."""
    async with member(model) as one:
        partition = await one.take()
        reading = asyncio.ensure_future(read_on(partition))
        await until(lambda: partition.caught_up)
        await one.held.budget.reserve(BROKER)
        monkeypatch.setattr("mqbridge.tubemq.client.consumer.partition.ANSWER_S", 0.0)
        await until(lambda: not partition.caught_up)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_rejected_pack_is_registered_again_during_its_delay(model: Model) -> None:
    async with member(model) as one:
        partition = await one.take_pack()
        partition.reject(delay_s=30)
        reading = asyncio.ensure_future(partition.fetch())
        await asyncio.sleep(0.01)
        model.broker.restart_cleanly()
        await asyncio.sleep(0.3)
        reading.cancel()
        position = index(model)
    assert position == 0


async def test_no_task_outlives_close(model: Model) -> None:
    one = Member(model)
    await one.take_pack()
    silent = asyncio.Event()
    (partition,) = one.held.held.values()

    async def never(*, consumed: bool) -> bool:
        await silent.wait()
        raise RequestTimeout("silence")

    partition._calls.unregister = never  # type: ignore[method-assign]
    await one.close(timeout=0.05)
    silent.set()
    model.unreachable.add(ADDRESS)
    for connection in model.connections.values():
        connection.cut(ConnectionLost("the pool is closed"))
    await asyncio.sleep(0.2)
    left = [task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()} if "setting back" in task.get_name()]
    await held_partitions.cancel(*one.held._restorations.values())
    assert not left


async def test_close_keeps_its_deadline_while_a_broker_is_silent(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Member(model)
    partition = await one.take_pack()
    shut_down(model)
    await partition.release()
    come_back(model)
    # From now on the Broker accepts connections and does not respond.
    connection = model.connection_to(*ADDRESS)

    async def silent(*_: Any) -> bytes:
        await asyncio.sleep(10 * PATIENCE_S)
        raise RequestTimeout("silence")

    monkeypatch.setattr(connection, "request", silent)
    await asyncio.sleep(0.02)
    async with asyncio.timeout(PATIENCE_S):  # much longer than the deadline, and shorter than the silence
        await one.close(timeout=1.5)


async def test_a_failed_acquisition_does_not_end_the_setting_back(model: Model) -> None:
    async with member(model) as one:
        partition = await one.take_pack()
        shut_down(model)
        await partition.release()
        assert one.held._restorations
        with pytest.raises(ClusterError):
            await one.take()
        come_back(model)
        await asyncio.sleep(0.2)
        await one.close()
    assert await first_offset(model) == 0


async def test_a_partition_that_is_no_longer_alone_has_no_false_gap(model: Model) -> None:
    """An administrator gives a topic of one partition a second one, in the same store."""
    alone = True
    async with member(model) as one:
        one.held._is_alone = lambda _: alone
        partition = await one.take()
        reading = asyncio.ensure_future(read_on(partition))
        await until(lambda: partition.caught_up)
        alone = False
        model.broker.store_foreign("demo", 0, 3)
        await asyncio.sleep(0.02)
        send(model, 1)
        await asyncio.sleep(0.05)
        error = reading.exception() if reading.done() else None
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert error is None


async def test_a_commit_after_the_release_sends_nothing(model: Model) -> None:
    async with member(model) as one, member(model) as two:
        partition = await one.take_pack()
        model.broker.restart_cleanly()
        await until(lambda: partition.state.is_detached)
        await partition.release()
        other = await two.take()
        reading = asyncio.ensure_future(read_on(other))
        await until(lambda: other.caught_up)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await two.close()
        before = index(model)
        with contextlib.suppress(Exception):
            await partition.commit(consumed=True)
        assert index(model) == before, "the group was set back"


async def test_a_late_release_does_not_delete_the_row_of_the_next_consumer(model: Model) -> None:
    positions = MemoryPositions()
    one, two = Member(model, positions), Member(model, positions)
    partition = await one.take()
    hold = Hold(partition, "unregister")  # carried out, the response is late
    await one.close(timeout=0.05)
    await two.take_pack()
    hold.go_on.set()
    await asyncio.sleep(0.02)
    await two.kill()
    model.broker.restart_cleanly()
    assert await first_offset(model, positions) == 0


async def test_a_pack_is_kept_if_the_unregistration_was_refused(model: Model) -> None:
    positions = MemoryPositions()
    async with member(model, positions) as one:
        await one.take_pack()
        model.faults.plan[rpc.PARTITION_REGISTER, model.faults.counts[rpc.PARTITION_REGISTER] + 1] = 415
        await one.close()
    model.broker.restart_cleanly()
    assert await first_offset(model, positions) == 0


async def test_a_release_while_locating_goes_back_by_no_more_than_needed(model: Model) -> None:
    """Everything is confirmed; the member closes while it compares packs."""
    async with member(model) as one:
        partition = await one.take()
        reading = asyncio.ensure_future(read_on(partition))
        await until(lambda: partition.caught_up)
        hold = Hold(partition, "get", 2)
        model.broker.forget()
        await hold.reached.wait()
        await one.close()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert await first_offset(model) >= (MESSAGES - MAX_PER_GET) * STEP, "more than the last pack comes again"


async def test_a_partition_of_another_member_is_lost_while_its_pack_is_out(model: Model) -> None:
    """`poll` handles 410 and 412 with `lose`; the task beneath a pack tries for ever, and takes the partition back."""
    async with member(model) as one:
        partition = await one.take_pack()
        model.broker.forget()
        model.broker.owners[KEY] = "another"
        await asyncio.sleep(0.05)
        model.broker.confirmed[KEY] = MESSAGES * STEP  # the other member has read everything, and leaves
        del model.broker.owners[KEY]
        await asyncio.sleep(1.2)
        was_lost = partition.revoked.is_set()
        position = index(model)
    assert was_lost, f"the group was set back from {MESSAGES} to {position}"


async def test_an_invalid_response_does_not_end_the_setting_back(model: Model) -> None:
    async with member(model) as one:
        partition = await one.take_pack()
        model.broker.restart_cleanly()
        count = model.faults.counts[rpc.PARTITION_REGISTER]
        model.faults.plan[rpc.PARTITION_REGISTER, count + 2] = RemoteProtocolError("not a response")
        await partition.release()
        await until(lambda: not one.held._restorations)
    assert await first_offset(model) == 0


async def test_a_failed_acquisition_leaves_no_registration(model: Model) -> None:
    """The group could not be set back: the other members wait for the end of our lease, and then start behind the pack."""
    positions = MemoryPositions()
    positions.record(REF, Unsettled(0, 5 * STEP), LastRead(0, 0, ()))
    model.broker.confirmed[KEY] = 5 * STEP
    async with member(model, positions) as one:
        for n in range(2, 7):
            model.faults.plan[rpc.PARTITION_REGISTER, n] = 503
        with pytest.raises(ClusterError):
            await one.take()
        await one.close()
    assert KEY not in model.broker.owners


async def test_the_rest_of_a_position_is_kept_if_a_late_registration_arrives(model: Model) -> None:
    """`_try_set_position` gets no response: its request may still arrive, so the client id must not be used again."""
    async with member(model) as one:
        partition = await one.take_pack()
        model.broker.restart_cleanly()
        await until(lambda: partition.state.is_detached)
        partition.confirm()

        async def lost(*_: Any, **__: Any) -> Any:
            raise RequestTimeout("silence")

        partition._calls.register = lost  # type: ignore[method-assign]
        await partition.release()
        assert REF.key in one.held._needs_fresh_id


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["after a lost get", "after another restart"])
async def test_new_messages_at_lost_offsets_are_read_after_a_kill_between_two_registering_requests(
    model: Model, is_forgotten: bool
) -> None:
    """The Broker answers the first requests, is killed with a loss, and answers the last one as if nothing had happened."""

    def kill() -> None:
        model.broker.lose("demo", 0, 3)
        model.broker.forget()
        for connection in model.connections.values():
            connection.cut(ConnectionLost("the Broker was killed"))
        for number in range(10):
            data = b"new %d" % number
            model.broker.send(b.SendMessageRequestP2B(topicName="demo", partitionId=0, data=data, flag=0))

    async with member(model) as one:
        partition = await one.take_pack()
        partition.confirm()
        await partition.fetch()
        await partition.commit(consumed=True)  # all 8 messages are confirmed at the Broker
        hold = Hold(partition, "get" if is_forgotten else "unregister", 3 if is_forgotten else 1)
        if is_forgotten:
            model.broker.forget()
        else:
            model.faults.plan[rpc.GET, model.faults.counts[rpc.GET] + 1] = "after"
        received: list[bytes] = []

        async def read() -> None:
            while b"new 9" not in received:
                received.extend(message.payLoadData for message in (await partition.fetch()).messages)
                partition.confirm()

        reading = asyncio.ensure_future(read())
        await hold.reached.wait()
        kill()
        hold.go_on.set()
        async with asyncio.timeout(PATIENCE_S):
            await reading
    assert b"new 0" in received


async def test_a_renewal_over_one_connection_is_not_repeated(model: Model) -> None:
    async with member(model) as one:
        partition = await one.take_pack()
        model.connections[ADDRESS].cut(ConnectionLost("idle"))
        model.faults.plan[rpc.GET, model.faults.counts[rpc.GET] + 1] = "after"
        partition.confirm()
        await partition.fetch()
        assert partition.state.generation == 2
