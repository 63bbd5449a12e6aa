"""Draws the picture in docs/explanation/architecture.md from the imports of the code.

python -m tools.architecture_page --check     exits 1 when the page shows something else
python -m tools.architecture_page --write

A box is a folder (or file) of mqbridge, a row is a layer, an arrow is an import; arrows that follow from others are left out. The
systems are alike, so they are one box, with the union of what they import; the second picture is their inside, and the third one
that of their clients.
"""

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tools.generated_page import DOCS, check_or_write

ROOT = Path(__file__).parents[1] / "mqbridge"
PAGE = DOCS / "explanation" / "architecture.md"
BEGIN, END = "<!-- Drawn by `python -m tools.architecture_page --write`. Do not edit. -->", "<!-- end -->"
SYSTEMS = sorted(path.parent.name for path in ROOT.glob("*/adapter"))
"""Every folder with an adapter."""
SYSTEM = "a system"

Graph = dict[str, set[str]]


def imports(path: Path) -> Iterator[tuple[str, ...]]:
    """What a file imports of mqbridge, as the parts behind `mqbridge`."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: Iterable[str] = ()
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("mqbridge."):
                yield tuple(name.split(".")[1:])


def box(parts: tuple[str, ...]) -> str:
    """The box of the first picture that a module is in; "" for the version number and the entry point."""
    if parts[0] in SYSTEMS:
        return SYSTEM
    return "" if parts[0].startswith("__") else parts[0].removesuffix(".py")


def system_box(parts: tuple[str, ...]) -> str:
    """The box of the second picture; "" outside of the systems."""
    if parts[0] not in SYSTEMS or len(parts) < 2:
        return ""
    layer = parts[1].removesuffix(".py")
    return {"store": "client", "__init__": ""}.get(layer, layer)


def client_box(parts: tuple[str, ...]) -> str:
    """The box of the third picture: the room of a client, or `client` for the files beside the rooms."""
    if parts[0] not in SYSTEMS or len(parts) < 3 or parts[1] != "client":
        return ""
    return parts[2] if (ROOT / parts[0] / "client" / parts[2]).is_dir() else "client"


def graph(box_of: Callable[[tuple[str, ...]], str]) -> Graph:
    """Boxes and what they import."""
    found: Graph = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        if "pb" in parts or (parts[-1] == "__init__.py" and box_of is client_box) or not (own := box_of(parts)):
            continue
        used = {box_of(name) for name in imports(path) if box_of is box or name[0] == parts[0]}
        found.setdefault(own, set()).update(used - {"", own})
    return {name: {other for other in used if other in found} for name, used in found.items()}


def reach(made: Graph, name: str) -> set[str]:
    """Everything that a box imports, and what that imports."""
    seen: set[str] = set()
    todo = list(made[name])
    while todo:
        if (other := todo.pop()) not in seen:
            seen.add(other)
            todo += made[other]
    return seen


def reduced(made: Graph) -> Graph:
    """Without the arrows that follow from others."""
    return {
        name: {one for one in used if not any(one in reach(made, other) for other in used - {one})} for name, used in made.items()
    }


def drawn(made: Graph) -> str:
    """A picture in Mermaid."""
    lines = ["```mermaid", "flowchart TD"]
    ids = {name: f"b{number}" for number, name in enumerate(sorted(made))}
    lines += [f'    {ids[name]}["{name}"]' for name in sorted(made)]
    lines += [f"    {ids[name]} --> {ids[other]}" for name, used in sorted(reduced(made).items()) for other in sorted(used)]
    return "\n".join([*lines, "```"])


def generated() -> str:
    """Everything between the marks."""
    parts = (drawn(graph(box)), "Inside each system:", drawn(graph(system_box)), "Inside each client:", drawn(graph(client_box)))
    return "\n\n".join(parts)


def page() -> str:
    """The whole page: the text around the marks is written by people."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{generated()}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(check_or_write("tools.architecture_page", PAGE, page()))
