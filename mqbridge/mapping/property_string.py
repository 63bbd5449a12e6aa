"""Fast splitting of property strings: `name SEPARATOR value END name SEPARATOR value …`, with the separators of a system.

A string is split into names and values at once, without a search per pair. The meaning of the names is worked out once per list
of names and kept in the system's own subclass of `StringForm`. A string that splits like an earlier one is split by a template
(see `parse_templates`); the loop over messages does that itself, because a call per message would cost as much as the split:

    template = by_length.get(len(data))
    if (
        template is not None
        and (fields := template.unpack(data))[::2] == template.fixed
        and data.count(separator) == template.separators and data.count(end) == template.ends
    ):
        form, values, lengths = template.form, fields[1::2], template.lengths
    elif (split := parser.split(data)) is not None:
        (form, values), lengths = split, None

All separators and ends of a template are in its fixed bytes; a string that has no more of them can be split in no other way.
Where a value may hold the separator, the ends alone decide.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from mqbridge.mapping.lazy_properties import names_cache
from mqbridge.mapping.parse_templates import ParseTemplate, ParseTemplates


class StringForm:
    """What a string with these names says; a system's subclass adds what it needs."""

    __slots__ = ("count", "format", "names")
    format: bytes
    """Writes the string again; set by the parser."""

    def __init__(self, names: tuple[bytes, ...]) -> None:
        self.names, self.count = names, len(names)

    def lengths(self, values: Sequence[bytes]) -> tuple[int, ...]:
        """The lengths of those values that become a message's property values."""
        return tuple(map(len, values))


F = TypeVar("F", bound=StringForm)


class StringTemplate(ParseTemplate, Generic[F]):
    """The template of a property string."""

    __slots__ = ("ends", "form", "lengths", "separators")

    def __init__(self, data: bytes, form: F, values: Sequence[bytes], *, terminated: bool) -> None:
        self.form = form
        self.lengths = form.lengths(values)
        self.separators = form.count
        self.ends = form.count if terminated else form.count - 1
        # A name with the separator behind it, and from the second on with the end of the pair before it.
        cuts = [cut for name, value in zip(form.names, values, strict=True) for cut in (len(name) + 2, len(value))]
        super().__init__(data, [cuts[0] - 1, *cuts[1:], *([1] if terminated else [])])


class PropertyStringParser(Generic[F]):
    """Splits the property strings of one system.

    `make_form` gives None for names that only the plain code reads. `terminated`: an `end` stands behind the last pair too.
    `empty_values`: a value may be empty; otherwise a string with an empty one is left to the plain code.
    """

    __slots__ = ("_empty_values", "_end", "_forms", "_make_form", "_separator", "_terminated", "templates")

    def __init__(
        self,
        separator: bytes,
        end: bytes,
        make_form: Callable[[tuple[bytes, ...]], F | None],
        *,
        terminated: bool,
        empty_values: bool,
    ) -> None:
        self._separator, self._end, self._terminated, self._empty_values = separator, end, terminated, empty_values
        self._make_form = make_form
        self._forms = names_cache(self._form_of)
        self.templates = ParseTemplates[StringTemplate[F]]()

    def split(self, data: bytes) -> tuple[F, tuple[bytes, ...]] | None:
        """Form and values; None for a string that only the plain code reads."""
        parts = data.replace(self._separator, self._end).split(self._end)
        names, values = tuple(parts[::2]), tuple(parts[1::2])
        form = self._forms[names]
        # Written again it must be the same: then separators and ends take turns, and no value holds one.
        if form is None or len(values) != form.count or form.format % values != data:
            return None
        if not (self._empty_values or all(values)):
            return None
        self.templates.learn(len(data), partial(StringTemplate, data, form, values, terminated=self._terminated))
        return form, values

    def _form_of(self, names: tuple[bytes, ...]) -> F | None:
        """The form of these names; a terminated string has an empty last name."""
        if self._terminated:
            if len(names) < 2 or names[-1]:
                return None
            names = names[:-1]
        form = self._make_form(names)
        if form is not None:
            form.format = string_format(names, self._separator, self._end, terminated=self._terminated)
        return form


def string_format(names: Sequence[bytes], separator: bytes, end: bytes, *, terminated: bool) -> bytes:
    """The string of these names, with `%b` for each value."""
    text = end.join([name.replace(b"%", b"%%") + separator + b"%b" for name in names])
    return text + end if terminated and names else text
