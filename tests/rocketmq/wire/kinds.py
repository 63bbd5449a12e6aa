"""Every header and every body that there is."""

import pkgutil
from importlib import import_module
from types import ModuleType
from typing import Any

from mqbridge.rocketmq.wire import bodies, headers
from mqbridge.rocketmq.wire.bodies.base import Body
from mqbridge.rocketmq.wire.headers.base import Header


def _below(base: type[Any], package: ModuleType) -> list[type[Any]]:
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        import_module(module.name)
    # dataclasses with slots leave the class from before, without them, among the subclasses
    found = {(one.__module__, one.__name__): one for one in _subclasses(base) if "__dataclass_fields__" in vars(one)}
    return [getattr(import_module(module), name) for module, name in sorted(found) if module.startswith(f"{package.__name__}.")]


def _subclasses(base: type[Any]) -> list[type[Any]]:
    return [one for direct in base.__subclasses__() for one in [direct, *_subclasses(direct)]]


BODIES: list[type[Body]] = _below(Body, bodies)
HEADERS: list[type[Header]] = _below(Header, headers)
