from collections.abc import Iterator

import pytest

from tests.core.world import World


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.delete_brokers()
