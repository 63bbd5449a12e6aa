"""The library that records or refuses the writes of a process: its compilation, and its functions in a process that has it.

A process has the library if it was started with it as LD_PRELOAD. It does nothing until `start` is called.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import struct
import subprocess
from enum import IntFlag
from pathlib import Path

SOURCE = Path(__file__).with_name("trace.c")
OFF, REFUSE, STOP = 0, 1, 2
"""Modes of the control block: writes pass; writes fail; the next write stops its process by SIGSTOP."""


class Flags(IntFlag):
    """Which operations fail."""

    NONE = 0
    ONLY_GROWTH = 1
    SHORT = 2
    SYNCS = 4


def compile_library(folder: Path) -> Path | None:
    """Compile the library; None if there is no compiler for it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    library = folder / "trace.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
    return library if subprocess.run(command, check=False, capture_output=True).returncode == 0 else None


def is_available() -> bool:
    """Return True if this process was started with the library."""
    return hasattr(ctypes.CDLL(None), "trace_start")


def start(prefix: Path, journal: Path | None = None, control: Path | None = None) -> None:
    """Trace the files of this process whose paths start with `prefix`."""
    paths = [b"" if path is None else os.fsencode(path) for path in (journal, control)]
    if ctypes.CDLL(None).trace_start(os.fsencode(prefix), *paths) != 0:
        raise OSError("the control block cannot be mapped")


def mark(text: bytes) -> None:
    """Write a record of this process into its journal."""
    library = ctypes.CDLL(None)
    library.trace_mark(text, ctypes.c_size_t(len(text)))


class Control:
    """The control block, which processes share: it lets writes fail, or stop the process that writes."""

    _FIELDS = struct.Struct("=6I")

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(self._FIELDS.size))
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), self._FIELDS.size)

    def set(self, mode: int, *, error: int = 0, after: int = 0, flags: Flags = Flags.NONE) -> None:
        """Set the mode. It applies after `after` more writes; failing writes set errno to `error`."""
        self._map[:] = self._FIELDS.pack(OFF, error, after, flags, 0, 0)
        self._map[:4] = struct.pack("=I", mode)

    def clear(self) -> None:
        """Let writes pass."""
        self._map[:4] = bytes(4)

    @property
    def mode(self) -> int:
        """The mode; a process that stopped itself has set it to OFF."""
        return int(self._FIELDS.unpack(self._map[:])[0])

    @property
    def refused(self) -> int:
        """The number of operations that failed."""
        return int(self._FIELDS.unpack(self._map[:])[5])
