"""Stops a query between two batches, with a file that its source checks.

Spark's own `stop` kills the tasks of the running batch. So the driver creates a stop file. The source runs in another process on
the same machine. When the source finds the file, it reports to Spark that there is nothing new, and creates a second file. Spark
calls the source only after the previous batch is committed. So after the second file exists, the query can be stopped without
interrupting a batch.
"""

from pathlib import Path


class StopFile:
    """The stop request for one run of a query. The driver uses `request` and `is_confirmed`, the source uses `confirm`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._confirmation = path.with_name(path.name + ".obeyed")

    def request(self) -> None:
        """Request that no further batch begins."""
        self.path.touch()

    def confirm(self) -> bool:
        """Return whether a stop is requested. If so, confirm it: then the source must not begin another batch."""
        if not self.path.exists():
            return False
        self._confirmation.touch()
        return True

    @property
    def is_confirmed(self) -> bool:
        """Whether the source has confirmed the request: no further batch begins."""
        return self._confirmation.exists()
