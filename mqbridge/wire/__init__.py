"""Sans-IO tools that are independent of any system: the frame cutter, varints, checksums, Java's string hash.

No `wire` package imports asyncio, or uses sockets or a clock.
"""
