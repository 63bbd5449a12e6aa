"""Messages that a producer sends to a server -> units of the format `rocketmq.record`.

If the compiled module is installed, it splits batches. The units have no publish time: their store sets it. What brokers refuse,
such as an empty body or more than MAX_BYTES of properties, is not refused here.
"""

from itertools import repeat

from mqbridge.message import Unit
from mqbridge.native import compiled
from mqbridge.rocketmq.wire.batch import decode_batch
from mqbridge.rocketmq.wire.neutral_record import encode_neutral


def units_of_batch(body: bytes, born_ms: int) -> list[Unit]:
    """Return a unit for each message in the body of SEND_BATCH_MESSAGE, which are born at `born_ms`.

    Raises RemoteProtocolError for a body that cannot be split into messages, see `decode_batch`, and for a property string that
    is too long for a record (65,535 bytes).
    """
    if compiled is None:
        return units_of_batch_plain(body, born_ms)
    # `Unit(*values)` takes twice the time.
    return [*map(tuple.__new__, repeat(Unit), compiled.rocketmq_batch_units(body, born_ms))]


def units_of_batch_plain(body: bytes, born_ms: int) -> list[Unit]:
    """Split a batch like `units_of_batch`, without the compiled module."""
    return [
        Unit(encode_neutral(content, properties, flag=flag, born_timestamp=born_ms), 1, None)
        for flag, content, properties in decode_batch(body)
    ]


def unit_of_message(body: bytes, properties: bytes, *, flag: int, sys_flag: int, born_ms: int, reconsume_times: int) -> Unit:
    """Return one message as a unit. With the bit COMPRESSED in `sys_flag`, `body` is compressed already.

    Raises RemoteProtocolError for a number or a property string that is too large for a record.
    """
    data = encode_neutral(body, properties, flag=flag, sys_flag=sys_flag, born_timestamp=born_ms, reconsume_times=reconsume_times)
    return Unit(data, 1, None)
