"""Base class of servers that are context managers."""

from abc import ABC, abstractmethod
from typing import Self


class Started(ABC):
    """A server that a `with` statement starts, and kills at the end or if the start fails."""

    @abstractmethod
    def start(self) -> None:
        """Start the server and wait until it is ready."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the server and delete its data."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
