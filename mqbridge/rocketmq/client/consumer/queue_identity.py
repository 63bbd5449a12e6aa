"""Notices that a queue was deleted and made anew, although its topic, broker and number are the same.

The new queue counts its offsets from 0 again. Once it has as many messages as we have read, a pull at our position succeeds, and
nothing in its response shows that the messages below it were never read. Offsets that go back are noticed without this module.

The proof is a message that we have read, the anchor: as long as the queue is the same, it stays at its offset. It is requested
again before a response is accepted, if CHECK_S have passed since the last check, or at once if something suspicious has happened.
So a new queue is noticed before any of its messages is delivered if the reader waits for messages, and at most CHECK_S later
if messages arrive all the time.
"""

import asyncio
from enum import Enum
from typing import NamedTuple

from mqbridge.rocketmq.client.consumer import pull_request
from mqbridge.rocketmq.client.consumer.pull_request import Puller, PullResponse
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords, first_record_identity, stored_ms

CHECK_S = 5.0
"""The time after which the anchor is requested again. A request of one message in 5 s costs little beside the pulls."""


class Verdict(Enum):
    """Result of a check of the anchor."""

    SAME = "the anchor is at its offset"
    ANEW = "another message is at its offset, or before it: the queue was made anew"
    BACK = "the queue ends before it: its last messages are lost, or it was made anew"
    UNKNOWN = "the anchor was deleted, or could not be read"


class Anchor(NamedTuple):
    """A message that was read: its offset, and bytes that tell it from another message at this offset."""

    offset: int
    identity: bytes


class QueueIdentity:
    """Checks that the queue is the one from which messages were read; see the module. `puller` sends the requests."""

    def __init__(self, puller: Puller) -> None:
        self._puller = puller
        self._time = asyncio.get_running_loop().time
        self._anchor: Anchor | None = None
        """A message that was read; None without one."""
        self._checked_at = 0.0
        """Loop time at which the anchor was read or checked last."""
        self._has_unchecked = False
        """True if responses were accepted after the last check, without another one."""
        self._is_suspect = False
        self._was_sought = False
        """True once `seek_anchor` has requested the message before the start."""

    @property
    def anchor(self) -> Anchor | None:
        """A message that was read; None without one."""
        return self._anchor

    def restore(self, anchor: Anchor) -> None:
        """Begin with an anchor of an earlier assignment; it is checked before the first response is accepted."""
        self._anchor, self._is_suspect = anchor, True

    def suspect(self) -> None:
        """Make a check due: the topic was missing, a pull failed, or the offsets of the queue have gone back."""
        self._is_suspect = True

    def forget(self) -> None:
        """Forget the anchor: the next message that is read becomes a new one, or the one before the position is sought."""
        self._anchor = None
        self._has_unchecked = self._is_suspect = self._was_sought = False

    def is_due(self, *, found: bool) -> bool:
        """Return True if the anchor must be checked before a response is accepted; `found`: the response has messages."""
        if self._anchor is None:
            return False
        return self._is_suspect or ((found or self._has_unchecked) and self._time() - self._checked_at >= CHECK_S)

    def on_accepted(self, pulled: PulledRecords, *, is_checked: bool) -> None:
        """Note that a response with messages was accepted.

        Its first message becomes the anchor if there is none, or if the anchor was checked after the response had arrived
        (`is_checked`). After an earlier check the message may be of a new queue, which nothing would show from then on.
        """
        if self._anchor is None or is_checked:
            self._set_anchor(pulled.body)
        else:
            self._has_unchecked = True

    async def check(self) -> tuple[Verdict, PullResponse]:
        """Request the anchor; return the verdict and the response, which may also report a reset. Raises the errors of a pull."""
        anchor = self._anchor
        assert anchor is not None  # noqa: S101 - by is_due
        offset, identity = anchor
        response = await self._puller.pull(offset, None, hold=False, messages=1)
        verdict = _judge(anchor, response)
        if verdict is Verdict.BACK:
            first = await self._puller.pull(response.first, None, hold=False, messages=1)
            if first.is_reset:
                return Verdict.UNKNOWN, first
            if first.code == pull_request.FOUND and stored_ms(first_record_identity(first.body)[1]) > stored_ms(identity):
                verdict = Verdict.ANEW  # the first message of the queue was stored after one behind it
        if verdict in (Verdict.SAME, Verdict.UNKNOWN):
            self._checked_at = self._time()
            self._is_suspect = self._has_unchecked = False
        return verdict, response

    def lacks_anchor(self, position: int) -> bool:
        """Return True if `seek_anchor` must be called before a wait for messages at `position`: none was read yet."""
        return self._anchor is None and position > 0 and not self._was_sought

    async def seek_anchor(self, position: int) -> PullResponse:
        """Request the message before `position`, and make it the anchor if it exists.

        The response may also report a reset. Raises the errors of a pull.
        """
        response = await self._puller.pull(position - 1, None, hold=False, messages=1)
        self._was_sought = True
        if response.code == pull_request.FOUND and first_record_identity(response.body)[0] == position - 1:
            self._set_anchor(response.body)
        return response

    def _set_anchor(self, body: bytes) -> None:
        self._anchor = Anchor(*first_record_identity(body))
        self._checked_at = self._time()


def _judge(anchor: Anchor, response: PullResponse) -> Verdict:
    if response.code == pull_request.FOUND and first_record_identity(response.body) == anchor:
        return Verdict.SAME
    is_unreadable = response.remark in (pull_request.REMOVING, pull_request.FOUND_NULL)
    if response.is_reset or is_unreadable or response.first > anchor.offset:
        return Verdict.UNKNOWN
    return Verdict.BACK if response.end <= anchor.offset else Verdict.ANEW
