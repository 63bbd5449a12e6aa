"""Short texts that a server keeps across its restarts, by kind and name."""

from mqbridge.groups.store import GroupStore, NoteKey


class Notes:
    """The notes of one listener, in the state file. Without a state file nothing is kept."""

    def __init__(self, store: GroupStore | None, listener: str, cluster: str) -> None:
        """`listener` and `cluster` are their names."""
        self._store, self._listener, self._cluster = store, listener, cluster

    def load(self, kind: str) -> dict[str, str]:
        """Return all notes of a kind, by name."""
        return {} if self._store is None else self._store.notes(self._listener, self._cluster, kind)

    async def write(self, kind: str, name: str, value: str | None) -> None:
        """Write a note, or delete it (None). Raises ClusterError if the state file cannot be written."""
        if self._store is not None:
            await self._store.write_note(NoteKey(self._listener, self._cluster, kind, name), value)
