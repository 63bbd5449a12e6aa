"""The steps of a pass: what RIP-58 calls map, flatMap, filter, foreach, selectTimestamp and keyBy."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mqbridge.spark.streams.rip58.rows import Element

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Map:
    """One value of one."""

    function: Function

    def __call__(self, element: Element) -> Iterable[Element]:
        """The element with another value."""
        key, value, micros = element
        return ((key, self.function(value), micros),)


@dataclass(frozen=True)
class FlatMap:
    """Any number of values of one."""

    function: Function

    def __call__(self, element: Element) -> Iterable[Element]:
        """Elements with the same key and time."""
        key, value, micros = element
        return [(key, item, micros) for item in self.function(value)]


@dataclass(frozen=True)
class Filter:
    """Some of the values."""

    function: Function

    def __call__(self, element: Element) -> Iterable[Element]:
        """The element or nothing."""
        return (element,) if self.function(element[1]) else ()


@dataclass(frozen=True)
class Foreach:
    """A look at each value. A task that runs again looks again."""

    function: Function

    def __call__(self, element: Element) -> Iterable[Element]:
        """The element."""
        self.function(element[1])
        return (element,)


@dataclass(frozen=True)
class SelectTimestamp:
    """Another time: milliseconds since 1970."""

    function: Function

    def __call__(self, element: Element) -> Iterable[Element]:
        """The element with that time."""
        key, value, _ = element
        return ((key, value, int(self.function(value) * 1000)),)


@dataclass(frozen=True)
class KeyBy:
    """Another key, anything that JSON has."""

    function: Function

    def __call__(self, element: Element) -> Iterable[Element]:
        """The element with that key."""
        _, value, micros = element
        return ((self.function(value), value, micros),)
