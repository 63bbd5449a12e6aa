"""A topic's route: which brokers have it, at which addresses, and which queues there.

A name server is believed only if what it says can be: addresses that can be dialled, numbers of queues that are numbers of
queues.
"""

from collections.abc import Mapping, Sequence

from mqbridge.errors import ClusterError, Failure, RemoteProtocolError
from mqbridge.net.dial import split_address
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.routes import Perm, QueueData, Route

MAX_QUEUES = 16384
"""Of a topic at one broker; far beyond what a broker can serve, so a higher number is a mistake or a lie."""
LOGICAL_BROKER = "__syslo__"
MASTER = 0


class TopicRoute:
    """What the name servers say about a topic. Equal when queues, rights and addresses are equal."""

    __slots__ = ("_read", "_writable", "_write", "brokers", "topic")

    def __init__(
        self, topic: str, brokers: Mapping[str, Mapping[int, str]], read: Sequence[Queue], write: Sequence[Queue]
    ) -> None:
        self.topic = topic
        self.brokers = brokers
        """Addresses by broker name, then by broker id; id 0 is the master."""
        self._read = tuple(sorted(read, key=_order))
        self._write = tuple(sorted(write, key=_order))
        self._writable = frozenset(write)

    def read_queues(self) -> Sequence[Queue]:
        """The queues that may be read, sorted by broker name (as Java sorts) and number."""
        return self._read

    def write_queues(self) -> Sequence[Queue]:
        """The queues that may be written and have a master, sorted likewise."""
        return self._write

    def takes(self, queue: Queue) -> bool:
        """Whether this queue may be written now."""
        return queue in self._writable

    def master(self, broker: str) -> str | None:
        """The address of a broker's master; None while it has none."""
        return self.brokers.get(broker, {}).get(MASTER)

    def reader(self, broker: str) -> str | None:
        """Where to read: the master, else the slave with the lowest id."""
        addresses = self.brokers.get(broker)
        return addresses[min(addresses)] if addresses else None

    def masters(self) -> list[str]:
        """The addresses of all masters."""
        return [addresses[MASTER] for addresses in self.brokers.values() if MASTER in addresses]

    def addresses(self) -> list[str]:
        """The addresses of all brokers, slaves included."""
        return [address for addresses in self.brokers.values() for address in addresses.values()]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicRoute):
            return NotImplemented
        return (self.brokers, self._read, self._write) == (other.brokers, other._read, other._write)

    __hash__ = None  # type: ignore[assignment]  # it is compared, and never a key


def _order(queue: Queue) -> tuple[bytes, int]:
    return queue.broker.encode("utf-16-be", "surrogatepass"), queue.id


def shown(queue: Queue) -> str:
    """A queue in logs and errors."""
    return f"{queue.topic} {queue.broker}:{queue.id}"


def read_route(topic: str, body: bytes) -> TopicRoute:
    """A name server's answer. Raises RemoteProtocolError for what cannot be, ClusterError (FATAL) for a static topic."""
    route = Route.decode(body)
    if route.is_static or any(one.broker.startswith(LOGICAL_BROKER) for one in route.queues):
        problem = f"{topic} is a static topic: its queues are logical ones, spread over brokers by a map, which is not supported"
        raise ClusterError(f"{problem}; use a topic with queues of its own", Failure.FATAL)
    brokers = {broker.name: dict(broker.addresses) for broker in route.brokers}
    for addresses in brokers.values():
        for number, address in addresses.items():
            _check_address(number, address)
    for data in route.queues:
        if not (0 <= data.read_queues <= MAX_QUEUES and 0 <= data.write_queues <= MAX_QUEUES):
            raise RemoteProtocolError(f"{data.read_queues} and {data.write_queues} queues of {topic} at {data.broker}")
    read = [queue for data in route.queues if data.perm & Perm.READ for queue in _queues(topic, data.broker, data.read_queues)]
    write = [queue for data in _writable(route) for queue in _queues(topic, data.broker, data.write_queues)]
    return TopicRoute(topic, brokers, read, [queue for queue in write if MASTER in brokers.get(queue.broker, {})])


def _check_address(number: int, address: str) -> None:
    try:
        split_address(address, 0)
    except ValueError as error:
        raise RemoteProtocolError(f"a broker's address that is none: {error}") from error
    if number < MASTER:
        raise RemoteProtocolError(f"a broker with the id {number} at {address}")


def _queues(topic: str, broker: str, count: int) -> list[Queue]:
    return [Queue(topic, broker, number) for number in range(count)]


def _writable(route: Route) -> list[QueueData]:
    """The queues to write; an order configuration (`broker-a:4;broker-b:4`) goes over the brokers, as in the Java clients."""
    if not route.order_conf:
        return [data for data in route.queues if data.perm & Perm.WRITE]
    found = []
    for part in filter(None, route.order_conf.split(";")):
        broker, _, count = part.rpartition(":")
        if not broker or not count.isdecimal() or int(count) > MAX_QUEUES:
            raise RemoteProtocolError(f"the order configuration {route.order_conf[:200]!r} cannot be read")
        found.append(QueueData(broker, int(count), int(count)))
    return found
