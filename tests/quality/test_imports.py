"""Imports go one way: a folder is a layer. The allowed imports of each layer are listed here; all others are forbidden.

A class name means one thing in a system and in the code that all systems share.
"""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "mqbridge"
SYSTEMS = sorted(path.parent.name for path in ROOT.glob("*/adapter"))
"""Every folder with an adapter."""
MODEL = {"errors", "message", "native"}
CONTRACT = MODEL | {"adapter"}
CORE = CONTRACT | {"adapter.tools", "net", "routing", "delivery", "routes"}
COMMAND_LINE = CORE | {"config", "gateway", "mapping", "spark"}

# layer -> what of mqbridge it may import, besides itself
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "native": set(),
    "message": {"native"},
    "wire": {"errors"},
    "net": {"errors", "wire"},
    "adapter": MODEL | {"mapping"},
    "adapter.tools": CONTRACT,
    "mapping": {"errors", "message", "native", "wire"},
    "library": MODEL | {"net"},
    "routing": CONTRACT | {"config"},
    "delivery": CONTRACT | {"adapter.tools", "net", "routing"},
    "groups": CONTRACT | {"adapter.tools", "net"},
    "listener": CONTRACT | {"adapter.tools", "delivery", "groups", "net"},
    "config": CONTRACT | {"net", "wire"},
    "routes": CONTRACT | {"adapter.tools", "config", "delivery", "net", "routing"},
    "gateway": CORE | {"config", "groups", "listener"},
    "spark": CORE | {"config", "mapping", "wire"},
    "testing": CONTRACT | {"adapter.tools", "mapping", "net"},
    "cli": COMMAND_LINE | {"cli.commands", "cli.shared"},
    "cli.commands": COMMAND_LINE | {"cli", "cli.shared", "log.store"},  # `mqbridge log` works on files of the embedded log
    "cli.shared": COMMAND_LINE,
    "__main__": {"cli"},
    "__init__": {f"{system}.library" for system in SYSTEMS},
}
ROOMS = ("connection", "admin", "producer", "consumer")
"""The folders of every client. The files beside them open what is in the rooms, so no room imports them."""
ROOM_IMPORTS: dict[str, dict[str, set[str]]] = {
    "pulsar": {"admin": {"connection"}, "producer": {"connection"}, "consumer": {"connection"}},
    "rocketmq": {"admin": {"connection"}, "producer": {"connection", "admin"}, "consumer": {"connection", "admin"}},
    "tubemq": {"consumer": {"connection"}, "producer": {"connection", "consumer"}},
}
for system in SYSTEMS:
    inner = {layer: f"{system}.{layer}" for layer in ("wire", "mapping", "client", "library", "store", "adapter", "server")}
    rooms = {room: f"{system}.client.{room}" for room in ROOMS}
    client = {inner["client"], *rooms.values()}
    below = {"errors", "native", "wire", "net", inner["wire"]}
    ALLOWED |= {rooms[room]: below | {rooms[used] for used in ROOM_IMPORTS.get(system, {}).get(room, ())} for room in ROOMS}
    ALLOWED |= {
        inner["wire"]: {"errors", "wire"} | ({"message"} if system == "log" else set()),
        inner["client"]: below | client,
        inner["library"]: CONTRACT | {"library", "mapping", "net", "wire", inner["wire"], inner["mapping"]} | client,
        inner["store"]: CONTRACT | {"adapter.tools", "config", "net", inner["wire"]},
        inner["mapping"]: CONTRACT | {"mapping", "wire", inner["wire"]},
        inner["server"]: CONTRACT | {"adapter.tools", "listener", "mapping", "net", "wire", inner["wire"], inner["mapping"]},
        inner["adapter"]: CONTRACT
        | {"adapter.tools", "config", "mapping", "net", "wire", system}
        | client
        | (set(inner.values()) - {inner["library"], inner["server"]}),
        system: CONTRACT | {"net"},
    }
SAME_NAME = {
    "State": "the states of a table, or of a transaction",
    "Event": "the events of a table",
    "Consumer": "the contract of the client libraries, which each of them implements",
    "Producer": "the contract of the client libraries, which each of them implements",
    "Connectivity": "the contract that the gateway sees, and its implementation for all systems",
    "Route": "the options, which the schema of the configuration names so, and the route that runs with them",
    "Target": "the options, which the schema of the configuration names so, and the target that is opened with them",
}
"""Class names that may be used twice in one system or in the shared code, and why."""
NO_IO = {"asyncio", "socket", "ssl", "time", "threading", "httpx", "selectors"}


def modules() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if "pb" not in path.parts]


def layer_of(parts: tuple[str, ...]) -> str:
    """Return the layer of a module: its folder, to the depth at which folders are layers.

    In a system this is the subfolder, and in a client its room; in cli it is `commands`, or `shared` for the other subfolders.
    """
    if not parts:
        return "__init__"
    folders = [depth for depth in range(1, len(parts) + 1) if ROOT.joinpath(*parts[:depth]).is_dir()]
    depth = max(folders, default=0)
    if parts[0] in SYSTEMS and depth > 1:
        return ".".join(parts[: min(depth, 3 if parts[1] == "client" else 2)])
    if parts[:2] == ("adapter", "tools"):
        return "adapter.tools"
    if parts[0] == "cli" and depth > 1:
        return "cli.commands" if parts[1] == "commands" else "cli.shared"
    return parts[0]


def imports(path: Path) -> set[str]:
    """Return every absolute module name that the file imports when it runs; type checkers may see more."""
    names: set[str] = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
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


@pytest.mark.parametrize("client", sorted(ROOT.glob("*/client")), ids=lambda path: path.parent.name)
def test_every_client_has_the_same_rooms(client: Path) -> None:
    assert {path.name for path in client.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ROOMS)


def test_there_are_no_import_cycles() -> None:
    names = {
        ".".join(("mqbridge", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in modules()
    }
    graph = {name: (imports(path) & names.keys()) - {name} for name, path in names.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def class_names(folders: set[str]) -> dict[str, list[str]]:
    """Return the files that define each public class name, in these folders of mqbridge."""
    files: dict[str, list[str]] = {}
    for path in modules():
        name = path.relative_to(ROOT)
        if name.parts[0].removesuffix(".py") in folders:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    files.setdefault(node.name, []).append(str(name))
    return files


@pytest.mark.parametrize("own", [*SYSTEMS, "spark", "testing", "shared code"])
def test_a_class_name_means_one_thing(own: str) -> None:
    """A system and the shared code have no class name twice; nor does a system use one of the shared code again."""
    top = {path.stem for path in ROOT.iterdir()}
    shared = top - {*SYSTEMS, "spark", "testing"}
    folders = {"shared code": shared, "spark": {"spark"}}.get(own, {own, *shared})
    twice = {name: files for name, files in class_names(folders).items() if len(files) > 1 and name not in SAME_NAME}
    assert twice == {}


@pytest.mark.parametrize("path", sorted((ROOT / "cli" / "commands").glob("*.py")), ids=lambda path: path.stem)
def test_no_command_imports_another(path: Path) -> None:
    assert not [name for name in imports(path) if name.startswith("mqbridge.cli.commands")]


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
