"""The requests of a held partition, response by response: nothing is skipped, whatever gets lost."""

import asyncio
import logging

import pytest

from mqbridge.errors import ClusterError, ConnectionLost, GapError, LaneRevoked, RequestTimeout, ServerRefused, Unreachable
from mqbridge.tubemq.client.consumer import pack_reader, partition_pacing, partition_registration
from mqbridge.tubemq.client.consumer import partition as partition_module
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.consumer.partition_state import AbandonedRequests
from mqbridge.tubemq.wire.rpc import OP_REGISTER, OP_UNREGISTER
from tests.tubemq.client.fakes import REF, Context, Script, committed, pack, refused, refused_commit, registered, unregistered


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_pacing, "DEFAULT_REFUSAL_WAIT_S", 0.001)
    for name in ("MASTER_SILENT_PAUSE_S", "REGISTER_PAUSE_S", "OCCUPIED_RETRY_S"):
        monkeypatch.setattr(partition_registration, name, 0.001)
    monkeypatch.setattr(partition_pacing, "REFUSAL_WAITS_S", dict.fromkeys(partition_pacing.REFUSAL_WAITS_S, 0.001))
    monkeypatch.setattr(partition_pacing, "NOT_FOUND_WAIT_S", 0.001)
    monkeypatch.setattr("mqbridge.tubemq.client.consumer.flow_control.NOT_FOUND_WAIT_S", 0.001)


async def registered_partition(script: Script, *, offset: int = 0, is_alone: bool = False) -> HeldPartition:
    partition = HeldPartition(Context(script), REF, is_alone=lambda: is_alone)
    script.responses.appendleft(registered(offset))
    await partition.register(0)
    return partition


def confirmations(script: Script) -> list[bool]:
    return [request.lastPackConsumed for request in script.requests if hasattr(request, "manualCommitOffset")]


async def test_a_confirmation_is_sent_with_the_next_get() -> None:
    script = Script(pack(0), pack(56), pack(112))
    partition = await registered_partition(script)
    for offset in (0, 56, 112):
        found = await partition.fetch()
        assert (found.offset, [m.payLoadData for m in found.messages]) == (offset, [b"m0", b"m1"])
        partition.confirm()
    assert confirmations(script) == [False, True, True]
    assert script.requests[0].opType == OP_REGISTER
    assert script.requests[0].authInfo.visitAuthorizedToken == 77


@pytest.mark.parametrize("reject", [True, False], ids=["rejected", "never confirmed"])
async def test_an_unconfirmed_pack_is_redelivered(reject: bool) -> None:
    script = Script(pack(0), pack(0))
    partition = await registered_partition(script)
    await partition.fetch()
    if reject:
        partition.reject()
    assert (await partition.fetch()).offset == 0
    assert confirmations(script) == [False, False]


@pytest.mark.parametrize("error", [ConnectionLost("gone"), RequestTimeout("silent")])
async def test_after_a_lost_response_nothing_is_confirmed(error: Exception) -> None:
    """The Broker may have delivered a pack that was lost, or deliver it later: a confirmation would skip that pack.

    So the client queries the group's offset and continues there under a new client id, which the lost request does not have.
    """
    script = Script(pack(0), error, committed(56), unregistered(), registered(56), pack(56))
    partition = await registered_partition(script)
    await partition.fetch()
    partition.confirm()
    assert (await partition.fetch()).offset == 56
    assert confirmations(script) == [False, True, False]
    commit, unregister, register = script.requests[3:6]
    assert not commit.lastPackConsumed
    assert (unregister.opType, unregister.readStatus, register.opType, register.currOffset) == (OP_UNREGISTER, 1, OP_REGISTER, 56)
    assert [request.clientId for request in script.requests] == ["c1"] * 5 + ["c1-run1"] * 2


async def test_a_failed_query_of_the_groups_offset_is_repeated() -> None:
    """Reading from the start of the confirmed pack would look like a gap once that pack is deleted."""
    script = Script(
        pack(0), RequestTimeout("no answer"), refused_commit(500), committed(56), unregistered(), registered(56), pack(56)
    )
    partition = await registered_partition(script)
    await partition.fetch()
    partition.confirm()
    assert (await partition.fetch()).offset == 56
    assert script.requests[-2].currOffset == 56


@pytest.mark.parametrize("code", [452, 503, 403, 301, 400])
async def test_a_refusal_keeps_the_confirmation(code: int) -> None:
    script = Script(pack(0), refused(code, 1), pack(56))
    partition = await registered_partition(script)
    await partition.fetch()
    partition.confirm()
    assert (await partition.fetch()).offset == 56
    assert confirmations(script) == [False, True, True]


async def test_after_an_internal_error_of_a_get_nothing_is_confirmed() -> None:
    script = Script(pack(0), refused(500), pack(0))
    partition = await registered_partition(script)
    await partition.fetch()
    partition.confirm()
    await partition.fetch()
    assert confirmations(script) == [False, True, False]


async def test_gets_without_messages_of_the_wanted_types_are_repeated() -> None:
    script = Script(refused(404), pack(0, count=0), refused(404))
    partition = await registered_partition(script)
    fetching = asyncio.ensure_future(partition.fetch())
    await script.silent.wait()
    assert partition.found_no_data
    assert confirmations(script) == [False] * 4
    await end_fetch(partition, script, fetching)


async def end_fetch(partition: HeldPartition, script: Script, fetching: "asyncio.Future[object]") -> None:
    partition.lose(LaneRevoked("test"))
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)


async def test_flow_control_starts_when_its_rules_arrive() -> None:
    """Without rules, packs are not measured. A pack resets the counts of gets without data and of failures."""
    script = Script(pack(0), pack(56), refused(404), refused(404), pack(112), ConnectionLost("gone"))
    partition = await registered_partition(script)
    pacing, loop = partition._pacing, asyncio.get_running_loop()
    await partition.fetch()
    assert pacing.next_get_at <= loop.time()
    assert not pacing.is_disturbed
    partition._context.membership.flow.apply_rules(
        (1, '[{"type":3,"rule":[{"normFreqInMs":50}]},{"type":1,"rule":[{"zeroCnt":2,"freqInMs":20}]}]'), (-2, "")
    )
    partition.confirm()
    before = loop.time()
    await partition.fetch()
    assert pacing.next_get_at >= before + 0.05
    partition.confirm()
    assert await partition.poll() is None
    assert pacing.is_disturbed
    before = loop.time()
    assert await partition.poll() is None
    assert pacing.next_get_at >= before + 0.02, "the second miss in a row"
    await partition.fetch()
    assert not pacing.is_disturbed
    assert pacing._meter._gets_without_data == 0


async def test_after_a_confirmation_a_forgotten_partition_continues_at_the_groups_offset() -> None:
    """The Broker still has the pack that was read last, so it has lost nothing."""
    script = Script(pack(0), registered(56), registered(0), pack(0), refused(404), registered(56), pack(56))
    partition = await registered_partition(script)
    await partition.fetch()
    partition.confirm()
    partition.on_heartbeat_failure(411, partition.state.generation)  # as a heartbeat reports it, before the next get
    assert (await partition.fetch()).offset == 56
    query, compare, _, _, again = script.requests[2:7]
    assert not query.HasField("currOffset")
    assert (query.readStatus, compare.currOffset, again.currOffset) == (0, 0, 56)


async def test_after_a_kill_reading_resumes_at_the_last_offset_that_the_broker_kept(caplog: pytest.LogCaptureFixture) -> None:
    """New messages have the offsets of lost ones: the pack that was read last has other messages now, an earlier one has not."""
    script = Script(pack(0), committed(56), pack(56), committed(112))
    partition = await registered_partition(script)
    for _ in range(2):
        await partition.fetch()
        partition.confirm()
        await partition.commit_confirmed()
    other = pack(56, count=3)
    other.messages[0].messageId = 99
    script.respond_with(refused(411), registered(112), registered(56), other, registered(0), pack(0), registered(0), pack(0))
    assert (await partition.fetch()).offset == 0
    assert "goes back from offset 112 to 0" in caplog.text


@pytest.mark.parametrize(("confirm", "resumed"), [(True, 84), (False, 28)], ids=["confirmed", "rejected"])
async def test_a_forgotten_partition_is_registered_again_while_its_pack_is_out(confirm: bool, resumed: int) -> None:
    """A Broker that shut down in order has moved the group behind the pack; its end is known from there on."""
    script = Script(pack(28))
    partition = await registered_partition(script, offset=28)
    found = await partition.fetch()
    script.respond_with(registered(84), registered(28))
    partition.on_heartbeat_failure(411, partition.state.generation)
    await partition._register_task  # type: ignore[misc]
    assert not script.requests[2].HasField("currOffset")
    assert script.requests[3].currOffset == 28
    assert partition.pack is found
    (partition.confirm if confirm else partition.reject)()
    script.respond_with(
        *([registered(84), registered(28), pack(28), refused(404), registered(84)] if confirm else []), pack(resumed)
    )
    assert (await partition.fetch()).offset == resumed
    assert confirmations(script)[-1] is False


async def test_a_release_after_a_restart_returns_the_position_at_which_the_group_continues() -> None:
    """Whoever gives the pack up: the Broker has counted it as consumed."""
    unknown = unregistered()
    unknown.success, unknown.errCode = False, 411
    script = Script(pack(28), unknown)
    partition = await registered_partition(script, offset=28)
    await partition.fetch()
    await partition.release()
    assert partition.unsettled == (28, 10_000)
    assert partition.unsettled.is_needed_at(84)
    assert not partition.unsettled.is_needed_at(28)


@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_a_commit_of_a_pack_from_before_a_restart_registers_behind_it(is_confirmed: bool) -> None:
    script = Script(pack(28), registered(84 if is_confirmed else 28), registered(28))
    if not is_confirmed:  # the Broker was killed: where the pack ends is unknown
        script.respond_with(pack(28), registered(28))
    partition = await registered_partition(script, offset=28)
    await partition.fetch()
    partition.on_heartbeat_failure(411, partition.state.generation)
    await partition._register_task  # type: ignore[misc]
    if is_confirmed:
        script.respond_with(registered(84))
        assert await partition.commit(consumed=True) == 84
        assert script.requests[-1].currOffset == 84
    else:
        with pytest.raises(ClusterError, match="sends the delivered messages again"):
            await partition.commit(consumed=True)
        script.respond_with(pack(28))
        assert (await partition.fetch()).offset == 28


async def test_with_an_unconfirmed_pack_a_forgotten_partition_continues_at_that_pack() -> None:
    """A Broker that is shut down cleanly counts that pack as consumed, so the client requests its offset."""
    script = Script(pack(28), registered(84), registered(28), pack(28), registered(28), pack(28))
    partition = await registered_partition(script, offset=28)
    await partition.fetch()
    partition.on_heartbeat_failure(411, partition.state.generation)
    partition.reject()
    assert (await partition.fetch()).offset == 28
    assert script.requests[-2].currOffset == 28


async def test_after_a_broker_restart_during_a_get_the_confirmed_pack_is_read_again() -> None:
    gone = refused_commit(401)
    script = Script(pack(28), ConnectionLost("restart"), gone, unregistered(), registered(28), pack(28))
    partition = await registered_partition(script, offset=28)
    await partition.fetch()
    partition.confirm()
    assert (await partition.fetch()).offset == 28
    assert script.requests[5].currOffset == 28, "the end of the confirmed pack is not known, so it is read again"


async def test_reading_continues_after_lost_and_refused_gets() -> None:
    fences = [unregistered(), registered(0)]
    script = Script(ConnectionLost("a"), *fences, RequestTimeout("b"), *fences, refused(503), refused(500), pack(0))
    partition = await registered_partition(script)
    assert (await partition.fetch()).offset == 0


async def test_a_partition_owned_by_another_member_is_revoked() -> None:
    script = Script(refused(412))
    partition = await registered_partition(script)
    with pytest.raises(LaneRevoked):
        await partition.fetch()
    with pytest.raises(LaneRevoked):
        await partition.fetch()
    assert partition._context.ended == [partition]


async def test_registering_an_occupied_partition_is_tried_twice() -> None:
    taken = registered()
    taken.success, taken.errCode = False, 410
    partition = HeldPartition(Context(Script(taken, registered())), REF)
    await partition.register(1)
    assert partition.state.is_registered
    script = Script(taken, taken, registered())
    partition = HeldPartition(Context(script), REF)
    with pytest.raises(ServerRefused) as caught:
        await partition.register(0)
    assert caught.value.code == 410
    assert len(script.requests) == 2


async def test_other_failed_registrations_are_tried_five_times() -> None:
    partition = HeldPartition(Context(Script(*[Unreachable("x")] * 4, registered())), REF)
    await partition.register(0)
    partition = HeldPartition(Context(Script(*[ConnectionLost("x")] * 4, unregistered(), registered())), REF)
    await partition.register(0)
    script = Script(*[ConnectionLost("x")] * 6)
    with pytest.raises(ConnectionLost):
        await HeldPartition(Context(script), REF).register(0)
    assert len(script.requests) == 5


@pytest.mark.parametrize("offset", [None, 56], ids=["at the group's offset", "at a given offset"])
async def test_an_abandoned_registration_is_fenced_before_the_next_try(offset: int | None) -> None:
    """It may still arrive, and register the partition for an id without heartbeats or move the position of a reader."""
    script = Script(RequestTimeout("silent"), Unreachable("down"), unregistered(), registered(56), pack(56))
    partition = HeldPartition(Context(script), REF)
    await (partition.register(0) if offset is None else partition.start_at(0, offset))
    taken, _, left, again = script.requests
    assert [request.opType for request in script.requests] == [OP_REGISTER, OP_UNREGISTER, OP_UNREGISTER, OP_REGISTER]
    assert (taken.clientId, left.clientId, left.readStatus, again.clientId) == ("c1", "c1", 1, "c1-run1")
    assert taken.HasField("currOffset") == again.HasField("currOffset") == (offset is not None)
    assert (await partition.fetch()).offset == 56
    assert script.requests[-1].clientId == "c1-run1"


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "refused later"])
async def test_an_abandoned_registration_is_unregistered_at_the_release(is_cancelled: bool) -> None:
    """The Broker may count the partition as ours, now or later, so the release unregisters it."""
    occupied = registered()
    occupied.success, occupied.errCode = False, 410
    script = Script() if is_cancelled else Script(RequestTimeout("silent"), unregistered(), occupied)
    partition = HeldPartition(Context(script), REF)
    if is_cancelled:
        registering = asyncio.ensure_future(partition.register(0))
        await script.silent.wait()
        registering.cancel()
        await asyncio.wait([registering])
    else:
        with pytest.raises(ServerRefused):
            await partition.register(0)
    assert partition.state.abandoned is AbandonedRequests.REGISTRATIONS
    script.respond_with(unregistered())
    await partition.release()
    assert script.requests[-1].opType == OP_UNREGISTER


async def test_a_seek_does_not_register_a_partition_released_meanwhile() -> None:
    """Another object may hold the partition by then, whose position the seek would move."""
    script = Script()
    partition = await registered_partition(script)

    async def down() -> Exception:
        await partition.release()
        return Unreachable("down")

    script.respond_with(down, unregistered(), registered(560), unregistered())
    with pytest.raises(LaneRevoked):
        await partition.seek(560)
    assert [request.opType for request in script.requests] == [OP_REGISTER, OP_REGISTER, OP_UNREGISTER]


async def test_a_jump_past_unread_messages_is_a_gap() -> None:
    script = Script(pack(280))
    partition = await registered_partition(script, offset=28, is_alone=True)
    with pytest.raises(GapError, match="offset 28 was expected, but the Broker continued at offset 280") as gap:
        await partition.fetch()
    assert gap.value.resume == (280, 0)
    with pytest.raises(GapError):
        await partition.fetch()


async def test_a_jump_in_a_store_with_other_partitions_is_only_reported(caplog: pytest.LogCaptureFixture) -> None:
    """The deleted data may have been that of the other partitions: nothing says that it had messages of this one."""
    script = Script(pack(280))
    partition = await registered_partition(script, offset=28)
    assert (await partition.fetch()).offset == 280
    assert "deleted data of the store from offset 28 to 280" in caplog.text
    assert partition.counters.possible_gaps == 1


async def test_a_move_past_other_partitions_is_no_gap(caplog: pytest.LogCaptureFixture) -> None:
    """A get without data moves the position past their entries, and its response does not say how far."""
    partition = await partition_without_data(Script(), is_alone=False)
    partition._context.script.respond_with(pack(280))  # type: ignore[attr-defined]
    assert (await partition.fetch()).offset == 280
    assert not caplog.text


async def test_nothing_but_a_deletion_moves_a_partition_that_is_alone_in_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_registration.PartitionRegistration, "_find_offset", _same_offset)
    partition = await partition_without_data(Script(), is_alone=True)
    partition._context.script.respond_with(pack(280), registered(280))  # type: ignore[attr-defined]
    with pytest.raises(GapError, match="offset 56 was expected, but the Broker continued at offset 280"):
        await partition.fetch()


async def test_a_queried_position_shows_the_messages_that_a_get_without_data_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_registration.PartitionRegistration, "_find_offset", _same_offset)
    partition = await partition_without_data(Script(), is_alone=True)
    partition._context.script.respond_with(committed(280), registered(280))  # type: ignore[attr-defined]
    await partition.commit_late(asyncio.get_running_loop().time())
    with pytest.raises(GapError, match="offset 56 was expected, but the Broker continued at offset 280"):
        await partition.fetch()


@pytest.mark.parametrize("start", [56, 168], ids=["nothing deleted", "deleted"])
@pytest.mark.parametrize("found", [pack(280), refused(404)], ids=["data", "no data"])
async def test_after_an_outage_reading_resumes_by_registering_at_the_confirmed_offset(
    start: int, found: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """During the outage, retention may have deleted messages that arrived after the last get without data."""
    monkeypatch.setattr(partition_registration.PartitionRegistration, "_find_offset", _same_offset)
    script = Script()
    partition = await partition_without_data(script, is_alone=False)
    partition._reader._answered_at = float("-inf")
    partition.state.has_moved = found == pack(280)
    script.respond_with(found, registered(start), pack(start))
    assert (await partition.fetch()).offset == start
    assert script.requests[5].currOffset == 56
    assert ("deleted data of the store from offset 56 to 168" in caplog.text) == (start == 168)


async def partition_without_data(script: Script, *, is_alone: bool) -> HeldPartition:
    """Return a partition whose messages up to offset 56 are confirmed, after a get without data."""
    script.respond_with(pack(0), committed(56), refused(404))
    partition = await registered_partition(script, is_alone=is_alone)
    await partition.fetch()
    partition.confirm()
    await partition.commit_confirmed()
    assert await partition.poll() is None
    return partition


async def _same_offset(registration: object, offset: int) -> tuple[int, None]:
    """Stand for a Broker that has not restarted."""
    return offset, None


async def test_a_reader_far_behind_queries_the_end_of_each_pack() -> None:
    far = pack_reader.FAR_BEHIND_BYTES + 1
    script = Script(pack(0, lag=far), committed(56), pack(56, lag=far), committed(112), pack(280))
    partition = await registered_partition(script)
    for _ in range(2):
        await partition.fetch()
        partition.confirm()
    with pytest.raises(GapError, match="offset 112"):
        await partition.fetch()


async def test_messages_of_other_topics_between_packs_are_no_gap() -> None:
    script = Script(pack(0), pack(5600))
    partition = await registered_partition(script)
    await partition.fetch()
    partition.confirm()
    assert (await partition.fetch()).offset == 5600


async def test_a_broker_that_returns_to_a_lower_offset_is_logged_and_read_from_it(caplog: pytest.LogCaptureFixture) -> None:
    script = Script(pack(560), pack(280))
    partition = await registered_partition(script, offset=560)
    await partition.fetch()
    partition.confirm()
    with caplog.at_level(logging.WARNING):
        assert (await partition.fetch()).offset == 280
    assert "goes back from offset 560 to 280" in caplog.text


@pytest.mark.parametrize("confirm", [True, False])
async def test_a_release_confirms_a_confirmed_pack_only(confirm: bool) -> None:
    """The commit also returns where the pack ends."""
    script = Script(pack(0), *([committed(56)] if confirm else []), unregistered())
    partition = await registered_partition(script)
    await partition.fetch()
    if confirm:
        partition.confirm()
    await partition.release()
    assert [request.lastPackConsumed for request in script.requests[2:-1]] == [True] * confirm
    assert (script.requests[-1].opType, script.requests[-1].readStatus) == (OP_UNREGISTER, 1)
    assert partition._context.ended == [partition]
    with pytest.raises(LaneRevoked):
        await partition.fetch()


async def test_a_release_confirms_with_its_last_request_if_the_commit_was_refused() -> None:
    script = Script(pack(0), refused_commit(500), unregistered())
    partition = await registered_partition(script)
    await partition.fetch()
    partition.confirm()
    await partition.release()
    assert (script.requests[-1].opType, script.requests[-1].readStatus) == (OP_UNREGISTER, 0)


async def test_a_revocation_waits_for_the_unconfirmed_pack() -> None:
    script = Script(pack(0), committed(56), unregistered())
    partition = await registered_partition(script)
    await partition.fetch()
    revoking = asyncio.ensure_future(partition.revoke())
    await asyncio.sleep(0.01)
    assert not revoking.done()
    partition.confirm()
    await revoking
    assert script.requests[-2].lastPackConsumed
    assert script.requests[-1].opType == OP_UNREGISTER


async def test_the_wait_of_a_revocation_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_module, "CONFIRM_WAIT_S", 0.01)
    script = Script(pack(0), unregistered())
    partition = await registered_partition(script)
    await partition.fetch()
    await partition.revoke()
    partition.confirm()  # too late, so it has no effect
    assert (script.requests[-1].opType, script.requests[-1].readStatus) == (OP_UNREGISTER, 1)


async def test_a_pack_that_arrives_after_the_revocation_is_not_confirmed() -> None:
    go = asyncio.Event()

    async def late() -> object:
        await go.wait()
        return pack(0)

    script = Script(late, unregistered())
    partition = await registered_partition(script)
    fetching = asyncio.ensure_future(partition.fetch())
    await asyncio.sleep(0.01)
    revoking = asyncio.ensure_future(partition.revoke())
    await asyncio.sleep(0.01)
    go.set()
    await revoking
    with pytest.raises(LaneRevoked):
        await fetching
    assert (script.requests[-1].opType, script.requests[-1].readStatus) == (OP_UNREGISTER, 1)


async def test_a_late_commit_that_fails_again_and_again_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fail = refused(500)
    script = Script(pack(0), fail, fail, fail, committed(56), pack(56), fail, fail, fail, fail)
    partition = await registered_partition(script)
    for _ in range(2):
        await partition.fetch()
        partition.confirm()
        for _ in range(4):
            await partition.commit_late(asyncio.get_running_loop().time() + 10)
    assert caplog.text.count("failed, the next read request") == 2, "once until a commit succeeds"


async def test_a_confirmation_without_a_next_get_is_committed_after_a_while() -> None:
    script = Script(pack(0), committed(56), pack(56))
    partition = await registered_partition(script)
    await partition.fetch()
    now = asyncio.get_running_loop().time()
    await partition.commit_late(now + 10)
    assert len(script.requests) == 2, "nothing was confirmed"
    partition.confirm()
    await partition.commit_late(now)
    assert len(script.requests) == 2, "it is not late yet"
    await partition.commit_late(now + 10)
    assert script.requests[2].lastPackConsumed
    await partition.fetch()
    assert confirmations(script) == [False, False]


async def test_a_forgotten_partition_is_not_read_while_the_master_is_silent() -> None:
    """While the Master does not respond, it may have assigned the partition to another member."""
    script = Script(registered(0), registered(0), pack(0))
    partition = await registered_partition(script)
    partition.on_heartbeat_failure(411, partition.state.generation)
    partition._context.master_seen_at -= 1000
    fetching = asyncio.ensure_future(partition.fetch())
    await asyncio.sleep(0.02)
    assert len(script.requests) == 1
    partition._context.master_seen_at += 1000
    assert (await fetching).offset == 0


async def test_a_confirmation_is_kept_when_the_next_get_is_cancelled_before_sending() -> None:
    """The get may wait for the read budget of other partitions; a release during this wait must still confirm the pack."""
    script = Script(pack(0), committed(56), unregistered())
    partition = await registered_partition(script)
    await partition.fetch()
    partition.confirm()
    for _ in range(4):
        await partition._context.budget.reserve(REF.broker)
    waiting = asyncio.ensure_future(partition.fetch())
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await partition.release()
    assert script.requests[-2].lastPackConsumed
    assert script.requests[-1].opType == OP_UNREGISTER


async def test_a_heartbeat_failure_of_an_earlier_registration_is_ignored() -> None:
    """The heartbeat concerned a client id that the partition no longer has."""
    script = Script(ConnectionLost("gone"), unregistered(), registered(0), pack(0))
    partition = await registered_partition(script)
    run = partition.state.generation
    await partition.fetch()
    partition.on_heartbeat_failure(412, run)
    partition.on_heartbeat_failure(411, run)
    assert partition.state.is_registered
    partition.on_heartbeat_failure(412, partition.state.generation)
    assert partition.revoked.is_set()


async def test_a_failed_seek_changes_nothing() -> None:
    """After a gap, nothing is read behind it until a seek succeeds."""
    script = Script(pack(280))
    partition = await registered_partition(script, offset=28, is_alone=True)
    with pytest.raises(GapError):
        await partition.fetch()
    script.respond_with(*[ConnectionLost("no Broker just now")] * 5)
    with pytest.raises(ConnectionLost):
        await partition.seek(280)
    with pytest.raises(GapError):
        await partition.fetch()
    script.respond_with(unregistered(), registered(280), pack(280))
    await partition.seek(280)
    assert (await partition.fetch()).offset == 280


async def test_a_partition_revoked_at_a_gap_cannot_be_moved() -> None:
    script = Script(pack(280), unregistered())
    partition = await registered_partition(script, offset=28, is_alone=True)
    with pytest.raises(GapError):
        await partition.fetch()
    await partition.revoke()
    for attempt in (partition.seek(280), partition.fetch()):
        with pytest.raises(LaneRevoked):
            await attempt
    assert script.requests[-1].opType == OP_UNREGISTER
    assert partition._context.ended == [partition]


async def test_concurrent_releases_share_one_request() -> None:
    go = asyncio.Event()

    async def slow() -> object:
        await go.wait()
        return unregistered()

    script = Script(pack(0), slow)
    partition = await registered_partition(script)
    await partition.fetch()
    releases = [asyncio.ensure_future(partition.release()) for _ in range(2)]
    await asyncio.sleep(0)
    releases[0].cancel()
    await asyncio.sleep(0.01)
    await partition.release(asyncio.get_running_loop().time())  # this deadline has passed: the call returns at once
    assert not releases[1].done()
    go.set()
    await releases[1]
    assert [request.opType for request in script.requests if hasattr(request, "opType")] == [OP_REGISTER, OP_UNREGISTER]
