"""How a query is stopped between two batches: by a file that its source looks for.

Spark's own `stop` kills the tasks of the batch that runs. So the driver makes a file, and the source, which lives in another
process of the same machine, answers from then on that there is nothing new, and makes a second file. Spark asks the source only
when the batch before is done and noted: once the second file is there, stopping interrupts nothing.
"""

from pathlib import Path


class StopFile:
    """The stop of one query, for one run of it. The driver uses `ask` and `is_obeyed`, the source `obey`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._answer = path.with_name(path.name + ".obeyed")

    def ask(self) -> None:
        """Let no batch begin any more."""
        self.path.touch()

    def obey(self) -> bool:
        """Whether no batch is to begin any more; the one who asked then sees that it was heard."""
        if not self.path.exists():
            return False
        self._answer.touch()
        return True

    @property
    def is_obeyed(self) -> bool:
        """Whether the source has said that there is nothing new since it was asked to."""
        return self._answer.exists()
