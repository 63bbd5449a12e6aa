"""Hosts and message ids. Ids are upper-case hex.

    offset id   store host (IPv4 or IPv6, int32 port), int64 physical offset       32 or 56 characters
    unique id   IPv4 or IPv6, uint16 process, int32 of client, uint32 ms of the month, uint16 counter       32 or 56 characters

The offset id locates a record; a message that is stored again has another one. The unique id (UNIQ_KEY) is the producer's, which
Java applications see as the message id. All messages of a 5.x Java producer's batch share one: it identifies no stored record.
"""

import ipaddress
import struct

from mqbridge.errors import LocalProtocolError, RemoteProtocolError

_HOST = struct.Struct(">4si")
_HOST6 = struct.Struct(">16si")
_OFFSET = struct.Struct(">q")
_FIXED = struct.Struct(">Hi")

OFFSET_ID_CHARS = 32
OFFSET_ID_CHARS_IPV6 = 56


def format_host(host: bytes) -> str:
    """Return `ip:port` of a record's host (8 or 20 bytes); an IPv6 address stands in brackets."""
    address, port = (_HOST if len(host) == _HOST.size else _HOST6).unpack(host)
    text = str(ipaddress.ip_address(address))
    return f"[{text}]:{port}" if len(host) == _HOST6.size else f"{text}:{port}"


def parse_host(text: str) -> bytes:
    """Encode the host `ip:port`, split at the last colon as Java does. Raises LocalProtocolError for names and garbage."""
    address, _, port = text.rpartition(":")
    try:
        packed = ipaddress.ip_address(address.strip("[]")).packed
        return (_HOST if len(packed) == 4 else _HOST6).pack(packed, int(port))
    except (ValueError, struct.error) as error:
        raise LocalProtocolError(f"{text!r} is not an IP address and a port, as a record's host must be") from error


def offset_id(host: bytes, physical_offset: int) -> str:
    """Return the id of the record at this physical offset; `host` is the broker's address as the record stores it."""
    return (host + _OFFSET.pack(physical_offset)).hex().upper()


def parse_offset_id(text: str) -> tuple[bytes, int]:
    """Return host and physical offset. Raises RemoteProtocolError for a text that is no offset id."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(text) not in {OFFSET_ID_CHARS, OFFSET_ID_CHARS_IPV6} or len(data) * 2 != len(text):
        raise RemoteProtocolError(f"{text[:80]!r} is not the id of a stored message, which has 32 or 56 hex digits")
    return data[:-8], _OFFSET.unpack(data[-8:])[0]


class UniqueIds:
    """Generates unique ids, without a repeat within a month. `process` and `constant` distinguish generators.

    `address` is an IP of 4 or 16 bytes; the first counter is `start` + 1.
    """

    __slots__ = ("_counter", "_last_ms", "_prefix")

    def __init__(self, address: bytes, process: int, constant: int, start: int = 0) -> None:
        if len(address) not in {4, 16}:
            raise LocalProtocolError(f"an address of {len(address)} bytes is neither IPv4 nor IPv6")
        self._prefix = (address + _FIXED.pack(process & 0xFFFF, (constant & 0x7FFFFFFF))).hex().upper()
        self._counter = start
        self._last_ms = 0

    def make(self, ms_of_month: int) -> str:
        """Return the next id. The argument is the current time, in ms since the month began."""
        prefix, counter = self.reserve(ms_of_month, 1)
        return f"{prefix}{counter:04X}"

    def reserve(self, ms_of_month: int, count: int) -> tuple[str, int]:
        """Reserve up to MAX_RESERVED ids: return their prefix and first counter. An id is the prefix and 4 hex digits."""
        # The counter has 16 bits. When it wraps, the time in the id advances even if the clock does not. It goes back only when a
        # new month begins.
        counter = self._counter + 1 & 0xFFFF
        if counter + count > MAX_RESERVED or not counter:
            counter = 0
            self._last_ms += 1
        self._counter = counter + count - 1
        if ms_of_month > self._last_ms or self._last_ms - ms_of_month > _MONTH_MS:
            self._last_ms = ms_of_month
        return f"{self._prefix}{self._last_ms & 0xFFFFFFFF:08X}", counter


MAX_RESERVED = 1 << 16
_MONTH_MS = 27 * 86_400_000
"""If `ms_of_month` falls by more than this, a new month has begun."""
