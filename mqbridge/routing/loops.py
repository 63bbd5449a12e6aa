"""Keeps messages from going round: what came from the topic that it would be written to, and what was bridged too often.

A message's origin names the cluster and topic that its last gateway took it from. Writing it back there is the shortest loop of
all, seen at once; a longer one, or one through gateways that name clusters differently, ends at the limit of hops.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from mqbridge.message import RESERVED_PREFIX, Message, Partition, Share, origin_prefix
from mqbridge.native import is_native

_origin = attrgetter("origin")
_ORIGIN = f"{RESERVED_PREFIX}origin".encode()


class LoopGuard:
    """What one target must not be given. `looped` is told how many messages were held back each time."""

    __slots__ = ("_home", "_looped", "_max_hops")

    def __init__(self, cluster: str, topics: Iterable[str], max_hops: int, looped: Callable[[int], None]) -> None:
        # What an origin of the target topic begins with, up to its partition, for every spelling of the topic.
        self._home = tuple(origin_prefix(Partition(cluster, topic, "", 0))[:-1] for topic in dict.fromkeys(topics))
        self._max_hops = max_hops
        self._looped = looped

    def keep(self, share: Share, *, needs_messages: bool = True) -> Share:
        """What may be written; the same object when that is all.

        Messages from native producers have no origin. Where somebody needs the messages anyway it takes 20 ns each to see that
        none of them has one; where nobody does, the bytes that arrived are searched for the name of the property.
        """
        if not (needs_messages or share.is_edited or share.batch.is_decoded or share.batch.mentions(_ORIGIN)):
            return share
        kept = self._outside_of_loops(share.messages)
        if kept is None:
            return share
        self._looped(share.count - len(kept))
        return share.part(kept)

    def _outside_of_loops(self, messages: Sequence[Message]) -> Sequence[int] | None:
        """The indexes of the messages that may be written; None if that is all."""
        home, most = self._home, self._max_hops
        if is_native(messages):
            kept: Sequence[int] | None = messages.outside_of_loops(home, most)  # type: ignore[attr-defined]
            return kept
        if not any(map(_origin, messages)):
            return None
        kept = [
            index for index, m in enumerate(messages) if m.origin is None or (m.hops < most and not m.origin.startswith(home))
        ]
        return None if len(kept) == len(messages) else kept
