"""Regular expressions of users that meet texts of others: names of topics, keys and properties of messages.

Python's `re` tries one way after the other. `(a+)+b` has 2**n ways to match n letters, so a name of 40 letters stops the event
loop for days, and no thread or timer can interrupt `re`. So an expression is looked at before it is used:

- If a loop of it can read the same text in two ways, the number of ways grows exponentially. Such an expression is refused. Each
  has an equivalent without this: `a+b`, or `(?:a++)+b`, whose inner repeat never gives anything back.
- Otherwise the number of ways is about n**k / k!, where k is the number of loops behind one another that can read the same text,
  as 2 in `.*orders.*`. With several loops, a text is not tried if it is so long that this exceeds MAX_WAYS.

The expression is seen as an automaton (Glushkov's): its positions are the characters and classes that it has, and an edge leads
to each position that may be next. An edge that exists twice, or two paths through the same characters that part and meet again in
a loop, are the two ways (the property EDA of the theory of ambiguous automata).
"""

import importlib
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from mqbridge.wire.limits import shorten

log = logging.getLogger(__name__)

MAX_WAYS = 30_000_000
"""Limit of the ways to match one text: about half a second."""
MAX_STEPS = 1_000_000
"""Limit of the steps in which an expression is looked at; one that needs more is refused."""
MAX_EMPTY_REPEATS = 8
"""Limit of a repeat of something that may be empty, such as `(a?){8}`: it has 2**8 ways."""
OTHER = 128
"""Stands for all characters beyond ASCII."""
ANY_CHARACTER = (1 << (OTHER + 1)) - 1
"""The set of all characters. A set is a number: bit n stands for the character n."""

_CLASSES = {  # the letters of the escapes; those that are negated are the upper case ones
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


class Ambiguous(Exception):
    """The expression can match in too many ways; the text says why."""


class BoundedPattern:
    """A compiled expression that takes a bounded time."""

    def __init__(self, expression: str) -> None:
        """Raises re.error for a syntax error, and Ambiguous."""
        self.compiled = re.compile(expression)
        self.loops = _longest_chain_of_loops(expression)
        """Number of loops behind one another that can read the same text."""
        self.max_chars = None if self.loops <= 1 else int((MAX_WAYS * math.factorial(self.loops)) ** (1 / self.loops))
        """Maximum length of a text that is tried; None: any."""
        self.fullmatch: Callable[[str], re.Match[str] | None] = (
            self.compiled.fullmatch if self.max_chars is None else self._match_bounded
        )
        """Matches the whole text; None also for a text that is too long to be tried, which is logged."""

    def _match_bounded(self, text: str) -> re.Match[str] | None:
        if self.is_too_long(text):
            log.warning(
                "the pattern %s is not tried on a text of %d characters, because that could take too long: it counts as not "
                "matching; at most %d characters are tried: %s",
                self.compiled.pattern,
                len(text),
                self.max_chars,
                shorten(text, 100),
            )
            return None
        return self.compiled.fullmatch(text)

    def is_too_long(self, text: str) -> bool:
        """Return True for a text that is not tried."""
        return self.max_chars is not None and len(text) > self.max_chars


@dataclass(slots=True)
class _Part:
    """A part of an expression: the positions with which it may begin and end, and whether it may be empty."""

    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    nullable: bool = True


class _Automaton:
    """The positions of an expression and its edges, each with the number of times that it exists."""

    def __init__(self, items: Iterable[tuple[Any, Any]], flags: int) -> None:
        self.characters: list[int] = []
        """The set of characters of each position."""
        self.edges: Counter[tuple[int, int]] = Counter()
        self.inner_loops = 0
        """Loops in the parts that are looked at for themselves: in lookarounds and atomic groups."""
        self._steps = 0
        self._sequence(items, flags)

    # --- building -----------------------------------------------------------------------------------------------------

    def _sequence(self, items: Iterable[tuple[Any, Any]], flags: int) -> _Part:
        whole = _Part()
        for operator, argument in items:
            whole = self._concatenated(whole, self._item(str(operator), argument, flags))
        return whole

    def _concatenated(self, left: _Part, right: _Part) -> _Part:
        self._connect(left.last, right.first)
        return _Part(
            left.first + (right.first if left.nullable else []),
            right.last + (left.last if right.nullable else []),
            left.nullable and right.nullable,
        )

    def _connect(self, sources: list[int], targets: list[int]) -> None:
        self._count(len(sources) * len(targets))
        for source in sources:
            for target in targets:
                self.edges[source, target] += 1

    def _item(self, operator: str, argument: Any, flags: int) -> _Part:
        """Return the part of one item of the parsed expression; `operator` is the name of `re`'s operator."""
        match operator:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN" | "GROUPREF":
                return self._position(_characters(operator, argument, flags))
            case "SUBPATTERN":
                _, added, removed, items = argument
                return self._sequence(items, (flags | added) & ~removed)
            case "BRANCH" | "GROUPREF_EXISTS":
                branches = argument[1] if operator == "BRANCH" else [items or () for items in argument[1:]]
                parts = [self._sequence(items, flags) for items in branches]
                return _Part(
                    [position for part in parts for position in part.first],
                    [position for part in parts for position in part.last],
                    any(part.nullable for part in parts),
                )
            case "MAX_REPEAT" | "MIN_REPEAT":
                low, high, items = argument
                return self._repeat(low, high, items, flags)
            case "POSSESSIVE_REPEAT" | "ATOMIC_GROUP":
                low, _, items = argument if operator == "POSSESSIVE_REPEAT" else (1, 1, argument)
                return self._atomic(low, items, flags)
            case "ASSERT" | "ASSERT_NOT":
                self._look_at(argument[1], flags)
        return _Part()  # an anchor, or a lookaround, which reads nothing

    def _position(self, characters: int) -> _Part:
        self.characters.append(characters)
        position = len(self.characters) - 1
        return _Part([position], [position], nullable=False)

    def _repeat(self, low: int, high: int, items: Any, flags: int) -> _Part:
        before = len(self.characters)
        body = self._sequence(items, flags)
        has_one_length = low == high and len(self.characters) - before == 1  # as [0-9]{4}: there is one way to read it
        if body.nullable and MAX_EMPTY_REPEATS < high < _unlimited():
            raise Ambiguous(f"it repeats {high} times what may be empty")
        if high > 1 and not (has_one_length and not body.nullable):
            self._connect(body.last, body.first)
        return _Part(body.first, body.last, body.nullable or low == 0)

    def _atomic(self, low: int, items: Any, flags: int) -> _Part:
        """Return a part that gives nothing back once it has matched: seen from outside, it reads in one way."""
        inner = self._look_at(items, flags)
        begins = 0
        for characters in inner.characters:
            begins |= characters
        part = self._position(begins or ANY_CHARACTER)
        part.nullable = low == 0
        return part

    def _look_at(self, items: Any, flags: int) -> "_Automaton":
        inner = _Automaton(items, flags)
        self.inner_loops += inner.check()
        return inner

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise Ambiguous("it is too large")

    # --- looking at it ------------------------------------------------------------------------------------------------

    def check(self) -> int:
        """Return the number of loops behind one another that can read the same text. Raises Ambiguous."""
        successors: dict[int, list[int]] = {position: [] for position in range(len(self.characters))}
        for source, target in self.edges:
            successors[source].append(target)
        components = _components(successors)
        component_of = {position: index for index, component in enumerate(components) for position in component}
        loops = {component_of[source] for source, target in self.edges if component_of[source] == component_of[target]}
        if any(count > 1 and component_of[source] == component_of[target] for (source, target), count in self.edges.items()):
            raise Ambiguous("it repeats what is a repeat itself")
        for index in loops:
            self._check_loop(components[index], successors)
        chains: dict[int, int] = {}
        for index in sorted(loops):  # a component comes after those that it leads to
            loop = components[index]
            later = [length for other, length in chains.items() if self._share_a_text(loop, components[other], successors)]
            chains[index] = 1 + max(later, default=0)
        return max(chains.values(), default=0) + self.inner_loops

    def _share_a_text(self, loop: list[int], later: list[int], successors: dict[int, list[int]]) -> bool:
        """Return True if a text between two loops may be read by either of them, so that it is open where one ends.

        It is not for `[^/]+/[^/]+`, since no loop reads the slash between them.
        """
        both = self._characters_of(loop) & self._characters_of(later)
        targets = set(later)
        seen: set[int] = set()
        waiting = list(loop)
        while waiting:
            position = waiting.pop()
            self._count(1 + len(successors[position]))
            for target in successors[position]:
                if target not in seen and self.characters[target] & both:
                    if target in targets:
                        return True
                    seen.add(target)
                    waiting.append(target)
        return False

    def _characters_of(self, positions: list[int]) -> int:
        found = 0
        for position in positions:
            found |= self.characters[position]
        return found

    def _check_loop(self, component: list[int], successors: dict[int, list[int]]) -> None:
        """Raise Ambiguous if two paths of the loop read the same text from one position and meet again in it."""
        inside = set(component)
        pairs: dict[int, list[int]] = {}
        width = len(self.characters)
        waiting = [position * width + position for position in component]
        while waiting:
            pair = waiting.pop()
            if pair in pairs:
                continue
            one, other = divmod(pair, width)
            ones = [target for target in successors[one] if target in inside]
            others = [target for target in successors[other] if target in inside]
            self._count(len(ones) * len(others))
            pairs[pair] = [
                target * width + another
                for target in ones
                for another in others
                if self.characters[target] & self.characters[another]
            ]
            waiting += pairs[pair]
        for pair_component in _components(pairs):
            kinds = {divmod(pair, width)[0] == divmod(pair, width)[1] for pair in pair_component}
            if len(kinds) > 1:
                raise Ambiguous("a repeat of it can read the same text in several ways")


def _longest_chain_of_loops(expression: str) -> int:
    """Return the number of loops behind one another that can read the same text. Raises Ambiguous."""
    parser: Any = importlib.import_module("re._parser")  # has no stubs
    parsed = parser.parse(expression)
    try:
        return _Automaton(parsed, parsed.state.flags).check()
    except RecursionError:
        raise Ambiguous("it is nested too deeply") from None


def _unlimited() -> int:
    """Return the number that stands for a repeat without a limit."""
    constants: Any = importlib.import_module("re._constants")
    return int(constants.MAXREPEAT)


def _characters(operator: str, argument: Any, flags: int) -> int:
    """Return the set of characters that a position reads."""
    if operator in ("ANY", "GROUPREF"):
        return ANY_CHARACTER
    if operator == "NOT_LITERAL":
        return ANY_CHARACTER & ~_literal(argument, flags) | 1 << OTHER
    if operator == "LITERAL":
        return _literal(argument, flags)
    found, is_negated = 0, False
    for kind, value in argument:
        match str(kind):
            case "NEGATE":
                is_negated = True
            case "LITERAL":
                found |= _literal(value, flags)
            case "RANGE":
                low, high = value
                for code in range(low, min(high, OTHER - 1) + 1):
                    found |= _literal(code, flags)
                found |= (high >= OTHER) << OTHER
            case "CATEGORY":
                found |= _class(str(value))
    return (ANY_CHARACTER & ~found) | 1 << OTHER if is_negated else found


def _literal(code: int, flags: int) -> int:
    if code >= OTHER:
        return 1 << OTHER
    if not flags & re.IGNORECASE or not chr(code).isalpha():
        return 1 << code
    return 1 << ord(chr(code).lower()) | 1 << ord(chr(code).upper()) | 1 << OTHER  # such as the Kelvin sign for k


def _class(name: str) -> int:
    matches = re.compile(_CLASSES.get(name, r"[\s\S]")).match
    return sum(1 << code for code in range(OTHER) if matches(chr(code))) | 1 << OTHER


def _components(successors: dict[int, list[int]]) -> list[list[int]]:
    """Return the strongly connected components of a graph, each after those that it leads to (Tarjan's algorithm)."""
    numbers: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for root, targets in successors.items():
        if root in numbers:
            continue
        path = [(root, iter(targets))]
        numbers[root] = lowest[root] = len(numbers)
        stack.append(root)
        on_stack.add(root)
        while path:
            node, remaining = path[-1]
            for target in remaining:
                if target not in numbers:
                    numbers[target] = lowest[target] = len(numbers)
                    stack.append(target)
                    on_stack.add(target)
                    path.append((target, iter(successors[target])))
                    break
                if target in on_stack:
                    lowest[node] = min(lowest[node], numbers[target])
            else:
                path.pop()
                if path:
                    parent = path[-1][0]
                    lowest[parent] = min(lowest[parent], lowest[node])
                if lowest[node] == numbers[node]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    found.append(component)
    return found
