"""When a message is to be delivered that a client sends with a delay."""

from mqbridge.rocketmq.server.refusals import CodedRefusal
from mqbridge.rocketmq.wire.codes import Status
from mqbridge.rocketmq.wire.delay_levels import MAX_TIMER_MS, delay_s
from mqbridge.rocketmq.wire.properties import Name, find

_NAMES = (Name.DELAY, Name.TIMER_DELIVER_MS, Name.TIMER_DELAY_MS, Name.TIMER_DELAY_SEC)
_MAX_DIGITS = 18


def due_ms_of(properties: bytes, now_ms: int) -> int | None:
    """Return the time at which a message is due (ms since the epoch), from its property string; None if it is not delayed.

    A level counts more than a time, as with brokers. Raises CodedRefusal for a time that is too far away, or no number.
    """
    if not any(name.encode() in properties for name in _NAMES):
        return None
    level = _number(properties, Name.DELAY)
    if level is not None and level > 0:
        return now_ms + 1000 * delay_s(level)
    times = _number(properties, Name.TIMER_DELAY_SEC), _number(properties, Name.TIMER_DELAY_MS)
    at_ms = _number(properties, Name.TIMER_DELIVER_MS)
    if times[0] is not None:
        at_ms = now_ms + 1000 * times[0]
    elif times[1] is not None:
        at_ms = now_ms + times[1]
    if at_ms is None or at_ms <= now_ms:
        return None
    if at_ms - now_ms > MAX_TIMER_MS:
        problem = f"the message is due in {(at_ms - now_ms) // 1000} s, and at most {MAX_TIMER_MS // 1000} s are accepted"
        raise CodedRefusal(problem, Status.MESSAGE_ILLEGAL)
    return at_ms


def _number(properties: bytes, name: str) -> int | None:
    text = find(properties, name)
    if text is None:
        return None
    digits = text.strip().removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
        raise CodedRefusal(f"the property {name} is {text[:40]!r}, and not a number", Status.MESSAGE_ILLEGAL)
    return int(text)
