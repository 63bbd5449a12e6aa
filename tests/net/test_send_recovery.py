"""The recovery of a send queue: it connects while sends wait, and lets the queue send afterwards."""

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from mqbridge.errors import ClusterError, Failure, MqbridgeError, RemoteProtocolError
from mqbridge.net.send_recovery import SendRecovery
from mqbridge.net.waiting_sends import State, WaitingSends
from tests.kit.conversation import until

LOST, REFUSED = ClusterError("lost"), RemoteProtocolError("refused")


class Queue:
    """A queue with one waiting send; `attempts` are the results of its attempts to connect."""

    def __init__(self, *attempts: Exception | None) -> None:
        self.sends: WaitingSends[Any] = WaitingSends(in_order=False)
        self.sends.waiting.append(Mock())
        self.attempts = list(attempts)
        self.reasons: list[MqbridgeError | None] = []
        self.react: Callable[[MqbridgeError], None] = lambda _: None
        self.sent = 0
        self.recovery = SendRecovery(self.sends, "recovery", connect=self.connect, on_error=self.on_error, send=self.send)

    async def connect(self, reason: MqbridgeError | None) -> None:
        assert self.sends.link is State.PAUSED
        self.reasons.append(reason)
        await asyncio.sleep(0)
        result = self.attempts.pop(0)
        if result is not None:
            raise result

    def on_error(self, error: MqbridgeError) -> None:
        self.react(error)

    def send(self) -> None:
        assert self.sends.link is State.SENDING
        self.sent += 1


async def test_it_connects_until_it_succeeds_and_then_sends() -> None:
    queue = Queue(LOST, REFUSED, None)
    queue.recovery.start(None)
    queue.recovery.start(LOST)  # it runs already
    await until(lambda: queue.sent)
    assert queue.reasons == [None, LOST, REFUSED]
    queue.attempts.append(None)
    queue.recovery.start(LOST)
    await until(lambda: queue.sent == 2)


async def test_it_ends_when_nothing_waits_any_more() -> None:
    queue = Queue(LOST)
    queue.react = lambda _: queue.sends.waiting.clear()
    queue.recovery.start(None)
    await until(lambda: queue.sent)
    assert queue.reasons == [None]


async def test_after_a_bug_another_recovery_can_begin(caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue(ZeroDivisionError(), None)
    queue.recovery.start(None)
    await until(lambda: queue.sends.link is State.SENDING)
    assert "ZeroDivisionError" in caplog.text
    queue.sends.waiting.append(Mock())
    queue.recovery.start(None)
    await until(lambda: queue.sent)
    assert not queue.attempts


async def test_after_a_bug_no_send_waits_for_ever() -> None:
    """Nothing would let it be sent if no other send followed."""
    queue, failed = Queue(ZeroDivisionError()), []
    queue.sends.waiting[0] = Mock(fail=failed.append)
    queue.recovery.start(None)
    await until(lambda: queue.sends.link is State.SENDING)
    (error,) = failed
    assert (error.failure, "ZeroDivisionError" in str(error)) == (Failure.FATAL, True)
    assert not queue.sends.waiting


async def test_a_closed_queue_stops_it() -> None:
    queue = Queue()
    queue.sends.waiting.clear()
    waiting = asyncio.Event()

    async def connect_for_ever(_: MqbridgeError | None) -> None:
        waiting.set()
        await asyncio.Event().wait()

    recovery = SendRecovery(queue.sends, "recovery", connect=connect_for_ever, on_error=queue.on_error, send=queue.send)
    queue.sends.waiting.append("a send")
    recovery.start(LOST)
    await waiting.wait()
    queue.sends.waiting.clear()
    queue.sends.close(LOST)
    await recovery.stop()
    assert (queue.sends.link, queue.sent) == (State.CLOSED, 0)
