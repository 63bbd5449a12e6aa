"""Loop prevention: drops messages whose origin is the target topic, and messages that passed too many gateways.

A message's origin names the cluster and topic from which its last gateway took it. Writing it back there is the shortest loop,
recognized at once; a longer loop, or one through gateways that name clusters differently, ends at the limit of hops.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from mqbridge.message import RESERVED_PREFIX, Message, Partition, Share, origin_prefix
from mqbridge.native import is_native

_origin = attrgetter("origin")
_ORIGIN = f"{RESERVED_PREFIX}origin".encode()


class LoopGuard:
    """Drops looped messages for one target. `looped` gets the number of dropped messages, for each share that has any."""

    __slots__ = ("_home", "_looped", "_max_hops")

    def __init__(self, cluster: str, topics: Iterable[str], max_hops: int, looped: Callable[[int], None]) -> None:
        # Prefixes of origins of the target topic, up to the partition, for every name of the topic.
        self._home = tuple(origin_prefix(Partition(cluster, topic, "", 0))[:-1] for topic in dict.fromkeys(topics))
        self._max_hops = max_hops
        self._looped = looped

    def keep(self, share: Share, *, needs_messages: bool = True) -> Share:
        """Return the messages that may be written; the same object if all may.

        Messages from native producers have no origin. If the messages are needed anyway, checking each takes 20 ns; otherwise the
        received bytes are searched for the name of the property, without decoding.
        """
        if not (needs_messages or share.is_edited or share.batch.is_decoded or share.batch.may_contain(_ORIGIN)):
            return share
        kept = self._outside_of_loops(share.messages)
        if kept is None:
            return share
        self._looped(share.count - len(kept))
        return share.subset(kept)

    def _outside_of_loops(self, messages: Sequence[Message]) -> Sequence[int] | None:
        """Return the indexes of the messages that may be written; None if all may."""
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
