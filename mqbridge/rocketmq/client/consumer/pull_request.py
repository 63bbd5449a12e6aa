"""One pull of one queue, and its response.

The broker limits a response, whatever is requested: by default to 32 messages or 256 KiB, and to 8 messages or 64 KiB if it
estimates that they must be read from disk. Its settings maxTransferCountOnMessageInMemory, maxTransferBytesOnMessageInMemory,
maxTransferCountOnMessageInDisk and maxTransferBytesOnMessageInDisk change these limits at runtime. With limits of 1024 to 4096
messages and 2 to 4 MiB, a message costs the broker and the client half as much. Clients cannot read responses above 16 MiB.
"""

from collections.abc import Mapping

from mqbridge.errors import ServerRefused
from mqbridge.rocketmq.client.connection.brokers import Brokers
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings, MessageModel
from mqbridge.rocketmq.client.consumer.subscription import Subscription
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.offsets import OffsetResult, QueueHeader
from mqbridge.rocketmq.wire.headers.pull import PullFlag, PullHeader, PullResult

SUSPEND_MS = 15_000
"""How long the broker holds a pull that finds nothing. As it checks the time every 5 s, it may hold a pull for 20 s."""
RESPONSE_TIMEOUT_S = 30.0
"""Timeout of one response, as in the Java clients. A pull may be held for 20 s."""
END_TIMEOUT_S = 10.0
"""Timeout of a request for the end of a queue, which a broker answers at once."""

FOUND = Status.SUCCESS
NOTHING = Status.PULL_NOT_FOUND
FILTERED = Status.PULL_RETRY_IMMEDIATELY
MOVED = Status.PULL_OFFSET_MOVED
"""Response codes of a pull; see `PullResponse.code`."""
EXPECTED_CODES = frozenset({FOUND, NOTHING, FILTERED, MOVED})
"""A response with another code raises ServerRefused."""
MAX_OFFSET = (1 << 63) - 1
"""The largest offset: Java's long has 64 bits."""

RESET = "OFFSET_RESET"
"""Remark of a MOVED response: an administrator has reset the group's offset."""
REMOVING = "MESSAGE_WAS_REMOVING"
"""Remark of a FILTERED response: the broker is deleting the messages at this offset."""
FOUND_NULL = "OFFSET_FOUND_NULL"
"""Remark of a NOTHING response: the queue's index cannot be read at this offset."""


class PullResponse:
    """The response to a pull.

    `code` is FOUND, NOTHING (the queue has no message at the offset), FILTERED (no message passed the filter), or MOVED (the
    offset is outside of the queue, or was reset). `next` is the offset at which to continue. `first` and `end` are the queue's
    first offset and the offset after its last message. `remark` is the broker's text, empty without one; RESET, REMOVING and
    FOUND_NULL name further causes of a code.
    """

    __slots__ = ("body", "code", "end", "first", "next", "remark")

    def __init__(self, response: Command) -> None:
        self.code = response.code
        self.body = response.body
        self.remark = response.remark or ""
        self.next, self.first, self.end = read_offsets(response.ext)

    @property
    def is_reset(self) -> bool:
        """True if an administrator has reset the group's offset, to `next`."""
        return self.code == MOVED and self.remark == RESET


def read_offsets(ext: Mapping[str, str]) -> tuple[int, int, int]:
    """Return next, first and end offset of a response. Raises RemoteProtocolError if one is missing or not a number."""
    try:  # the usual spelling of the fields, without the cost of decoding the header
        offsets = int(ext["nextBeginOffset"]), int(ext["minOffset"]), int(ext["maxOffset"])
        if min(offsets) >= 0 and max(offsets) <= MAX_OFFSET and ext["suggestWhichBrokerId"].isdecimal():
            return offsets  # the header is valid: suggestWhichBrokerId is not used, but has to be a number
    except (KeyError, ValueError):
        pass
    # Raises an error that names the invalid field, or accepts names in other letter case, such as `nextbeginoffset`.
    header = PullResult.decode(ext)
    return header.next_begin_offset, header.min_offset, header.max_offset


class Puller:
    """Pulls one queue for one consumer.

    The members of a group send their subscription in heartbeats, and brokers filter by it; `version` is its version there. A
    reader of given queues (ASSIGNED) sends no heartbeats. Its pulls are "lite": brokers filter by the subscription in the pull.
    """

    def __init__(
        self, brokers: Brokers, settings: ConsumerSettings, queue: Queue, subscription: Subscription, version: int
    ) -> None:
        self._brokers, self._queue = brokers, queue
        self._max_messages = settings.max_msgs
        lite = settings.model is MessageModel.ASSIGNED
        self._code = Code.LITE_PULL_MESSAGE if lite else Code.PULL_MESSAGE
        self._flags = PullFlag.SUBSCRIPTION | PullFlag.LITE if lite else 0
        self._constant_fields = PullHeader(
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
            expression_type=subscription.expression_type,
        ).encode()

    async def pull(self, offset: int, commit: int | None, *, hold: bool, messages: int) -> PullResponse:
        """Request up to `messages` messages from `offset` on.

        The pull also commits the offset `commit`, unless that is None or the broker is a slave. `hold`: the broker may hold the
        request while there are no messages (long polling). Raises ServerRefused, other ClusterErrors, and RemoteProtocolError for
        a response without valid offsets.
        """
        brokers, queue = self._brokers, self._queue
        route = brokers.cached_reader(queue.topic, queue.broker) or await brokers.reader(queue.topic, queue.broker)
        address, is_master = route
        flags = self._flags
        if hold:
            flags |= PullFlag.SUSPEND
        if commit is not None and is_master:
            flags |= PullFlag.COMMIT_OFFSET
        ext = self._constant_fields | {
            "queueOffset": str(offset),
            "sysFlag": str(flags),
            "commitOffset": str(commit or 0),  # ignored without COMMIT_OFFSET
            "maxMsgNums": str(min(messages, self._max_messages)),
        }
        return PullResponse(await self._request(address, ext))

    async def find_end(self) -> int:
        """Request the offset after the last message from the broker that is pulled now. Raises ClusterError."""
        brokers, queue = self._brokers, self._queue
        address, _ = await brokers.reader(queue.topic, queue.broker)
        ext = QueueHeader(queue.topic, queue.id).encode()
        response = await brokers.request_at(address, queue.topic, Code.GET_MAX_OFFSET, ext, timeout=END_TIMEOUT_S)
        return OffsetResult.decode(response.ext).offset

    async def _request(self, address: str, ext: dict[str, str]) -> Command:
        """Send the pull, as PULL_MESSAGE if the broker does not support LITE_PULL_MESSAGE."""
        request_at = self._brokers.request_at
        topic = self._queue.topic
        timeout_s = RESPONSE_TIMEOUT_S
        try:
            return await request_at(address, topic, self._code, ext, timeout=timeout_s, accept=EXPECTED_CODES)
        except ServerRefused as error:
            if error.code != Status.REQUEST_CODE_NOT_SUPPORTED or self._code == Code.PULL_MESSAGE:
                raise
            self._code = Code.PULL_MESSAGE  # the broker is too old for LITE_PULL_MESSAGE; later pulls do not try it again
        return await request_at(address, topic, self._code, ext, timeout=timeout_s, accept=EXPECTED_CODES)
