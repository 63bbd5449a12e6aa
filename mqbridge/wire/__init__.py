"""Sans-IO tools that know no system: the frame cutter, varints, percent escapes.

Nothing below imports asyncio or holds a socket or a clock.
"""
