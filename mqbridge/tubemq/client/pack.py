"""A pack of messages, and what a Broker waits to hear of it.

A partition has one pack out at a time. It is confirmed as a whole, or it comes again.
"""

import asyncio
from collections.abc import Sequence

from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage

NOTHING, OUT, CONFIRMED, REJECTED = range(4)
"""What the Broker waits to hear of: nothing, a pack that is being worked on, one that is done with, one to be read again."""


class Pack:
    """What one get returned. `offset` is where the read started; `lag_bytes` are unread after it; `size` is its bytes."""

    __slots__ = ("lag_bytes", "max_offset", "messages", "offset", "size")

    def __init__(self, messages: Sequence[TransferedMessage], offset: int, lag_bytes: int, max_offset: int, size: int) -> None:
        self.messages, self.offset, self.lag_bytes, self.max_offset, self.size = messages, offset, lag_bytes, max_offset, size


class Outstanding:
    """The pack that was handed out last. Times are of the event loop."""

    __slots__ = ("confirmed_at", "last", "quiet", "state", "taken_at")

    def __init__(self) -> None:
        self.state = NOTHING
        self.last: Pack | None = None
        self.taken_at = self.confirmed_at = 0.0
        self.quiet = asyncio.Event()
        """No get is under way and no pack is out."""
        self.quiet.set()

    @property
    def pack(self) -> Pack | None:
        """The pack that is out."""
        return self.last if self.state == OUT else None

    @property
    def unread(self) -> bool:
        """A pack was handed out that must be read again unless it is confirmed."""
        return self.state in (OUT, REJECTED)

    def asked(self) -> None:
        """A get goes out: whatever there was to say of the pack before travels with it."""
        self.state = NOTHING
        self.quiet.clear()

    def answered(self) -> None:
        """The get is over."""
        if self.state != OUT:
            self.quiet.set()

    def arrived(self, pack: Pack, now: float) -> None:
        """It brought this."""
        self.last, self.taken_at, self.state = pack, now, OUT

    def confirm(self, now: float) -> None:
        """The pack that is out is consumed."""
        if self.state == OUT:
            self.state, self.confirmed_at = CONFIRMED, now
            self.quiet.set()

    def reject(self) -> None:
        """The pack that is out is to come again."""
        if self.state == OUT:
            self.state = REJECTED
            self.quiet.set()

    def forget(self) -> None:
        """The Broker waits to hear of nothing any more."""
        self.state = NOTHING
        self.quiet.set()
