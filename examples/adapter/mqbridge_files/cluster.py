"""The classes of the adapter contract (`mqbridge.adapter`). `ADAPTER` describes the adapter to mqbridge."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from pydantic import BaseModel, ConfigDict, Field

from mqbridge.adapter.cluster import Capabilities
from mqbridge.adapter.inbound import InboundSpec, Start
from mqbridge.adapter.names import NameRule
from mqbridge.adapter.numbering import OffsetNumbering
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.reader import READ_BYTES
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.adapter.registry import Adapter, ClusterModel
from mqbridge.adapter.tools.receipts import closed_outbound_future, refused_whole
from mqbridge.adapter.tools.sharing import check_sharing
from mqbridge.adapter.tools.stored_positions import last_stored
from mqbridge.adapter.tools.unit_ranges import unit_ranges_from_offsets
from mqbridge.adapter.topics import Bounds, Topic, UnitRange
from mqbridge.errors import ClusterError, ConfigError, Failure, LaneRevoked, MappingError
from mqbridge.message import Batch, Partition, Position, Share
from mqbridge.net.budget import Budget
from mqbridge.net.read_ahead import ReadAheadAccount
from mqbridge_files.reader import BATCH_LINES, POLL_S, FilesReader, read_batch
from mqbridge_files.records import TABLE, encode, preview
from mqbridge_files.storage import Folder, Group, Key, PartitionFile, open_folder

log = logging.getLogger(__name__)

NAMES = NameRule(
    re.compile(r"[A-Za-z0-9_-]"),
    re.compile(r"[A-Za-z0-9._-]"),
    200,
    "use 1 to 200 letters, digits, . _ -, no . first",
)
"""Names of topics and groups: they are names of files, too."""


class FilesConfig(ClusterModel):
    """Configuration of a cluster: its folder."""

    path: Path = Field(description="The folder of the topics; it is created if it does not exist.")

    @classmethod
    def from_url(cls, url: str) -> "FilesConfig":
        """Return the configuration for a URL such as `files:///var/topics`."""
        return cls(path=Path(url.removeprefix("files://")))

    @property
    def identity(self) -> str:
        """The folder's absolute path, by which clusters are told apart whatever a configuration calls them."""
        return f"files://{self.path.resolve()}"


class NoOptions(BaseModel):
    """Options of a source or a target of a route: there are none."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FilesCluster:
    """Client of one folder."""

    capabilities = Capabilities(delete_topics=True, topic_name=NAMES, group_name=NAMES, acknowledges_dropped=True)
    numbering = OffsetNumbering()
    operations = None
    """Optional operations for commands about groups. `topics`, `consume`, `explain` and `peek --first` do not need them."""

    def __init__(self, name: str, config: FilesConfig) -> None:
        self.name, self._config = name, config

    async def connect(self) -> None:
        """Create the folder if it does not exist. Raises ClusterError."""
        try:
            open_folder(self._config.path)
        except OSError as error:
            raise ClusterError(f"the folder {self._config.path} cannot be opened: {error.strerror}", Failure.FATAL) from error

    @property
    def folder(self) -> Folder:
        """The folder, which is created on first use."""
        return open_folder(self._config.path)

    async def close(self, deadline: float | None = None) -> None:
        """Do nothing: no file stays open between calls."""

    # --- topics -------------------------------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """Return the names of all topics."""
        return self.folder.topics()

    async def describe(self, topic: str) -> Topic | None:
        """Return the topic and its partitions, or None if it does not exist."""
        files = self.folder.partitions(topic) if NAMES.problem(topic) is None else []
        return Topic(topic, tuple(map(str, range(len(files))))) if files else None

    async def create(self, topic: str, partitions: int) -> None:
        """Create a topic or add partitions to it, and assign the new partitions to members of groups at once."""
        await self.check_create(topic, partitions)
        try:
            self.folder.create(topic, partitions)
        except OSError as error:
            raise ClusterError(f"topic {topic!r} cannot be created: {error}", Failure.FATAL) from error
        for group in self.folder.groups.values():
            group.rebalance()

    async def check_create(self, topic: str, partitions: int) -> None:
        """Check the topic name and the number of partitions. Raises ConfigError."""
        problem = NAMES.problem(topic) if partitions > 0 else "it needs at least one partition"
        if problem is not None:
            raise ConfigError(
                f"topic {topic!r} cannot be created: {problem}", hint="Change the name, or the number of partitions"
            )

    async def delete(self, topic: str) -> None:
        """Remove the topic's folder, and what groups have committed in it."""
        if NAMES.problem(topic) is None:
            self.folder.delete(topic)

    async def bounds(self, topic: str, partition: str | None = None) -> Mapping[str, Bounds]:
        """Return the first, the next and the last line number of each partition, or of one."""
        names = list(map(str, range(len(self._existing(topic))))) if partition is None else [partition]
        return {name: _bounds_of(self._existing_partition(topic, name)) for name in names}

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """Return the committed offsets of a group in a topic."""
        self._existing(topic)
        return {str(number): (line,) for (name, number), line in self._group(group).offsets.items() if name == topic}

    # --- messages -----------------------------------------------------------------------------------------------------

    async def reader(
        self, topic: str, partition: str, begin: Position, end: Position | None = None, *, max_bytes: int = READ_BYTES
    ) -> FilesReader:
        """Open a reader of one partition. It reads no lines before they are received, so it holds no bytes."""
        file = self._existing_partition(topic, partition)
        return FilesReader(file, Partition(self.name, topic, partition, int(partition)), begin, end)

    async def measure(self, topic: str, partition: str, begin: Position, end: Position) -> Sequence[UnitRange]:
        """Return the range between two positions as a range of lines, the units of this system."""
        return unit_ranges_from_offsets(begin, end)

    async def inbound(self, spec: InboundSpec) -> "FilesInbound":
        """Join a group as a member."""
        await self.check_inbound(spec)
        return FilesInbound(self, self._group(spec.group), spec)

    async def check_inbound(self, spec: InboundSpec) -> None:
        """Check that the topics exist, and how the group shares partitions. Any valid name can be used as a group."""
        check_sharing(self, spec)
        for topic in spec.topics:
            self._existing(topic)

    async def outbound(self, spec: OutboundSpec) -> "FilesOutbound":
        """Open an outbound for a topic."""
        return FilesOutbound(self, spec, self._existing(spec.topic))

    async def check_outbound(self, spec: OutboundSpec) -> None:
        """Check that the topic exists. Raises ClusterError."""
        self._existing(spec.topic)

    def _existing(self, topic: str) -> list[PartitionFile]:
        """Return the partitions of a topic. Raises ClusterError if it does not exist."""
        files = self.folder.partitions(topic) if NAMES.problem(topic) is None else []
        if not files:
            raise ClusterError(f"topic {topic!r} does not exist in {self._config.path}; create it", Failure.FATAL)
        return files

    def _existing_partition(self, topic: str, partition: str) -> PartitionFile:
        """Return one partition of a topic. Raises ClusterError if it does not exist."""
        files = self._existing(topic)
        if partition not in map(str, range(len(files))):
            raise ClusterError(f"topic {topic!r} has no partition {partition}", Failure.FATAL)
        return files[int(partition)]

    def _group(self, name: str) -> Group:
        if (problem := NAMES.problem(name)) is not None:
            raise ClusterError(f"{name!r} is not a valid group name: {problem}", Failure.FATAL)
        return self.folder.group(name)


def _bounds_of(file: PartitionFile) -> Bounds:
    count = file.count
    return Bounds((0,), (count,), last=(count - 1,) if count else None)


class FilesInbound:
    """Member of a group. It yields a lane for each assigned partition."""

    individual_ack = False

    def __init__(self, cluster: FilesCluster, group: Group, spec: InboundSpec) -> None:
        self._cluster, self._group, self._spec = cluster, group, spec
        self._assigned: asyncio.Queue[FilesLane | None] = asyncio.Queue()
        self._at_first = set(self._wanted())
        self.room = Budget(spec.max_bytes)
        group.join(self, self._wanted, self._assign)

    def _wanted(self) -> list[Key]:
        """Return all partitions that the topics have now."""
        return [(topic, number) for topic in self._spec.topics for number in range(len(self._cluster.folder.partitions(topic)))]

    def _assign(self, key: Key) -> "FilesLane":
        topic, number = key
        file = self._cluster.folder.partitions(topic)[number]
        if key not in self._group.offsets:  # commit the start at once, so that a restart with `latest` skips nothing
            self._group.commit(key, file.count if self._start(topic, number) is Start.LATEST else 0)
        lane = FilesLane(self, self._group, key, file, Partition(self._cluster.name, topic, str(number), number))
        self._assigned.put_nowait(lane)
        return lane

    def _start(self, topic: str, number: int) -> Start:
        """Return where to start a partition. Partitions created after joining are read from their beginning."""
        return self._spec.start_of(topic, str(number)) if (topic, number) in self._at_first else Start.EARLIEST

    async def lanes(self) -> AsyncIterator["FilesLane"]:
        """Yield lanes as their partitions are assigned, until `close`."""
        while (lane := await self._assigned.get()) is not None:
            if not lane.revoked.is_set():
                yield lane

    async def close(self, deadline: float | None = None) -> None:
        """Leave the group."""
        self._group.leave(self)
        self._assigned.put_nowait(None)


class FilesLane:
    """Reader of one partition while it is assigned to this member.

    `reject` moves the lane back and begins a new run. After that, a batch of an earlier run can be acknowledged only if it
    ends at or before the position where the new run began: later messages are delivered again.
    """

    def __init__(self, member: FilesInbound, group: Group, key: Key, file: PartitionFile, partition: Partition) -> None:
        self.member, self.partition = member, partition
        self.revoked = asyncio.Event()
        self._read_ahead = ReadAheadAccount(member.room, self.revoked)
        self._group, self._key, self._file = group, key, file
        self._next = self._run_begin = group.offsets[key]
        self._run = 0

    @property
    def caught_up(self) -> bool:
        """True if every line of the partition was received."""
        return self._next >= self._file.count

    async def receive(self) -> Batch:
        """Wait until there are lines and the read-ahead budget has room for them; return them as a batch. Raises LaneRevoked.

        The call also releases the memory of the previous batch, which the gateway now counts in its own budget.
        """
        self._read_ahead.release()
        while not self.revoked.is_set():
            batch = read_batch(self._file, self.partition, self._next, BATCH_LINES, self._run)
            if batch is not None and batch.held_bytes <= self._read_ahead.held_bytes:
                self._next += batch.count
                self._read_ahead.record_batch(batch.held_bytes, batch.next)
                return batch
            missing = 0 if batch is None else batch.held_bytes - self._read_ahead.held_bytes
            del batch
            if missing:
                await self._read_ahead.reserve(missing)
                continue
            self._read_ahead.release()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self.revoked.wait()
        raise LaneRevoked(f"{self.partition} was revoked or released")

    def acknowledge(self, batch: Batch, indexes: Sequence[int] | None = None, receipt: Receipt | None = None) -> None:
        """Commit the end of the batch, or the position of message n of it, if `indexes` is `range(n)`."""
        if indexes is None:
            self._read_ahead.release_batch(batch.next)
        end = batch.next[0] if indexes is None else batch.first[0] + len(indexes)
        if self._counts(batch):
            try:
                self._group.commit(self._key, max(end, self._group.offsets[self._key]))
            except OSError as error:
                log.warning("%s: the offset cannot be written, retrying with the next acknowledgement: %s", self.partition, error)

    def counted(self, batch: Batch) -> None:
        """Count a batch no longer: a listener may leave a partition unread for long, and counts what it holds itself."""
        self._read_ahead.release_batch(batch.next)

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Move back to the first line of the batch that is not acknowledged, after the delay."""
        self._read_ahead.release_batch(batch.next)
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, self.reject, batch)
        elif self._counts(batch):
            self._next = self._run_begin = max(batch.first[0], min(self._group.offsets[self._key], batch.next[0]))
            self._run += 1

    def _counts(self, batch: Batch) -> bool:
        return not self.revoked.is_set() and (batch.handle == self._run or batch.next[0] <= self._run_begin)

    async def seek(self, position: Position) -> None:
        """Not supported (see `Capabilities.seek`). Raises ClusterError."""
        raise ClusterError(f"{self.partition}: seek is not supported", Failure.FATAL)

    def revoke(self) -> None:
        """End the lane: its partition was revoked or released."""
        self.revoked.set()
        self._read_ahead.release()

    async def release(self, deadline: float | None = None) -> None:
        """Release the partition. Acknowledged offsets are already stored."""
        self._group.release(self)


class FilesOutbound:
    """Outbound to one topic. `send` writes the lines before it returns, so no message can overtake another."""

    formats = ()

    def __init__(self, cluster: FilesCluster, spec: OutboundSpec, files: Sequence[PartitionFile]) -> None:
        self._cluster, self._spec, self._files = cluster, spec, files
        self._closed = False
        self.partitions = len(files)

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Write all messages that can be encoded. An error of the file system is FATAL, because somebody must repair it."""
        if self._closed:
            return closed_outbound_future(f"topic {self._spec.topic!r}")
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        lines: dict[int, bytes] = {}
        failures: list[MessageFailure] = []
        origin = self._spec.origin_of(share.batch.partition)
        for index, message in enumerate(share.messages):
            try:
                lines[index] = encode(message, origin)
            except MappingError as error:
                failures.append(MessageFailure(index, Failure.REFUSED, str(error)))
        if failures and self._spec.whole_shares:
            future.set_result(refused_whole(share.count, failures))
            return future
        try:
            first = self._files[partition].append(list(lines.values()))
        except OSError as error:
            future.set_exception(ClusterError(f"topic {self._spec.topic!r} cannot be written: {error}", Failure.FATAL))
            return future
        positions: list[Position] = [()] * share.count
        for line, index in enumerate(lines, start=first):
            positions[index] = (line,)
        future.set_result(Receipt(positions, failures))
        return future

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Do nothing: every send is complete when it returns."""

    def partition_of(self, key: bytes) -> int:
        """Return the partition of a key: its CRC32 modulo the number of partitions."""
        return crc32(key) % self.partitions

    async def resume(
        self, source: Partition, since: Mapping[int, Position] | None = None, partitions: Collection[int] | None = None
    ) -> Mapping[int, Position]:
        """Return the last position of `source` that each partition has stored, from the origins of the stored messages."""
        names = {index: str(index) for index in (range(self.partitions) if partitions is None else partitions)}
        return await last_stored(self._cluster, self._spec.topic, names, source, since, self._spec.writer)

    async def close(self, deadline: float | None = None) -> None:
        """Close the outbound. No send is in flight."""
        self._closed = True


ADAPTER = Adapter(
    system="files",
    cluster_model=FilesConfig,
    inbound_options=NoOptions,
    outbound_options=NoOptions,
    make_cluster=FilesCluster,
    table=TABLE,
    preview=preview,
)
