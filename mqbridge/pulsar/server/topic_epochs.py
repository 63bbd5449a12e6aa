"""Topic epochs: how often a producer has got a partition for itself. They outlive the producers, as those of brokers do.

A producer that comes back names its epoch; if another one has had the partition since, it is refused. With a state file, epochs
outlive the process, too.
"""

from collections import OrderedDict

from mqbridge.listener.notes import Notes

KIND = "topic epoch"
"""The kind of the notes."""
MAX_EPOCHS = 10_000
"""Maximum number of partitions whose epochs are kept; beyond it, that of the partition which has changed hands least recently is
forgotten."""
NO_EPOCH = -1
"""The epoch of a partition that no producer has had for itself."""


class TopicEpochs:
    """The epochs of all partitions of a listener."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._epochs = OrderedDict((name, int(value)) for name, value in notes.load(KIND).items() if value.isdecimal())

    def get(self, topic: str, partition: int) -> int:
        """Return the epoch of a partition, NO_EPOCH if none is known."""
        return self._epochs.get(_name(topic, partition), NO_EPOCH)

    def keep(self, topic: str, partition: int, epoch: int) -> None:
        """Keep an epoch as long as the process lives."""
        if epoch > NO_EPOCH:
            name = _name(topic, partition)
            self._epochs[name] = max(epoch, self._epochs.get(name, NO_EPOCH))
            self._epochs.move_to_end(name)

    async def record(self, topic: str, partition: int, epoch: int) -> None:
        """Keep an epoch, and wait until it is in the state file. Raises ClusterError if it cannot be written."""
        self.keep(topic, partition, epoch)
        await self._notes.write(KIND, _name(topic, partition), str(self.get(topic, partition)))
        while len(self._epochs) > MAX_EPOCHS:
            forgotten, _ = self._epochs.popitem(last=False)
            await self._notes.write(KIND, forgotten, None)


def _name(topic: str, partition: int) -> str:
    return f"{topic}\n{partition}"
