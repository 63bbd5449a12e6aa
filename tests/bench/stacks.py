"""Sampled stacks of a gateway, as recorded by py-spy, and their groups by package."""

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
_OURS = re.compile(r"mqbridge/(?:(?:tubemq|pulsar|rocketmq|log|testing/memory)/)?(\w+)")
FOLDERS = {
    "wire": MAPPING, "mapping": MAPPING, "message": MAPPING, "client": CLIENT, "store": CLIENT, "adapter": ADAPTER,
    "testing": ADAPTER, "delivery": DELIVERY, "routes": DELIVERY, "gateway": DELIVERY, "routing": DELIVERY, "net": NET,
    "groups": DELIVERY, "listener": DELIVERY,
}  # fmt: skip
"""Group of each folder or file of mqbridge, or of a system, in which a gateway uses much CPU time; all others are OTHER."""
_COMMAND = ("mqbridge/cli/", "mqbridge/__main__")
"""Files of the command line, whose frames are at the root of every stack and form no group."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Frames from the root to the leaf, each `function (file:line)`, and the number of samples with this stack."""

    frames: tuple[str, ...]
    samples: int

    @property
    def group(self) -> str:
        """Group that the samples count for: that of the innermost frame of mqbridge or of the event loop."""
        return next((found for frame in reversed(self.frames) if (found := group_of(frame)) is not None), OTHER)

    @property
    def where(self) -> str:
        """The innermost function of mqbridge or of the event loop."""
        return next((plain(frame) for frame in reversed(self.frames) if group_of(frame) is not None), plain(self.frames[0]))


def group_of(frame: str) -> str | None:
    """Return the group of a frame. None, for example for a library, means the group of the caller."""
    if "mqbridge_native" in frame:
        return COMPILED
    if any(command in frame for command in _COMMAND):
        return None
    if found := _OURS.search(frame):
        return FOLDERS.get(found[1], OTHER)
    return NET if _LOOP.search(frame) else None


def plain(frame: str) -> str:
    """Return a frame without line number and with a path inside mqbridge. Functions of the compiled module become one name."""
    name, _, location = frame.rpartition(" (")
    if "mqbridge_native" in location and name.startswith("0x"):
        return COMPILED
    location = location.removesuffix(")").partition(":")[0]
    if "mqbridge/" in location:
        location = location[location.index("mqbridge/") + len("mqbridge/") :]
    return f"{name} ({location})"


def parse(text: str) -> list[Stack]:
    """Parse the output of `py-spy record --format raw`: frames joined by semicolons, a blank, the number of samples.

    Stacks that end in a system call are dropped. py-spy samples elapsed time, not CPU time, and in a system call the process may
    wait: for events, or for a core that another process uses.
    """
    stacks = []
    for line in text.splitlines():
        frames, _, samples = line.rpartition(" ")
        stack = Stack(tuple(frames.split(";")), int(samples))
        if not (_LIBC in stack.frames[-1] and _SYSTEM_CALL.match(stack.frames[-1])):
            stacks.append(stack)
    return stacks


def shares(stacks: Iterable[Stack], kernel: float) -> dict[str, float]:
    """Return the share of CPU time of each group, in the order of GROUPS; `kernel` is the share of the kernel."""
    counts: Counter[str] = Counter()
    for stack in stacks:
        counts[stack.group] += stack.samples
    found = {group: counts[group] / counts.total() * (1 - kernel) for group in GROUPS} | {KERNEL: kernel}
    return {group: share for group, share in found.items() if share}


def largest(stacks: Iterable[Stack], count: int) -> list[tuple[str, str, float]]:
    """Return the functions with the most CPU time outside the kernel: name, group and share.

    Library functions count for their callers.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for stack in stacks:
        counts[stack.where, stack.group] += stack.samples
    return [(where, group, samples / counts.total()) for (where, group), samples in counts.most_common(count)]
