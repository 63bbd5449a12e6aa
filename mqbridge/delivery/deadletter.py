"""Dead letters: messages that the target refuses, stored unchanged in a dead-letter topic, with the reason and the source.

A dead letter keeps the payload, the properties and every other field of the message. That of an unreadable message is raw: see
`Message.defect`. These properties are added:

    mqbridge.dead.reason   the error of the target (or of the decoder)
    mqbridge.dead.route    the route that could not deliver the message
    mqbridge.dead.target   the topic that refused the message
    mqbridge.origin        the source partition and position; the outbound adds it, as to every message that it stamps

The source message is acknowledged only after the dead-letter topic has stored the dead letter.
"""

from collections.abc import Sequence

from mqbridge.adapter.known_brokers import stable_number
from mqbridge.adapter.outbound import Outbound
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Batch, Message, Partition, Share, format_position

MAX_REASON_CHARS = 1000
"""Maximum length of `mqbridge.dead.reason`; longer reasons are cut, because every dead letter carries one."""


class DeadLetters:
    """The dead-letter topic of a route. `label` (`cluster/topic`) names it in logs and errors."""

    def __init__(self, route: str, outbound: Outbound, label: str) -> None:
        self.outbound = outbound
        self.label = label
        self.is_broken = False
        """Set by whoever finds that the outbound cannot be used any more."""
        self._route = route

    def partition_of(self, source: Partition) -> int:
        """Return the partition for the dead letters of a source partition: always the same, so that they keep their order.

        It depends on the name of the source partition, because an index may change when brokers do. Chunks of a message that are
        put back in another order could not be joined.
        """
        return stable_number(source) % self.outbound.partitions

    async def send(self, partition: int, share: Share) -> Receipt:
        """Store dead letters. An outbound that fails, or is given up, is marked as broken. Raises ClusterError."""
        try:
            return await self.outbound.send(partition, share)
        except Exception as error:
            self.is_broken = True
            raise as_cluster_error(error) from error
        except BaseException:
            self.is_broken = True
            raise

    def make(self, target: str, messages: Sequence[Message], failures: Sequence[MessageFailure], source: Partition) -> Share:
        """Make dead letters of the messages that `target` refused: those at the indexes of `failures` in `messages`.

        The `defect` is cleared, because outbounds write no message with a defect; the reason contains its text.
        """
        route_and_target = ("mqbridge.dead.route", self._route), ("mqbridge.dead.target", target)
        added: tuple[tuple[str, str], ...] = ()
        reason, letters = None, list[Message]()
        for failure in failures:
            if failure.reason != reason:  # consecutive equal reasons share one cut string, to save memory
                reason = failure.reason
                added = ("mqbridge.dead.reason", reason[:MAX_REASON_CHARS]), *route_and_target
            message = messages[failure.index]
            letters.append(message.replace(properties=(message.properties + added) if message.properties else added, defect=None))
        return Share(Batch.of(letters, source))


def as_cluster_error(error: BaseException) -> ClusterError:
    """Return the error, or a FATAL ClusterError in place of one that no outbound may raise."""
    return error if isinstance(error, ClusterError) else ClusterError(str(error) or repr(error), Failure.FATAL)


def describe(message: Message, source: Partition) -> str:
    """Return a text that names the message by its source partition and position."""
    return f"the message of {source} at position {format_position(message.position)}"
