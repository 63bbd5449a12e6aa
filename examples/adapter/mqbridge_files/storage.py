"""The files: partitions of lines, and groups with their offsets and members. Knows nothing of messages.

File access is short and local, so it is done where it is needed; a client of a server would await it.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol


class PartitionFile:
    """The lines of one partition, with an index of where each begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begins = [0]
        """Where each line begins, and at last where the next one will."""

    @property
    def count(self) -> int:
        """How many complete lines there are now. What stands behind the last line break is still being written."""
        if self.path.stat().st_size > self._begins[-1]:
            with self.path.open("rb") as file:
                file.seek(self._begins[-1])
                for line in file:
                    if line.endswith(b"\n"):
                        self._begins.append(self._begins[-1] + len(line))
        return len(self._begins) - 1

    def lines(self, first: int, most: int) -> list[bytes]:
        """Up to that many lines from the line `first` on."""
        end = min(first + most, self.count)
        if end <= first:
            return []
        with self.path.open("rb") as file:
            file.seek(self._begins[first])
            return file.read(self._begins[end] - self._begins[first]).splitlines(keepends=True)

    def append(self, lines: Sequence[bytes]) -> int:
        """Store all of these or none; the number of the first. Raises OSError."""
        first = self.count
        os.truncate(self.path, self._begins[-1])  # a writer that was killed may have left half a line
        try:
            with self.path.open("ab") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            os.truncate(self.path, self._begins[-1])
            raise
        return first


Key = tuple[str, int]
"""A topic and the number of a partition."""


class Lane(Protocol):
    """What a group knows of a lane: to whom it belongs, and how to say that it does no longer."""

    @property
    def member(self) -> object:
        """The member that has it."""

    def end(self) -> None:
        """It was taken away or released."""


Wanted = Callable[[], Sequence[Key]]
Assign = Callable[[Key], Lane]


class Group:
    """How far a group has read, and which of its members has which partition. All members are in this process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._members: dict[object, tuple[Wanted, Assign]] = {}
        self._lanes: dict[Key, Lane] = {}
        self.offsets: dict[Key, int] = {}
        if path.exists():
            self.offsets = {(topic, number): line for topic, number, line in json.loads(path.read_text())}

    def commit(self, key: Key, line: int) -> None:
        """The group has everything before this line; written at once, and replaced as a whole."""
        self.offsets[key] = line
        self._path.parent.mkdir(exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps([(*key, line) for key, line in sorted(self.offsets.items())]))
        new.replace(self._path)

    def join(self, member: object, wanted: Wanted, assign: Assign) -> None:
        """Become a member: `wanted` says which partitions it wants, `assign` makes a lane of one that it gets."""
        self._members[member] = (wanted, assign)
        self.deal()

    def leave(self, member: object) -> None:
        """Its partitions go to the others."""
        self._members.pop(member, None)
        for key in [key for key, lane in self._lanes.items() if lane.member is member]:
            self._lanes.pop(key).end()
        self.deal()

    def release(self, lane: Lane) -> None:
        """This lane ends; its partition is dealt again when members or partitions come or go."""
        for key in [key for key, held in self._lanes.items() if held is lane]:
            self._lanes.pop(key).end()

    def deal(self) -> None:
        """Deal every partition in turn to the members that want it; who has one that is due to another loses it."""
        wanted = {member: set(wanted()) for member, (wanted, _) in self._members.items()}
        for key in sorted(set().union(*wanted.values())):
            wanting = [member for member, keys in wanted.items() if key in keys]
            due, lane = wanting[key[1] % len(wanting)], self._lanes.get(key)
            if lane is None or lane.member is not due:
                if lane is not None:
                    lane.end()
                self._lanes[key] = self._members[due][1](key)


class Folder:
    """Everything below one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partitions: dict[Key, PartitionFile] = {}
        self.groups: dict[str, Group] = {}

    def topics(self) -> list[str]:
        """The names of all topics."""
        return sorted(path.name for path in self.path.iterdir() if path.is_dir() and not path.name.startswith("."))

    def partitions(self, topic: str) -> list[PartitionFile]:
        """The partitions of a topic in order; none where there is no such topic."""
        count = len(list((self.path / topic).glob("*.jsonl"))) if topic else 0
        for number in range(count):
            self._partitions.setdefault((topic, number), PartitionFile(self.path / topic / f"{number}.jsonl"))
        return [self._partitions[topic, number] for number in range(count)]

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic, or grow it."""
        (self.path / topic).mkdir(parents=True, exist_ok=True)
        for number in range(partitions):
            (self.path / topic / f"{number}.jsonl").touch()

    def group(self, name: str) -> Group:
        """The group; a new one has read nothing."""
        return self.groups.setdefault(name, Group(self.path / ".groups" / f"{name}.json"))


_folders: dict[Path, Folder] = {}


def open_folder(path: Path) -> Folder:
    """The folder; all clusters of this process share it, and so its groups."""
    path.mkdir(parents=True, exist_ok=True)
    return _folders.setdefault(path.resolve(), Folder(path.resolve()))
