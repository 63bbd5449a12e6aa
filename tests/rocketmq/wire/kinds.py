"""All header classes and all body classes, found by importing their packages."""

import pkgutil
from importlib import import_module
from types import ModuleType
from typing import Any

from mqbridge.rocketmq.wire import bodies, headers
from mqbridge.rocketmq.wire.bodies.base import Body
from mqbridge.rocketmq.wire.headers.base import Header


def _subclasses_in(base: type[Any], package: ModuleType) -> list[type[Any]]:
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        import_module(module.name)
    # A dataclass with slots replaces its class; the class without slots stays among the subclasses, and is skipped here.
    classes = {(one.__module__, one.__name__): one for one in _subclasses(base) if "__dataclass_fields__" in vars(one)}
    return [getattr(import_module(module), name) for module, name in sorted(classes) if module.startswith(f"{package.__name__}.")]


def _subclasses(base: type[Any]) -> list[type[Any]]:
    return [one for direct in base.__subclasses__() for one in [direct, *_subclasses(direct)]]


BODIES: list[type[Body]] = _subclasses_in(Body, bodies)
HEADERS: list[type[Header]] = _subclasses_in(Header, headers)
