"""A topic's route: its brokers, their addresses, and their queues.

Responses of name servers are validated: an invalid address, or an impossible number of queues, is an error.
"""

from collections.abc import Mapping, Sequence

from mqbridge.errors import ClusterError, Failure, RemoteProtocolError
from mqbridge.net.addresses import split_address
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.routes import Perm, QueueData, RouteData
from mqbridge.wire.limits import check_partitions, is_number

MAX_QUEUES = 16384
"""Limit of a topic's queues at one broker, since no broker can serve so many. For all brokers together see `wire/limits.py`."""
LOGICAL_BROKER_PREFIX = "__syslo__"
"""Beginning of the broker names in the route of a static topic."""
MASTER = 0
"""The broker id of a master; slaves have higher ones."""


class TopicRoute:
    """The route of a topic. Equal if queues, permissions and addresses are equal."""

    __slots__ = ("_read_queues", "_write_queue_set", "_write_queues", "brokers", "frozen_queues", "is_fixed", "topic")

    def __init__(
        self,
        topic: str,
        brokers: Mapping[str, Mapping[int, str]],
        readable: Sequence[Queue],
        writable: Sequence[Queue],
        *,
        frozen: Sequence[Queue] = (),
        is_fixed: bool = False,
    ) -> None:
        self.topic = topic
        self.frozen_queues = frozenset(frozen)
        """Queues that accept no messages now, because topic or broker has no permission to write; it may be given back."""
        self.is_fixed = is_fixed
        """True if the writable queues are listed in an order configuration at the name servers."""
        self.brokers = brokers
        """Addresses by broker name, then by broker id; id 0 is the master."""
        self._read_queues = tuple(sorted(readable, key=queue_order))
        self._write_queues = tuple(sorted(writable, key=queue_order))
        self._write_queue_set = frozenset(writable)

    def read_queues(self) -> Sequence[Queue]:
        """Return the readable queues, sorted by broker name (in Java's order) and queue id."""
        return self._read_queues

    def write_queues(self) -> Sequence[Queue]:
        """Return the writable queues whose broker has a master, sorted like `read_queues`."""
        return self._write_queues

    def is_writable(self, queue: Queue) -> bool:
        """Return True if this queue is writable and its broker has a master."""
        return queue in self._write_queue_set

    def master(self, broker: str) -> str | None:
        """Return the address of a broker's master; None while it has none."""
        return self.brokers.get(broker, {}).get(MASTER)

    def reader(self, broker: str) -> str | None:
        """Return the address to read from: the master, else the slave with the lowest id; None if the route lacks the broker."""
        addresses = self.brokers.get(broker)
        return addresses[min(addresses)] if addresses else None

    def masters(self) -> list[str]:
        """Return the addresses of all masters."""
        return [addresses[MASTER] for addresses in self.brokers.values() if MASTER in addresses]

    def addresses(self) -> list[str]:
        """Return the addresses of all brokers, slaves included."""
        return [address for addresses in self.brokers.values() for address in addresses.values()]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicRoute):
            return NotImplemented
        return (self.brokers, self._read_queues, self._write_queues, self.frozen_queues) == (
            other.brokers,
            other._read_queues,
            other._write_queues,
            other.frozen_queues,
        )

    __hash__ = None  # type: ignore[assignment]  # compared, but never a key


def queue_order(queue: Queue) -> tuple[bytes, int]:
    """Return a sort key that orders queues of one topic like Java's MessageQueue.compareTo."""
    return queue.broker.encode("utf-16-be", "surrogatepass"), queue.id


def queue_label(queue: Queue) -> str:
    """Return `topic broker:id`, which names a queue in logs and errors."""
    return f"{queue.topic} {queue.broker}:{queue.id}"


def read_route(topic: str, body: bytes) -> TopicRoute:
    """Decode a name server's response. Raises RemoteProtocolError if it is invalid, ClusterError (FATAL) for a static topic."""
    route = RouteData.decode(body)
    if route.is_static or any(data.broker.startswith(LOGICAL_BROKER_PREFIX) for data in route.queues):
        problem = f"{topic} is a static topic, which is not supported: a map assigns its logical queues to queues of brokers"
        raise ClusterError(f"{problem}; use a topic with queues of its own", Failure.FATAL)
    brokers = {broker.name: dict(broker.addresses) for broker in route.brokers}
    frozen_data = [] if route.order_conf else [data for data in route.queues if not data.perm & Perm.WRITE]
    for name, addresses in brokers.items():
        for broker_id, address in addresses.items():
            _check_address(topic, name, broker_id, address)
    for data in route.queues:
        if not (0 <= data.read_queues <= MAX_QUEUES and 0 <= data.write_queues <= MAX_QUEUES):
            problem = f"{data.read_queues} readable and {data.write_queues} writable queues at broker {data.broker}"
            raise RemoteProtocolError(f"the route of topic {topic} contains {problem}; the maximum is {MAX_QUEUES} of each")
    writable = _writable_queue_data(topic, route)
    check_partitions(sum(data.read_queues for data in route.queues), f"topic {topic}")
    check_partitions(sum(data.write_queues for data in writable), f"topic {topic}")
    read = [queue for data in route.queues if data.perm & Perm.READ for queue in _queues(topic, data.broker, data.read_queues)]
    write = [queue for data in writable for queue in _queues(topic, data.broker, data.write_queues)]
    return TopicRoute(
        topic,
        brokers,
        read,
        [queue for queue in write if MASTER in brokers.get(queue.broker, {})],
        frozen=[queue for data in frozen_data for queue in _queues(topic, data.broker, data.write_queues)],
        is_fixed=bool(route.order_conf),
    )


def _check_address(topic: str, broker: str, broker_id: int, address: str) -> None:
    try:
        split_address(address, default_port=0)
    except ValueError as error:
        raise RemoteProtocolError(f"the route of topic {topic} has an invalid address of broker {broker}: {error}") from error
    if broker_id < MASTER:
        raise RemoteProtocolError(f"the route of topic {topic} has a negative broker id, {broker_id}, of {broker} at {address}")


def _queues(topic: str, broker: str, count: int) -> list[Queue]:
    return [Queue(topic, broker, queue_id) for queue_id in range(count)]


def _writable_queue_data(topic: str, route: RouteData) -> list[QueueData]:
    """Return the brokers that accept messages of the topic, each with its number of writable queues.

    If the route contains an order configuration like `broker-a:4;broker-b:4`, the brokers and the numbers come from there. As in
    Java, the permissions and the numbers of `route.queues` then have no effect.
    """
    if not route.order_conf:
        return [data for data in route.queues if data.perm & Perm.WRITE]
    queue_data = []
    for part in filter(None, route.order_conf.split(";")):
        broker, _, count = part.rpartition(":")
        if not broker or not is_number(count) or int(count) > MAX_QUEUES:
            raise RemoteProtocolError(
                f"the order configuration {route.order_conf[:200]!r} in the route of topic {topic} is not like"
                f" 'broker-a:4;broker-b:4', with at most {MAX_QUEUES} queues per broker"
            )
        queue_data.append(QueueData(broker, int(count), int(count)))
    return queue_data
