"""Pages of docs/ with a chapter for each benchmark. A new measurement replaces its chapter and keeps the others."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from tests.kit.maven import say


def machine() -> str:
    """Return a line that describes this machine and the versions of packages."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?"
    )
    packages = ", ".join(f"{name} {version(name)}" for name in ("uvloop", "protobuf", "crc32c"))
    return (
        f"{os.cpu_count()} x {model}, Linux, Python {platform.python_version()}, {packages}; servers and bridge share the cores."
    )


def chapters(page: str) -> dict[str, str]:
    """Return the chapters of a page by title."""
    texts = [f"## {text.strip()}\n" for text in f"\n{page}".split("\n## ")[1:]]
    return {text.splitlines()[0]: text for text in texts}


def renew(page: Path, intro: str, measured: dict[str, str]) -> None:
    """Write a page: the introduction, the measured chapters, and the other chapters that it had before."""
    before = chapters(page.read_text()) if page.exists() else {}
    page.write_text("\n".join([intro, *(before | measured).values()]))
    say(f"wrote {page.name}")
