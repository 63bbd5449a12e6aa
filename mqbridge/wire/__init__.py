"""Sans-IO tools that are independent of any system: the frame cutter, varints, percent escapes.

Nothing in a `wire` package imports asyncio, or uses a socket or a clock.
"""
