"""Sans-IO tools that are independent of any system: cutting a byte stream into frames, varints, checksums, Java's string hash.

No `wire` package imports asyncio, or uses sockets or a clock.
"""
