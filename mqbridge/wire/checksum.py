"""CRC-32 (IEEE), with the fastest implementation that is installed.

ISA-L's implementation was measured at 98 ns for 1 KB and 275 ns for 10 KB, zlib's at 380 ns and 2,500 ns. ISA-L is not
installed on every machine.
"""

import zlib
from collections.abc import Callable


def _import_crc32() -> Callable[[bytes], int]:
    """Return ISA-L's function if it is installed, else zlib's."""
    try:
        from isal.isal_zlib import crc32 as isal_crc32  # noqa: PLC0415 - may be absent
    except ImportError:
        return zlib.crc32
    function: Callable[[bytes], int] = isal_crc32  # isal has no type annotations
    return function


crc32 = _import_crc32()
"""CRC-32 of bytes, the same value as `zlib.crc32`."""
