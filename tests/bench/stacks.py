"""Sampled stacks of a gateway: read from py-spy, put into groups by the package that did the work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

MAPPING = "wire and mapping"
COMPILED = "compiled module"
CLIENT = "client"
ADAPTER = "adapter"
DELIVERY = "delivery, gateway, routing"
NET = "net, asyncio, uvloop"
KERNEL = "kernel"
OTHER = "everything else"
GROUPS = (MAPPING, COMPILED, CLIENT, ADAPTER, DELIVERY, NET, KERNEL, OTHER)

_SYSTEM_CALL = re.compile(
    r"(__)?(libc_)?(read|readv|recv|recvfrom|recvmsg|write|writev|send|sendto|sendmsg|sendmmsg|epoll_\w+|eventfd\w*|ioctl|shutdown|"
    r"brk|mmap\w*|munmap|mremap|madvise|futex\w*|clone\w*|fsync|fdatasync|pread\w*|pwrite\w*|syscall)( |$)"
)
_LIBC = "(libc.so"
_LOOP = re.compile(r"uvloop|asyncio|selectors|_uv_|\buv__?\w+")
_OURS = re.compile(r"mqbridge/(?:(?:tubemq|pulsar|rocketmq|log|memory)/)?(\w+)")
_FOLDERS = {
    "wire": MAPPING, "mapping": MAPPING, "message": MAPPING, "client": CLIENT, "adapter": ADAPTER, "delivery": DELIVERY,
    "gateway": DELIVERY, "routing": DELIVERY, "receipts": DELIVERY, "ranges": DELIVERY, "positions": DELIVERY, "net": NET,
}  # fmt: skip
_COMMAND = ("mqbridge/cli/", "mqbridge/__main__")
"""The command is at the root of every stack and does none of the work."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Frames from the root to the leaf, each `function (file:line)`, and how many samples had them."""

    frames: tuple[str, ...]
    samples: int

    @property
    def group(self) -> str:
        """Whose time it is: the innermost package of ours, or of the event loop."""
        return next((found for frame in reversed(self.frames) if (found := group_of(frame)) is not None), OTHER)

    @property
    def where(self) -> str:
        """The innermost function of ours or of the event loop."""
        return next((plain(frame) for frame in reversed(self.frames) if group_of(frame) is not None), plain(self.frames[0]))


def group_of(frame: str) -> str | None:
    """The group of one frame; None where its caller's counts, as of a library's function."""
    if "mqbridge_native" in frame:
        return COMPILED
    if any(command in frame for command in _COMMAND):
        return None
    if found := _OURS.search(frame):
        return _FOLDERS.get(found[1], OTHER)
    return NET if _LOOP.search(frame) else None


def plain(frame: str) -> str:
    """A frame without its line number, its file from our package on. Functions of the module have no names: it is one."""
    name, _, place = frame.rpartition(" (")
    if "mqbridge_native" in place and name.startswith("0x"):
        return COMPILED
    place = place.removesuffix(")").partition(":")[0]
    if "mqbridge/" in place:
        place = place[place.index("mqbridge/") + len("mqbridge/") :]
    return f"{name} ({place})"


def parse(text: str) -> list[Stack]:
    """What `py-spy record --format raw` wrote: frames joined by semicolons, a blank, the number of samples.

    Those that end in a system call are left out: py-spy takes time, not CPU, and a process waits there, for something to do or
    for the core that the process which it woke took over.
    """
    stacks = []
    for line in text.splitlines():
        frames, _, samples = line.rpartition(" ")
        stack = Stack(tuple(frames.split(";")), int(samples))
        if not (_LIBC in stack.frames[-1] and _SYSTEM_CALL.match(stack.frames[-1])):
            stacks.append(stack)
    return stacks


def shares(stacks: Iterable[Stack], kernel: float) -> dict[str, float]:
    """Each group's share of all CPU, in the order of GROUPS, when the kernel's is known."""
    counts: Counter[str] = Counter()
    for stack in stacks:
        counts[stack.group] += stack.samples
    found = {group: counts[group] / counts.total() * (1 - kernel) for group in GROUPS} | {KERNEL: kernel}
    return {group: share for group, share in found.items() if share}


def largest(stacks: Iterable[Stack], count: int) -> list[tuple[str, str, float]]:
    """The functions that take most outside the kernel, a library's counted as their caller's: name, group, share of that."""
    counts: Counter[tuple[str, str]] = Counter()
    for stack in stacks:
        counts[stack.where, stack.group] += stack.samples
    return [(where, group, samples / counts.total()) for (where, group), samples in counts.most_common(count)]
