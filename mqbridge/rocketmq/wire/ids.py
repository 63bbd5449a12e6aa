"""Hosts (address and port) and message ids. A message id is upper-case hex: 32 characters, or 56 with an IPv6 address.

    offset id   store host (IP address, int32 port) | int64 physical offset
    unique id   IP address | uint16 process id | int32 constant of the client | uint32 ms of the month | uint16 counter

A broker makes the offset id, which locates the record; a message that is stored again has another one. The producer makes the
unique id (property UNIQ_KEY), which Java applications see as the message id. It does not identify a record: all messages in a
batch of a 5.x Java producer share one.
"""

import ipaddress
import struct
from collections.abc import Iterable

from mqbridge.errors import LocalProtocolError, RemoteProtocolError

_HOST = struct.Struct(">4si")
_HOST6 = struct.Struct(">16si")
_OFFSET = struct.Struct(">q")
_PROCESS_AND_CONSTANT = struct.Struct(">Hi")

OFFSET_ID_CHARS = 32
OFFSET_ID_CHARS_IPV6 = 56
"""Hex digits of an offset id: address (4 bytes, or 16 for IPv6), port (4 bytes) and physical offset (8 bytes)."""


def format_host(host: bytes) -> str:
    """Return the host of a record (8 or 20 bytes) as `ip:port`, with brackets around an IPv6 address."""
    address, port = (_HOST if len(host) == _HOST.size else _HOST6).unpack(host)
    text = str(ipaddress.ip_address(address))
    return f"[{text}]:{port}" if len(host) == _HOST6.size else f"{text}:{port}"


def parse_host(text: str) -> bytes:
    """Return the host `ip:port`, split at the last colon, as a record stores it: 8 or 20 bytes.

    Raises LocalProtocolError for a host name, and for other text without an IP address and a port.
    """
    address, _, port = text.rpartition(":")
    try:
        packed = ipaddress.ip_address(address.strip("[]")).packed
        return (_HOST if len(packed) == 4 else _HOST6).pack(packed, int(port))
    except (ValueError, struct.error) as error:
        raise LocalProtocolError(f"a record's host must be an IP address and a port, not {text!r}") from error


def offset_id(host: bytes, physical_offset: int) -> str:
    """Return the id of the record at this physical offset; `host` is the broker's address as the record stores it."""
    return (host + _OFFSET.pack(physical_offset)).hex().upper()


def offset_ids(host: bytes, physical_offsets: Iterable[int]) -> str:
    """Return the ids of several records, joined by commas."""
    prefix = host.hex().upper()
    return ",".join([f"{prefix}{offset:016X}" for offset in physical_offsets])


def parse_offset_id(text: str) -> tuple[bytes, int]:
    """Return the host, as a record stores it, and the physical offset. Raises RemoteProtocolError if the text is no id."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(text) not in {OFFSET_ID_CHARS, OFFSET_ID_CHARS_IPV6} or len(data) * 2 != len(text):
        raise RemoteProtocolError(f"{text[:80]!r} is not the id of a stored message: such an id has 32 or 56 hex digits")
    return data[:-8], _OFFSET.unpack(data[-8:])[0]


class UniqueIds:
    """Generates unique ids, which do not repeat within a month.

    `address` is the client's IP address, 4 or 16 bytes; `process` (16 bits) and `constant` (31 bits) distinguish the generators
    of one host. The counter (16 bits) of the first id is `start` + 1.
    """

    __slots__ = ("_counter", "_last_ms", "_prefix")

    def __init__(self, address: bytes, process: int, constant: int, start: int = 0) -> None:
        if len(address) not in {4, 16}:
            raise LocalProtocolError(f"an address of {len(address)} bytes is neither IPv4 (4 bytes) nor IPv6 (16 bytes)")
        self._prefix = (address + _PROCESS_AND_CONSTANT.pack(process & 0xFFFF, (constant & 0x7FFFFFFF))).hex().upper()
        self._counter = start
        self._last_ms = 0

    def make(self, ms_of_month: int) -> str:
        """Return the next id; `ms_of_month` is the current time, in ms since the beginning of the month."""
        prefix, counter = self.reserve(ms_of_month, 1)
        return f"{prefix}{counter:04X}"

    def reserve(self, ms_of_month: int, count: int) -> tuple[str, int]:
        """Reserve `count` ids, at most MAX_RESERVED: return their common prefix and the counter of the first.

        An id is the prefix and its counter as 4 hex digits.
        """
        # The counter has 16 bits. When it wraps, the time in the id advances by a ms, whatever the clock says, so no id repeats.
        # The time decreases only when a new month begins.
        counter = self._counter + 1 & 0xFFFF
        if counter + count > MAX_RESERVED or not counter:
            counter = 0
            self._last_ms += 1
        self._counter = counter + count - 1
        if ms_of_month > self._last_ms or self._last_ms - ms_of_month > _NEW_MONTH_MS:
            self._last_ms = ms_of_month
        return f"{self._prefix}{self._last_ms & 0xFFFFFFFF:08X}", counter


MAX_RESERVED = 1 << 16
"""Maximum number of ids per reservation: the number of values of the counter."""
_NEW_MONTH_MS = 27 * 86_400_000
"""If `ms_of_month` decreases by more than this, a new month has begun; the shortest month has 28 days."""
