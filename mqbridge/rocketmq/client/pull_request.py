"""One pull of one queue, and its response.

The broker limits a response, whatever is requested: 32 messages or 256 KiB, and 8 messages or 64 KiB of what it believes to be on
disk. Its settings maxTransferCountOnMessageInMemory, maxTransferBytesOnMessageInMemory, maxTransferCountOnMessageInDisk and
maxTransferBytesOnMessageInDisk raise that at runtime; 1024 to 4096 messages and 2 to 4 MiB halve the cost of a message on both
sides. Beyond 16 MiB no client could read the response.
"""

from collections.abc import Mapping

from mqbridge.errors import ServerRefused
from mqbridge.rocketmq.client.brokers import Brokers
from mqbridge.rocketmq.client.consumer_settings import ConsumerSettings, MessageModel
from mqbridge.rocketmq.client.subscription import Subscription
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.pull import PullFlag, PullHeader, PullResult

SUSPEND_MS = 15_000
"""How long the broker holds a pull that finds nothing; as it checks every 5 s, that may become 20 s."""
ANSWER_TIMEOUT_S = 30.0
"""The value of the Java clients; exceeds the longest hold plus 5 s."""

FOUND, NOTHING, FILTERED, MOVED = Status.SUCCESS, Status.PULL_NOT_FOUND, Status.PULL_RETRY_IMMEDIATELY, Status.PULL_OFFSET_MOVED
MAX_OFFSET = (1 << 63) - 1
ANSWERS = frozenset({FOUND, NOTHING, FILTERED, MOVED})

RESET = "OFFSET_RESET"
REMOVING = "MESSAGE_WAS_REMOVING"
FOUND_NULL = "OFFSET_FOUND_NULL"
"""Remarks: the status of the message store, more precise than the code."""


class PullResponse:
    """`kind` is FOUND, NOTHING, FILTERED or MOVED; `next` is the offset to continue at, `first` and `end` bound the queue."""

    __slots__ = ("body", "end", "first", "kind", "next", "remark")

    def __init__(self, answer: Command) -> None:
        self.kind, self.body, self.remark = answer.code, answer.body, answer.remark or ""
        self.next, self.first, self.end = read_offsets(answer.ext)

    @property
    def is_reset(self) -> bool:
        """True if an administrator has reset the group's offset, to `next`."""
        return self.kind == MOVED and self.remark == RESET


def read_offsets(ext: Mapping[str, str]) -> tuple[int, int, int]:
    """Return next, first and end offset of a response. Raises RemoteProtocolError if one is missing or not a number."""
    try:
        found = int(ext["nextBeginOffset"]), int(ext["minOffset"]), int(ext["maxOffset"])
        if min(found) >= 0 and max(found) <= MAX_OFFSET and ext["suggestWhichBrokerId"].isdecimal():
            return found
    except (KeyError, ValueError):
        pass
    header = PullResult.decode(ext)  # raises the exact error, or reads names in another case
    return header.next_begin_offset, header.min_offset, header.max_offset


class Puller:
    """Pulls one queue for one consumer. The group's heartbeats set the filter; readers without a group send it in each pull."""

    def __init__(
        self, brokers: Brokers, settings: ConsumerSettings, queue: Queue, subscription: Subscription, version: int
    ) -> None:
        self._brokers, self._queue, self._max_messages = brokers, queue, settings.max_msgs
        lite = settings.model is MessageModel.ASSIGNED
        self._code = Code.LITE_PULL_MESSAGE if lite else Code.PULL_MESSAGE
        self._flags = PullFlag.SUBSCRIPTION | PullFlag.LITE if lite else 0
        self._ext = PullHeader(
            consumer_group=settings.pull_group,
            topic=queue.topic,
            queue_id=queue.id,
            queue_offset=0,
            max_msg_nums=settings.max_msgs,
            sys_flag=self._flags,
            commit_offset=0,
            suspend_timeout_millis=SUSPEND_MS,
            sub_version=version,
            subscription=subscription.expression,
            expression_type=subscription.kind,
        ).encode()

    async def pull(self, offset: int, commit: int | None, *, hold: bool, messages: int) -> PullResponse:
        """Request up to `messages` messages at `offset`; the request also commits `commit` as the group's offset.

        `hold`: the broker may hold the request while there is nothing (long polling).

        Raises ServerRefused, ClusterError, RemoteProtocolError for a response without its four numbers.
        """
        brokers, queue = self._brokers, self._queue
        found = brokers.known_reader(queue.topic, queue.broker) or await brokers.reader(queue.topic, queue.broker)
        address, is_master = found
        flags = self._flags
        if hold:
            flags |= PullFlag.SUSPEND
        if commit is not None and is_master:
            flags |= PullFlag.COMMIT_OFFSET
        ext = self._ext | {
            "queueOffset": str(offset),
            "sysFlag": str(flags),
            "commitOffset": str(commit or 0),
            "maxMsgNums": str(min(messages, self._max_messages)),
        }
        return PullResponse(await self._ask(address, ext))

    async def _ask(self, address: str, ext: dict[str, str]) -> Command:
        topic = self._queue.topic
        try:
            return await self._brokers.ask_at(address, topic, self._code, ext, timeout=ANSWER_TIMEOUT_S, accept=ANSWERS)
        except ServerRefused as error:
            if error.code != Status.REQUEST_CODE_NOT_SUPPORTED or self._code == Code.PULL_MESSAGE:
                raise
            self._code = Code.PULL_MESSAGE  # the broker is older than LITE_PULL_MESSAGE
        return await self._brokers.ask_at(address, topic, self._code, ext, timeout=ANSWER_TIMEOUT_S, accept=ANSWERS)
