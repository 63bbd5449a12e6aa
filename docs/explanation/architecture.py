"""Draws the picture in docs/explanation/architecture.md from the imports of the code.

python docs/explanation/architecture.py --check     exits 1 when the page shows something else
python docs/explanation/architecture.py --write

A box is a folder (or file) of mqbridge, a row is a layer, an arrow is an import; arrows that follow from others are left out. The
systems are alike, so they are one box, with the union of what they import; the second picture is their inside.
"""

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parents[1] / "mqbridge"
PAGE = DOCS / "architecture.md"
BEGIN, END = "<!-- Drawn by `python docs/explanation/architecture.py --write`. Do not edit. -->", "<!-- end -->"
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


def inner_box(parts: tuple[str, ...]) -> str:
    """The box of the second picture; "" outside of the systems."""
    if parts[0] not in SYSTEMS or len(parts) < 2:
        return ""
    layer = parts[1].removesuffix(".py")
    return {"broker": "client", "store": "client", "__init__": ""}.get(layer, layer)


def graph(inside: bool) -> Graph:
    """Boxes and what they import."""
    found: Graph = {}
    which = inner_box if inside else box
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        if "pb" in parts or not (own := which(parts)):
            continue
        used = {which(name) for name in imports(path) if not inside or name[0] == parts[0]}
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
    parts = (drawn(graph(inside=False)), "Inside of each system:", drawn(graph(inside=True)))
    return "\n\n".join(parts)


def main() -> int:
    """Check or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--check", action="store_true")
    group.add_argument("--write", action="store_true")
    given = parser.parse_args()
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    wanted = f"{before}{BEGIN}\n{generated()}\n{END}{after}"
    if given.write:
        PAGE.write_text(wanted)
    elif page != wanted:
        print(f"{PAGE} does not show the code as it is: run `make generate`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
