"""Servers as context managers."""

from abc import ABC, abstractmethod
from typing import Self


class Started(ABC):
    """Started on entry and killed at the end, also when the start fails."""

    @abstractmethod
    def start(self) -> None:
        """Start and wait until it serves."""

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
