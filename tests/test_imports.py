"""Imports go one way. What a package may import is written here; everything not listed is forbidden."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "mqbridge"
SYSTEMS = ("tubemq", "pulsar", "rocketmq", "log", "memory")
MODEL = {"errors", "message"}
CONTRACT = MODEL | {"adapter"}
CORE = CONTRACT | {"net", "routing", "delivery"}

# package -> what of mqbridge it may import, besides itself
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "message": {"raw"},  # for type checkers only
    "raw": {"message"},
    "shapes": set(),
    "memo": set(),
    "attributes": {"memo", "message"},
    "fates": {"message"},
    "carried": {"message"},
    "units": {"errors"},
    "wire": {"errors"},
    "net": {"errors", "wire"},
    "adapter": MODEL,
    "receipts": CONTRACT,
    "routing": CONTRACT,
    "delivery": CONTRACT | {"net", "routing"},
    "gateway": CORE | {"config"},
    "config": CONTRACT | {"routing", "units"},
    "cli": CORE | {"config", "fates", "gateway", "units"},
    "__main__": {"cli"},
    "__init__": set(),
}
for system in SYSTEMS:
    ALLOWED |= {
        f"{system}.wire": {"errors", "wire"} | ({"message"} if system == "log" else set()),
        f"{system}.client": {"errors", "wire", "net", f"{system}.wire"},
        f"{system}.mapping": CONTRACT | {"attributes", "carried", "fates", "memo", "raw", "shapes", "wire", f"{system}.wire"},
        f"{system}.config": CONTRACT | {"net", "units", f"{system}.wire", f"{system}.client"},
        f"{system}.adapter": CONTRACT
        | {"net", "receipts", "wire"}
        | {f"{system}.{part}" for part in ("wire", "client", "mapping", "config")},
    }
MAPPING = (
    *("batched", "batches", "cutting", "escapes", "fields", "head", "mapping", "native", "preview", "reading", "shapes", "times"),
    "writing",
)
"""The modules of a system that know messages and their own wire, and nothing else."""
NO_IO = {"asyncio", "socket", "ssl", "time", "threading", "httpx", "selectors"}


def modules() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if "pb" not in path.parts]


def package_of(parts: tuple[str, ...]) -> str:
    """The key of ALLOWED that governs a module of mqbridge."""
    if parts and parts[0] in SYSTEMS:
        if len(parts) == 1:
            return parts[0]
        layer = "mapping" if parts[1] in MAPPING else parts[1]
        return f"{parts[0]}.{layer}" if f"{parts[0]}.{layer}" in ALLOWED else f"{parts[0]}.adapter"
    return parts[0] if parts else "__init__"


def imports(path: Path) -> set[str]:
    """Every absolute module name that the file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    parts = path.relative_to(ROOT).with_suffix("").parts
    own = package_of(parts if parts[-1] != "__init__" or len(parts) == 1 else parts[:-1])
    if own in SYSTEMS:
        return  # a system's package docstring imports nothing
    for name in imports(path):
        if name.startswith("mqbridge.") and name.split(".")[1] != "__version__":
            used = package_of(tuple(name.split(".")[1:]))
            own_system = own.split(".")[0]
            same = used == own or (own == f"{own_system}.adapter" and used == own_system)
            assert same or used in ALLOWED[own], f"{path.relative_to(ROOT)} ({own}) must not import {name} ({used})"


@pytest.mark.parametrize("path", [p for p in modules() if "wire" in p.parts], ids=lambda path: str(path.relative_to(ROOT)))
def test_wire_is_sans_io(path: Path) -> None:
    used = {name.split(".")[0] for name in imports(path)}
    assert not used & NO_IO, f"{path.relative_to(ROOT)} uses {sorted(used & NO_IO)}"


def test_tasks_are_created_in_one_place() -> None:
    offenders = [
        str(path.relative_to(ROOT))
        for path in modules()
        if path.name != "tasks.py" and ("create_task(" in path.read_text() or "ensure_future(" in path.read_text())
    ]
    assert offenders == []
