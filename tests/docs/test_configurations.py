"""Every configuration that the documentation shows loads."""

import re

import pytest

from mqbridge.config.load import parse
from tests.docs.pages import ROOT, Block, blocks, name_of, pages

SHOWN = [
    block for page in pages() for block in blocks(page, "yaml") if re.search(r"^(routes|listeners):", block.text, re.MULTILINE)
]


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: name_of(block.page))
def test_a_complete_configuration_loads(block: Block) -> None:
    config = parse(block.text, block.page.name, environ={})
    assert config.routes or config.listeners


def test_the_configurations_in_the_reference_load() -> None:
    small, served, large = (
        parse(block.text, "configuration.md", environ={}) for block in blocks(ROOT / "docs/reference/configuration.md", "yaml")
    )
    assert [route.name for route in small.routes] == ["orders"]
    assert [listener.cluster for listener in served.listeners] == ["rocket"]
    assert [target.partitions.by for target in large.routes[0].targets] == ["key", "identity"]
