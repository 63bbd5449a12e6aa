"""Brokers that a producer avoids for a while, by the rules of the Java SDK. The methods take the current time as an argument.

    condition                                  avoided for   limit
    6 failed connects within 60 s              30 min        30 % of all Brokers, 30 at most
    a response with code 503                   50 s
    4 failures in a row: failed connects, and  3 s
    lost or late responses
    far fewer stored messages than the others  30 s          15 % of all Brokers; compared every 30 s

The SDK applies the third rule to single partitions. Here it applies to Brokers, since a lost connection concerns a Broker. A
stored message lifts the ban of the first rule and resets the counts of the first and the third rule.
"""

from mqbridge.errors import ConnectionLost, MqbridgeError, RequestTimeout, ServerRefused, Unreachable
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.string_formats import Broker

CONNECT_WINDOW_S = 60.0
"""Failed connects are counted within this time after the first one."""
MAX_CONNECT_FAILURES = 5
"""A Broker with more failed connects is banned for CONNECT_BAN_S."""
CONNECT_BAN_S = 30 * 60.0
MAX_CONNECT_BAN_SHARE = 0.3
MAX_CONNECT_BANS = 30
"""Limits of the number of Brokers that are banned at the same time: this share of all Brokers, and this number."""

UNAVAILABLE_S = 50.0
"""How long a Broker is avoided after a response with code 503."""
MAX_LOST_IN_A_ROW = 3
"""A Broker with more failed connects and lost or late responses in a row is avoided for LOST_S."""
LOST_S = 3.0

COMPARE_S = 30.0
"""Interval between comparisons of the Brokers, and how long a Broker that did badly is avoided."""
MAX_POOR_SHARE = 0.15
"""Limit of the number of Brokers that are avoided at the same time because they did badly, as a share of all Brokers."""
POOR_SHARE_OF_MEAN = 0.2
POOR_SHARE_OF_SENT = 0.1
"""A Broker did badly if it stored less than both: this share of the `_trimmed_mean` of all Brokers, and this share of the
messages sent to it."""
MIN_TENTH_OF_SENT = 2
"""A Broker is judged only if a tenth (POOR_SHARE_OF_SENT) of the messages sent to it is more than this."""


class _Record:
    """Counts of one Broker.

    connect_failures  failed connects since the time `window_start`
    lost              failed connects and lost or late responses in a row
    sent, stored      messages since the last comparison
    """

    __slots__ = ("connect_failures", "lost", "sent", "stored", "window_start")

    def __init__(self) -> None:
        self.window_start = float("-inf")
        self.connect_failures = self.lost = self.sent = self.stored = 0


class BrokerBlocklist:
    """The Brokers that one producer avoids. `now` is always a time of the event loop, in seconds."""

    def __init__(self) -> None:
        self._records: dict[Broker, _Record] = {}
        self._unavailable: dict[Broker, float] = {}
        """Brokers that responded 503, or had more than MAX_LOST_IN_A_ROW failures in a row.

        The values of this dict and of `_poor` and `_banned` are the times until which the Brokers are avoided.
        """
        self._poor: dict[Broker, float] = {}
        """Brokers that stored far fewer messages than the others; a dict of its own, since their number is limited."""
        self._banned: dict[Broker, float] = {}
        """Brokers that refuse connections; a dict of its own for the same reason."""
        self._compared_at: float | None = None
        """Time of the last comparison, or of the first sent message; None before that."""

    def avoids(self, broker: Broker, now: float) -> bool:
        """Return True while messages should be sent to other Brokers."""
        return any(until.get(broker, now) > now for until in (self._unavailable, self._poor, self._banned))

    def avoided_brokers(self, now: float) -> list[Broker]:
        """Return all Brokers that are avoided now."""
        return [broker for broker in self._records if self.avoids(broker, now)]

    def count_sent(self, broker: Broker, now: float) -> None:
        """Count a sent message; every COMPARE_S seconds, compare the Brokers."""
        self._record(broker).sent += 1
        if self._compared_at is None:
            self._compared_at = now
        elif now - self._compared_at >= COMPARE_S:
            self._compared_at = now
            self._compare(now)

    def count_stored(self, broker: Broker) -> None:
        """Count a stored message: this lifts a ban after failed connects, and resets the counts of failures."""
        record = self._record(broker)
        record.stored += 1
        record.lost = record.connect_failures = 0
        self._banned.pop(broker, None)

    def count_failed(self, broker: Broker, error: MqbridgeError, now: float) -> None:
        """Count a failed message; avoid the Broker if the error or the number of errors requires it."""
        if isinstance(error, Unreachable):
            self._count_failed_connect(broker, now)
        if isinstance(error, ServerRefused):
            if error.code == codes.UNAVAILABLE:
                self._unavailable[broker] = now + UNAVAILABLE_S
        elif isinstance(error, (Unreachable, ConnectionLost, RequestTimeout)):
            record = self._record(broker)
            record.lost += 1
            if record.lost > MAX_LOST_IN_A_ROW:
                self._unavailable[broker] = max(self._unavailable.get(broker, now), now + LOST_S)

    def _record(self, broker: Broker) -> _Record:
        record = self._records.get(broker)
        if record is None:
            record = self._records[broker] = _Record()
        return record

    def _count_failed_connect(self, broker: Broker, now: float) -> None:
        """Count a failed connect; ban the Broker if it has too many, and not too many other Brokers are banned."""
        record = self._record(broker)
        if now - record.window_start > CONNECT_WINDOW_S:
            record.window_start, record.connect_failures = now, 0
        record.connect_failures += 1
        self._banned = {other: until for other, until in self._banned.items() if until > now}
        bans_left = min(round(len(self._records) * MAX_CONNECT_BAN_SHARE), MAX_CONNECT_BANS) - len(self._banned)
        if record.connect_failures > MAX_CONNECT_FAILURES and bans_left > 0:
            self._banned[broker] = now + CONNECT_BAN_S

    def _compare(self, now: float) -> None:
        """Avoid the Brokers that stored far fewer messages than the others; reset all counts of messages.

        Brokers that are avoided for this reason already are not compared.
        """
        compared: list[tuple[int, int, Broker]] = []
        for broker, record in self._records.items():
            if self._poor.get(broker, now) <= now:
                compared.append((record.stored, record.sent, broker))
            record.stored = record.sent = 0
        self._poor = {broker: until for broker, until in self._poor.items() if until > now}
        poor_left = round((len(compared) + len(self._poor)) * MAX_POOR_SHARE) - len(self._poor)
        compared.sort()  # fewest stored messages first
        if poor_left <= 0 or len(compared) < 2:
            return
        good_enough = int(_trimmed_mean([stored for stored, _, _ in compared]) * POOR_SHARE_OF_MEAN)
        for stored, sent, broker in compared:
            if stored >= good_enough or not poor_left:
                return
            tenth_of_sent = int(sent * POOR_SHARE_OF_SENT)
            if tenth_of_sent > MIN_TENTH_OF_SENT and stored < tenth_of_sent:
                self._poor[broker] = now + COMPARE_S
                poor_left -= 1


def _trimmed_mean(ascending: list[int]) -> float:
    """Return the mean of all numbers but the outliers.

    Outliers are the smallest number if there are three or fewer, otherwise the two smallest and the largest.
    """
    middle = ascending[1:] if len(ascending) <= 3 else ascending[2:-1]
    return sum(middle) / len(middle)
