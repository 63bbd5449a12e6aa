"""Every class of the exception tree, found by importing all modules, can be copied and pickled."""

import copy
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import mqbridge
from mqbridge.errors import ConfigError, Failure, MqbridgeError

ARGUMENTS: dict[str, Any] = {
    "code": 503,
    "status": 2,
    "failure": Failure.REFUSED,
    "of_credentials": True,
    "resume": (3, 7),
    "location": "file.yaml:12",
    "path": "routes[0].to.topic",
    "hint": "Did you mean 'topic'?",
    "errors": [ConfigError("first", path="routes"), ConfigError("second", hint="a hint")],
}
"""Arguments of constructors by their names; any other parameter is a text."""
NEEDS_SPARK = "mqbridge.spark"


def _import_all() -> None:
    for module in pkgutil.walk_packages(mqbridge.__path__, "mqbridge."):
        if not module.name.startswith(NEEDS_SPARK) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def _subclasses(base: type[MqbridgeError]) -> Iterator[type[MqbridgeError]]:
    yield base
    for child in base.__subclasses__():
        yield from _subclasses(child)


def _make(error_class: type[MqbridgeError]) -> MqbridgeError:
    """Return an error of this class with a value other than the default for every parameter."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    # The constructor itself is inspected: the class has no signature if it inherits the constructor of Exception.
    for parameter in list(inspect.signature(error_class.__init__).parameters.values())[1:]:
        value = ARGUMENTS.get(parameter.name, "a text")
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        elif parameter.kind is not parameter.VAR_KEYWORD:
            positional.append(value)
    return error_class(*positional, **named)


def _seen(value: object) -> object:
    """Return what a caller sees of an error, and of the errors that it contains; any other value is returned as it is."""
    if isinstance(value, list):
        return list(map(_seen, value))
    if isinstance(value, MqbridgeError):
        return type(value), str(value), value.args, {name: _seen(attribute) for name, attribute in vars(value).items()}
    return value


def _pickled(error: MqbridgeError) -> MqbridgeError:
    loaded: MqbridgeError = pickle.loads(pickle.dumps(error))
    return loaded


@pytest.mark.parametrize("duplicate", [_pickled, copy.copy, copy.deepcopy])
def test_errors_keep_their_class_text_and_attributes(duplicate: Callable[[MqbridgeError], MqbridgeError]) -> None:
    _import_all()
    for error_class in set(_subclasses(MqbridgeError)):
        error = _make(error_class)
        error.add_note("a note")
        assert _seen(duplicate(error)) == _seen(error)
