"""Loop prevention: drops messages whose origin is the target topic, and messages that passed through too many gateways.

A message's origin names the cluster and topic from which the last gateway read it: the cluster by its name in the configuration,
or by its identity if it was given by URL. Writing a message back there is the shortest loop, and is detected at once. A longer
loop, or one in which another gateway calls the cluster by another name, ends at the limit of hops.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from mqbridge.message import RESERVED_PREFIX, Message, Partition, Share, origin_prefix
from mqbridge.native import is_native

_origin = attrgetter("origin")
_ORIGIN = f"{RESERVED_PREFIX}origin".encode()


class LoopGuard:
    """Drops looped messages for one target. `on_looped` is called with the number of messages dropped from a share, if any.

    `topics` are all names of the target topic. `cluster` is the name of its cluster, `identity` the text that names the real
    cluster (`ClusterModel.identity`), None if unknown, and `other_names` are further names of the cluster in the configuration.
    An origin may contain any of them.
    """

    __slots__ = ("_max_hops", "_on_looped", "_target_prefixes")

    def __init__(
        self,
        cluster: str,
        topics: Iterable[str],
        max_hops: int,
        on_looped: Callable[[int], None],
        identity: str | None = None,
        other_names: Iterable[str] = (),
    ) -> None:
        # Every origin that names the target topic begins with `CLUSTER|TOPIC|`; `[:-1]` removes the `|` of the empty partition.
        clusters = dict.fromkeys([cluster, *([] if identity is None else [identity]), *other_names])
        self._target_prefixes = tuple(
            origin_prefix(Partition(name, topic, "", 0))[:-1] for topic in dict.fromkeys(topics) for name in clusters
        )
        self._max_hops = max_hops
        self._on_looped = on_looped

    def keep(self, share: Share, *, needs_messages: bool = True) -> Share:
        """Return the messages that may be written; the same share if that is all of them.

        Messages that no gateway wrote have no origin. With `needs_messages`, the messages are decoded later anyway: each is
        checked, which takes 20 ns. Otherwise messages that are not decoded yet are decoded and checked only if the received bytes
        contain the name of the origin property.
        """
        if not (needs_messages or share.is_edited or share.batch.is_decoded or share.batch.may_contain(_ORIGIN)):
            return share
        kept = self._allowed_indexes(share.messages)
        if kept is None:
            return share
        self._on_looped(share.count - len(kept))
        return share.subset(kept)

    def _allowed_indexes(self, messages: Sequence[Message]) -> Sequence[int] | None:
        """Return the indexes of the messages that may be written; None if that is all of them."""
        prefixes, max_hops = self._target_prefixes, self._max_hops
        if is_native(messages):
            kept: Sequence[int] | None = messages.outside_of_loops(prefixes, max_hops)  # type: ignore[attr-defined]
            return kept
        if not any(map(_origin, messages)):
            return None
        kept = [
            index
            for index, message in enumerate(messages)
            if message.origin is None or (message.hops < max_hops and not message.origin.startswith(prefixes))
        ]
        return None if len(kept) == len(messages) else kept
