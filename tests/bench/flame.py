"""A flame graph as a small SVG: the width of a frame is its share of the samples, callers below, the group is the colour."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

from tests.bench.stacks import ADAPTER, CLIENT, COMPILED, DELIVERY, MAPPING, NET, OTHER, Stack, group_of, plain

WIDTH = 1200
HEIGHT = 16
MIN_SHARE = 0.002
"""Frames with a smaller share of the samples are left out with all frames above them, as they could not be read."""
CHARACTER = 6.3
"""Width of a character, in the units of WIDTH."""
COLOURS = {
    MAPPING: "#e8a33d", COMPILED: "#c9503c", CLIENT: "#6a9fd4", ADAPTER: "#8f86c9", DELIVERY: "#6fb58a", NET: "#b9b14a",
    OTHER: "#d8d2c4",
}  # fmt: skip


@dataclass(slots=True)
class Node:
    """A frame and the frames that it called."""

    name: str
    colour: str
    samples: int = 0
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """Return the number of frames in the highest stack above it, itself included."""
        return 1 + max((child.depth for child in self.children.values()), default=0)


def tree(stacks: Iterable[Stack]) -> Node:
    """Return all stacks as one tree; a frame that no group claims has the colour of its caller."""
    root = Node("all", COLOURS[OTHER])
    for stack in stacks:
        node, last = root, len(stack.frames) - 1
        node.samples += stack.samples
        for index, frame in enumerate(stack.frames):
            name = plain(frame)
            group = stack.group if index == last else group_of(frame)
            colour = node.colour if group is None else COLOURS[group]
            node = node.children.setdefault(name, Node(name, colour))
            node.samples += stack.samples
    return pruned(root, root.samples * MIN_SHARE)


def pruned(node: Node, min_samples: float) -> Node:
    """Return the tree without the functions that have fewer samples."""
    kept = {name: pruned(child, min_samples) for name, child in node.children.items() if child.samples >= min_samples}
    return Node(node.name, node.colour, node.samples, kept)


def svg(stacks: Iterable[Stack], title: str) -> str:
    """Return the picture as SVG, with the full name and share of a frame as its tooltip."""
    root = tree(stacks)
    height = (root.depth + 4) * HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace" font-size="10">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="6" y="14" font-size="13">{escape(title)}</text>',
    ]
    x = 6.0
    for group, colour in COLOURS.items():
        lines.append(
            f'<rect x="{x:.0f}" y="22" width="10" height="10" fill="{colour}"/><text x="{x + 14:.0f}" y="31">{group}</text>'
        )
        x += 34 + len(group) * CHARACTER
    _draw(root, 0.0, height - HEIGHT, WIDTH / root.samples, root.samples, lines)
    return "\n".join([*lines, "</svg>", ""])


def _draw(node: Node, x: float, y: int, scale: float, total: int, lines: list[str]) -> None:
    width = node.samples * scale
    room = int((width - 4) / CHARACTER)
    text = node.name if len(node.name) <= room else node.name[: max(0, room - 1)] + "…"
    label = f'<text x="{x + 2:.1f}" y="{y + 11}">{escape(text)}</text>' if room > 3 else ""
    lines.append(
        f'<g><title>{escape(node.name)} {node.samples / total:.1%}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
        f'height="{HEIGHT - 1}" fill="{node.colour}"/>{label}</g>'
    )
    for child in sorted(node.children.values(), key=lambda each: each.name):
        _draw(child, x, y - HEIGHT, scale, total, lines)
        x += child.samples * scale
