"""Imports go one way: a folder is a layer. What a layer may import is written here; everything not listed is forbidden."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "mqbridge"
SYSTEMS = sorted(path.parent.name for path in ROOT.glob("*/adapter"))
"""Every folder with an adapter."""
MODEL = {"errors", "message", "native"}
CONTRACT = MODEL | {"adapter"}
CORE = CONTRACT | {"net", "routing", "delivery"}

# layer -> what of mqbridge it may import, besides itself
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "native": set(),
    "message": {"native"},
    "secret_sources": set(),
    "secret": {"errors", "secret_sources"},
    "wire": {"errors"},
    "net": {"errors", "secret", "wire"},
    "adapter": MODEL | {"mapping"},
    "receipts": CONTRACT,
    "positions": {"message"},
    "ranges": CONTRACT | {"positions"},
    "retention": CONTRACT,
    "mapping": {"errors", "message", "native", "wire"},
    "routing": CONTRACT | {"config"},
    "delivery": CONTRACT | {"net", "routing"},
    "config": CONTRACT | {"net", "secret"},
    "gateway": CORE | {"config"},
    "spark": CORE | {"config", "gateway", "mapping", "positions", "ranges", "wire"},
    "cli": CORE | {"config", "gateway", "mapping", "spark"},
    "__main__": {"cli"},
    "__init__": set(),
}
for system in SYSTEMS:
    inner = {layer: f"{system}.{layer}" for layer in ("wire", "mapping", "client", "store", "adapter")}
    ALLOWED |= {
        inner["wire"]: {"errors", "wire"} | ({"message"} if system == "log" else set()),
        inner["client"]: {"errors", "native", "secret", "wire", "net", inner["wire"]},
        inner["store"]: CONTRACT | {"config", "net", inner["wire"]},
        inner["mapping"]: CONTRACT | {"mapping", "wire", inner["wire"]},
        inner["adapter"]: CONTRACT
        | {"config", "mapping", "net", "ranges", "receipts", "retention", "secret", "wire", system, *inner.values()},
        system: CONTRACT | {"net"},
    }
NO_IO = {"asyncio", "socket", "ssl", "time", "threading", "httpx", "selectors"}


def modules() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if "pb" not in path.parts]


def layer_of(parts: tuple[str, ...]) -> str:
    """The layer of a module of mqbridge: its folder, and within a system the folder below."""
    if not parts:
        return "__init__"
    if parts[0] in SYSTEMS and len(parts) > 1 and (ROOT / parts[0] / parts[1]).is_dir():
        return f"{parts[0]}.{parts[1]}"
    return parts[0]


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
    own = layer_of(parts if parts[-1] != "__init__" or len(parts) == 1 else parts[:-1])
    for name in imports(path):
        if name.startswith("mqbridge.") and name.split(".")[1] != "__version__":
            used = layer_of(tuple(name.split(".")[1:]))
            assert used == own or used in ALLOWED[own], f"{path.relative_to(ROOT)} ({own}) must not import {name} ({used})"


def test_files_import_each_other_in_no_circle() -> None:
    names = {
        ".".join(("mqbridge", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in modules()
    }
    graph = {name: (imports(path) & names.keys()) - {name} for name, path in names.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


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


def test_the_compiled_module_is_imported_in_one_place() -> None:
    offenders = [
        str(path.relative_to(ROOT)) for path in modules() if {"mqbridge_native"} & {n.split(".")[0] for n in imports(path)}
    ]
    assert offenders == ["native.py"]
