"""Keeps in the state file who has locked partitions, so that the next process of this gateway releases them after a kill.

Two processes never have one name: each membership gets a new one, and an earlier one is only named to release its locks. The lock
of the state file says that the earlier process has ended.
"""

import logging
from collections.abc import Sequence

from mqbridge.errors import ClusterError
from mqbridge.groups.store import GroupStore, NoteKey

log = logging.getLogger(__name__)

MAX_OWNERS = 16
"""Maximum number of recorded memberships of a group, of each process; the locks of earlier ones have expired by then."""
KIND = "lock owners"
"""The kind of the notes."""


class RecordedLockOwners:
    """See the module, and `mqbridge.adapter.inbound.LockOwners`."""

    def __init__(self, store: GroupStore, listener: str, cluster: str, topic: str, group: str) -> None:
        self._store, self._key = store, NoteKey(listener, cluster, KIND, f"{topic}\n{group}")

    @property
    def _owners(self) -> list[str]:
        return _lines(self._store.note(self._key))

    @property
    def abandoned(self) -> Sequence[str]:
        """The names that an earlier process has left, and this one has not released."""
        owners = self._owners
        return [owner for owner in _lines(self._store.earlier_note(self._key)) if owner in owners]

    async def record(self, owner: str) -> None:
        """Add a name. Those of an earlier process stay, however often this one has failed to lock anything."""
        abandoned = self.abandoned
        own = [each for each in self._owners if each not in abandoned]
        await self._write([*abandoned[-MAX_OWNERS:], *[*own, owner][-MAX_OWNERS:]])

    async def forget(self, owners: Sequence[str]) -> None:
        """Remove names."""
        if any(owner in owners for owner in self._owners):
            await self._write([owner for owner in self._owners if owner not in owners])

    async def _write(self, owners: Sequence[str]) -> None:
        try:
            await self._store.write_note(self._key, "\n".join(owners) or None)
        except ClusterError as error:
            log.warning("who locks partitions is not recorded: after a kill, nobody gets them for a while: %s", error)


def _lines(text: str | None) -> list[str]:
    return [] if text is None else text.split("\n")
