"""A fixture that runs tests with the compiled module and with the plain Python code."""

from collections.abc import Iterator

import pytest

from mqbridge.native import compiled
from mqbridge.rocketmq.client.consumer import pulled_records
from mqbridge.rocketmq.mapping import request as request_module
from mqbridge.rocketmq.mapping import sent_units, served_records, stored

MODULES = (pulled_records, request_module, sent_units, served_records, stored)


@pytest.fixture(scope="module", params=["compiled", "plain"])
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the tests of a module twice: with the compiled module, and with the plain Python code."""
    if request.param == "compiled":
        if compiled is None:
            pytest.skip("the compiled module is not installed, or is turned off")
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "compiled", None)
        yield
