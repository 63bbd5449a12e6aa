"""Brokers that a producer avoids for a while, by the rules of the Java SDK. The methods take the current time as an argument.

    condition                                  avoided for   limit
    6 failed connects within 60 s              30 min        30 % of all Brokers, 30 at most
    a response with code 503                   50 s
    4 lost or late responses in a row          3 s
    far fewer stored messages than the others  30 s          15 % of all Brokers; compared every 30 s

The SDK applies the third rule to single partitions. Here it applies to Brokers, since a lost connection concerns a Broker. A
stored message lifts the ban of the first rule and resets the counts of the first and the third rule.
"""

from mqbridge.errors import ConnectionLost, MqbridgeError, RequestTimeout, ServerRefused, Unreachable
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.string_formats import Broker

CONNECT_WINDOW_S = 60.0
CONNECT_FAILURES = 5
CONNECT_BAN_S = 30 * 60.0
CONNECT_BAN_SHARE = 0.3
MAX_CONNECT_BANS = 30
UNAVAILABLE_S = 50.0
LOST_IN_A_ROW = 3
LOST_S = 3.0
QUALITY_S = 30.0
QUALITY_SHARE = 0.15
QUALITY_OF_MEAN = 0.2
QUALITY_OF_SENT = 0.1
QUALITY_MIN_TENTH = 2
"""A Broker is judged only if a tenth of the messages sent to it is more than this."""


class _Record:
    """Counts of one Broker: failed connects since `connect_at`, lost responses in a row, messages since the last comparison."""

    __slots__ = ("connect_at", "connect_failures", "lost", "sent", "stored")

    def __init__(self) -> None:
        self.connect_at = float("-inf")
        self.connect_failures = self.lost = self.sent = self.stored = 0


class BrokerBlocklist:
    """The Brokers that one producer avoids."""

    def __init__(self) -> None:
        self._records: dict[Broker, _Record] = {}
        self._unavailable: dict[Broker, float] = {}
        """Brokers that responded 503 or lost responses, each with the time until which it is avoided."""
        self._poor: dict[Broker, float] = {}
        """Brokers that stored far fewer messages than the others; kept apart, since their number is limited."""
        self._banned: dict[Broker, float] = {}
        """Brokers that refuse connections; kept apart for the same reason."""
        self._compared_at: float | None = None

    def avoids(self, broker: Broker, now: float) -> bool:
        """Return True while messages should be sent to other Brokers."""
        return any(until.get(broker, now) > now for until in (self._unavailable, self._poor, self._banned))

    def avoided(self, now: float) -> list[Broker]:
        """Return all Brokers that are avoided now."""
        return [broker for broker in self._records if self.avoids(broker, now)]

    def sent(self, broker: Broker, now: float) -> None:
        """Count a sent message; every QUALITY_S seconds, compare the Brokers."""
        self._record(broker).sent += 1
        if self._compared_at is None:
            self._compared_at = now
        elif now - self._compared_at >= QUALITY_S:
            self._compared_at = now
            self._compare(now)

    def stored(self, broker: Broker) -> None:
        """Count a stored message."""
        record = self._record(broker)
        record.stored += 1
        record.lost = record.connect_failures = 0
        self._banned.pop(broker, None)

    def failed(self, broker: Broker, error: MqbridgeError, now: float) -> None:
        """Count a failed message."""
        if isinstance(error, Unreachable):
            self._connect_failed(broker, now)
        if isinstance(error, ServerRefused):
            if error.code == codes.UNAVAILABLE:
                self._unavailable[broker] = now + UNAVAILABLE_S
        elif isinstance(error, (Unreachable, ConnectionLost, RequestTimeout)):
            record = self._record(broker)
            record.lost += 1
            if record.lost > LOST_IN_A_ROW:
                self._unavailable[broker] = max(self._unavailable.get(broker, now), now + LOST_S)

    def _record(self, broker: Broker) -> _Record:
        record = self._records.get(broker)
        if record is None:
            record = self._records[broker] = _Record()
        return record

    def _connect_failed(self, broker: Broker, now: float) -> None:
        record = self._record(broker)
        if now - record.connect_at > CONNECT_WINDOW_S:
            record.connect_at, record.connect_failures = now, 0
        record.connect_failures += 1
        self._banned = {other: until for other, until in self._banned.items() if until > now}
        room = min(round(len(self._records) * CONNECT_BAN_SHARE), MAX_CONNECT_BANS) - len(self._banned)
        if record.connect_failures > CONNECT_FAILURES and room > 0:
            self._banned[broker] = now + CONNECT_BAN_S

    def _compare(self, now: float) -> None:
        counted: list[tuple[int, int, Broker]] = []
        for broker, record in self._records.items():
            if self._poor.get(broker, now) <= now:
                counted.append((record.stored, record.sent, broker))
            record.stored = record.sent = 0
        self._poor = {broker: until for broker, until in self._poor.items() if until > now}
        room = round((len(counted) + len(self._poor)) * QUALITY_SHARE) - len(self._poor)
        counted.sort()
        if room <= 0 or len(counted) < 2:
            return
        good_enough = int(_trimmed_mean([stored for stored, _, _ in counted]) * QUALITY_OF_MEAN)
        for stored, sent, broker in counted:
            if stored >= good_enough or not room:
                return
            tenth_of_sent = int(sent * QUALITY_OF_SENT)
            if tenth_of_sent > QUALITY_MIN_TENTH and stored < tenth_of_sent:
                self._poor[broker] = now + QUALITY_S
                room -= 1


def _trimmed_mean(ascending: list[int]) -> float:
    """Return the mean without outliers: the smallest of up to three numbers; of more, the two smallest and the largest."""
    middle = ascending[1:] if len(ascending) <= 3 else ascending[2:-1]
    return sum(middle) / len(middle)
