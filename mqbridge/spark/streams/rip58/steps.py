"""The operators of RIP-58 that need no other element: map, flatMap, filter, foreach, selectTimestamp and keyBy.

Each is a function from an element (key, value, time in microseconds since 1970) to the elements that replace it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mqbridge.spark.streams.rip58.rows import Element

Function = Callable[[Any], Any]
"""A user's function of one value."""


@dataclass(frozen=True)
class Map:
    """Replaces the value with the result of the function."""

    function: Function

    def __call__(self, element: Element) -> Iterable[Element]:
        """Return the element with the new value."""
        key, value, micros = element
        return ((key, self.function(value), micros),)


@dataclass(frozen=True)
class FlatMap:
    """Replaces the value with any number of values."""

    function: Function

    def __call__(self, element: Element) -> Iterable[Element]:
        """Return one element per new value, with the same key and time."""
        key, value, micros = element
        return [(key, item, micros) for item in self.function(value)]


@dataclass(frozen=True)
class Filter:
    """Keeps the values for which the function returns true."""

    function: Function

    def __call__(self, element: Element) -> Iterable[Element]:
        """Return the element, or no element."""
        return (element,) if self.function(element[1]) else ()


@dataclass(frozen=True)
class Foreach:
    """Calls the function with each value. A repeated task calls it again."""

    function: Function

    def __call__(self, element: Element) -> Iterable[Element]:
        """Call the function, and return the element unchanged."""
        self.function(element[1])
        return (element,)


@dataclass(frozen=True)
class SelectTimestamp:
    """Sets the time of the element. The function returns milliseconds since 1970."""

    function: Function

    def __call__(self, element: Element) -> Iterable[Element]:
        """Return the element with the new time."""
        key, value, _ = element
        return ((key, value, int(self.function(value) * 1000)),)


@dataclass(frozen=True)
class KeyBy:
    """Sets the key of the element. The function returns a value that JSON can represent."""

    function: Function

    def __call__(self, element: Element) -> Iterable[Element]:
        """Return the element with the new key."""
        _, value, micros = element
        return ((self.function(value), value, micros),)
