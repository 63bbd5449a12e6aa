"""The client: files of lines as partitions, and groups with offsets and members. It does not interpret the lines.

File access is local and short, so the methods simply block. The methods of a network client would be coroutines.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol


class PartitionFile:
    """The file of one partition, with an index of its lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begins = [0]
        """Byte offset of each line, followed by that of the next line to be written."""

    @property
    def count(self) -> int:
        """Number of complete lines. Bytes after the last line break belong to a line that is still being written."""
        if self.path.stat().st_size > self._begins[-1]:
            with self.path.open("rb") as file:
                file.seek(self._begins[-1])
                for line in file:
                    if line.endswith(b"\n"):
                        self._begins.append(self._begins[-1] + len(line))
        return len(self._begins) - 1

    def lines(self, first: int, max_lines: int) -> list[bytes]:
        """Return up to `max_lines` lines, beginning with the line number `first`."""
        end = min(first + max_lines, self.count)
        if end <= first:
            return []
        with self.path.open("rb") as file:
            file.seek(self._begins[first])
            return file.read(self._begins[end] - self._begins[first]).splitlines(keepends=True)

    def append(self, lines: Sequence[bytes]) -> int:
        """Append all of these lines or none; return the number of the first one. Raises OSError."""
        first = self.count
        os.truncate(self.path, self._begins[-1])  # remove the incomplete line of a killed writer, if any
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
"""Topic and partition number."""


class Lane(Protocol):
    """The part of a lane that a group uses."""

    @property
    def member(self) -> object:
        """The member that reads the partition."""

    def revoke(self) -> None:
        """Tell the lane that its partition was revoked or released."""


Wanted = Callable[[], Sequence[Key]]
"""Function of a member that returns the partitions that it wants now."""
Assign = Callable[[Key], Lane]
"""Function of a member that creates the lane of a partition."""


class Group:
    """Committed offsets of a group, and the assignment of partitions to its members. All members are in this process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._members: dict[object, tuple[Wanted, Assign]] = {}
        self._lanes: dict[Key, Lane] = {}
        self.offsets: dict[Key, int] = {}
        if path.exists():
            self.offsets = {(topic, number): line for topic, number, line in json.loads(path.read_text())}

    def commit(self, key: Key, line: int) -> None:
        """Store `line` as the next line to read."""
        self.offsets[key] = line
        self._write()

    def forget(self, topic: str) -> None:
        """Delete the offsets in a topic, and revoke its partitions."""
        for key in [key for key in self._lanes if key[0] == topic]:
            self._lanes.pop(key).revoke()
        self.offsets = {key: line for key, line in self.offsets.items() if key[0] != topic}
        self._write()

    def _write(self) -> None:
        """Replace the file of the group, at once and atomically."""
        self._path.parent.mkdir(exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps([(*key, line) for key, line in sorted(self.offsets.items())]))
        new.replace(self._path)

    def join(self, member: object, wanted: Wanted, assign: Assign) -> None:
        """Add a member. `wanted` returns the partitions of its topics; `assign` creates the lane of an assigned partition."""
        self._members[member] = (wanted, assign)
        self.rebalance()

    def leave(self, member: object) -> None:
        """Remove a member, and assign its partitions to the others."""
        self._members.pop(member, None)
        for key in [key for key, lane in self._lanes.items() if lane.member is member]:
            self._lanes.pop(key).revoke()
        self.rebalance()

    def release(self, lane: Lane) -> None:
        """Revoke one lane. Its partition is assigned again at the next `rebalance`."""
        for key in [key for key, held in self._lanes.items() if held is lane]:
            self._lanes.pop(key).revoke()

    def rebalance(self) -> None:
        """Assign each partition to one of the members that want it, in turn; revoke it from a member that must give it up."""
        wanted = {member: set(wanted()) for member, (wanted, _) in self._members.items()}
        for key in sorted(set().union(*wanted.values())):
            candidates = [member for member, keys in wanted.items() if key in keys]
            owner, lane = candidates[key[1] % len(candidates)], self._lanes.get(key)
            if lane is None or lane.member is not owner:
                if lane is not None:
                    lane.revoke()
                assign = self._members[owner][1]
                self._lanes[key] = assign(key)


class Folder:
    """The topics and groups below one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partitions: dict[Key, PartitionFile] = {}
        self.groups: dict[str, Group] = {}

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return sorted(path.name for path in self.path.iterdir() if path.is_dir() and not path.name.startswith("."))

    def partitions(self, topic: str) -> list[PartitionFile]:
        """Return the partitions of a topic in order; an empty list if the topic does not exist."""
        count = len(list((self.path / topic).glob("*.jsonl"))) if topic else 0
        for number in range(count):
            self._partitions.setdefault((topic, number), PartitionFile(self.path / topic / f"{number}.jsonl"))
        return [self._partitions[topic, number] for number in range(count)]

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic, or add partitions to it."""
        (self.path / topic).mkdir(parents=True, exist_ok=True)
        for number in range(partitions):
            (self.path / topic / f"{number}.jsonl").touch()

    def delete(self, topic: str) -> None:
        """Delete a topic, and what the groups have committed in it."""
        self._partitions = {key: file for key, file in self._partitions.items() if key[0] != topic}
        for group in self.groups.values():
            group.forget(topic)
        shutil.rmtree(self.path / topic, ignore_errors=True)

    def group(self, name: str) -> Group:
        """Return a group. A new group has no offsets."""
        return self.groups.setdefault(name, Group(self.path / ".groups" / f"{name}.json"))


_folders: dict[Path, Folder] = {}


def open_folder(path: Path) -> Folder:
    """Return the folder. All clusters of this process share it and its groups."""
    path.mkdir(parents=True, exist_ok=True)
    return _folders.setdefault(path.resolve(), Folder(path.resolve()))
