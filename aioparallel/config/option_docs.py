"""Shows options in ``help()``. A dataclass declares them; there is no second list of names, types or defaults.

::

    from dataclasses import dataclass
    from aioparallel.config.option_docs import documented

    @documented
    @dataclass(frozen=True, kw_only=True)
    class Committing:
        # -- Commits --

        commit_interval: float = 1.0
        '''Seconds from one commit to the next.'''

The text below a field is its meaning. A comment like ``# -- Commits --`` starts a group. Fields below the same title
form one group, including inherited ones. docs/reference.md and the help of the command line use the same text.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

from aioparallel.config.unknown_options import refuses_unknown

__all__ = [
    "DESCRIBED",
    "Option",
    "Undocumented",
    "attribute_docstrings",
    "described",
    "describes_like",
    "documented",
    "options_of",
    "options_taken",
    "takes_options",
]

T = TypeVar("T")
Taker = TypeVar("Taker", bound=Callable[..., Any])

# Patterns as text, because importing this module must not compile them.
_GROUP: Final = r" *# -- (.+?) -+$"
DESCRIBED: Final = r"(?ms)^((?:``\w+``(?:, )?)+): (.*?)(?=\n``\w+``[:,]|\n\n|\Z)"
"""Lines of a docstring that describe parameters: their names, and the meaning."""
_WIDTH: Final = 96  # columns of a meaning in help(), which adds four


class Undocumented(Exception):
    """A field has no docstring."""


class Option(NamedTuple):
    """One field of a dataclass, as its source has it."""

    name: str
    type: str
    default: str | None
    """None: there is none, so the option is required."""
    meaning: str
    group: str
    """Empty outside of any group."""


def options_of(kind: type, described_by: Callable[..., object] | None = None) -> list[Option]:
    """The public fields of a dataclass, those of its bases first, group by group.

    ``described_by``: a function whose docstring has the meanings; None: each is below its field.

    Raises Undocumented for a field without a meaning, and OSError without source code.
    """
    meanings = None if described_by is None else _meanings(described_by.__doc__)
    lists = [
        _declared(base, meanings) for base in reversed(kind.__mro__) if base is kind or dataclasses.is_dataclass(base)
    ]
    found = [one for declared in lists for one in declared]
    groups = list(dict.fromkeys(one.group for one in found))
    return sorted(found, key=lambda one: groups.index(one.group))


def attribute_docstrings(kind: type) -> Iterator[tuple[ast.AnnAssign | ast.Assign, str | None]]:
    """The public attributes that the body of a class declares or assigns, each with its docstring."""
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(declared, ast.ClassDef)
    for statement, after in zip(declared.body, [*declared.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign | ast.Assign) or ast.unparse(statement).startswith("_"):
            continue
        match after:
            case ast.Expr(value=ast.Constant(value=str(meaning))):
                yield statement, inspect.cleandoc(meaning)
            case _:
                yield statement, None


def _declared(kind: type, meanings: Mapping[str, str] | None) -> Iterator[Option]:
    source = textwrap.dedent(inspect.getsource(kind))
    titles = {
        line: found[1] for line, text in enumerate(source.splitlines(), 1) if (found := re.fullmatch(_GROUP, text))
    }
    for statement, below in attribute_docstrings(kind):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
            meaning = below if meanings is None else meanings.get(name)
            if meaning is None:
                raise Undocumented(f"{kind.__qualname__}.{name}")
            written = " ".join((ast.get_source_segment(source, statement.annotation) or "").split())
            group = next((title for line, title in reversed(titles.items()) if line < statement.lineno), "")
            yield Option(name, written, _default(statement.value, source), meaning, group)


def _default(value: ast.expr | None, source: str) -> str | None:
    match value:
        case None:
            return None
        case ast.Call(func=ast.Name(id="field") | ast.Attribute(attr="field"), keywords=keywords):
            given = {one.arg: one.value for one in keywords}
            if "metadata" in given:
                return str(ast.literal_eval(given["metadata"])["documented_default"])
            if "default_factory" not in given:
                return _default(given.get("default"), source)
            factory = ast.unparse(given["default_factory"])
            return "{}" if factory == "dict" else f"{factory}()"
        case _:
            return ast.get_source_segment(source, value)


def described(docstring: str | None) -> Iterator[tuple[list[str], str]]:
    """The parameters that a docstring describes, with their meanings: ````name``: meaning`` or ````one``, ``two``:
    meaning`` at the beginning of a line."""
    for found in re.finditer(DESCRIBED, inspect.cleandoc(docstring or "")):
        yield re.findall(r"\w+", found[1]), found[2]


def _meanings(docstring: str | None) -> dict[str, str]:
    return {name: meaning[0].upper() + meaning[1:] for names, meaning in described(docstring) for name in names}


def documented(kind: type[T]) -> type[T]:
    """A decorator for a dataclass: its docstring lists its fields, and a keyword that is no field raises
    ConfigurationError. A dataclass with a ``__repr__`` of its own holds secrets: the message does not show the value.
    """
    given: Any = kind
    names = [one.name for one in dataclasses.fields(given) if one.init]
    is_secret = not given.__dataclass_params__.repr
    given.__init__ = refuses_unknown(names, of=kind.__name__, secret=is_secret)(given.__init__)
    kind.__doc__ = _Manual(kind.__doc__, lambda _: options_of(kind))  # type: ignore[assignment]
    return kind


def takes_options(
    kind: type,
    *,
    without: Collection[str] = (),
    defaults: Mapping[str, str] | None = None,
    refused: Mapping[str, str] | None = None,
) -> Callable[[Taker], Taker]:
    """A decorator for a function or class that passes ``**options`` to the dataclass ``kind``: the fields become
    parameters in its signature. Another keyword raises ConfigurationError.

    The docstring of a class then lists the parameters that it does not describe itself: fields, and parameters that a
    base class describes.

    ``without``: fields to leave out. ``defaults``: other defaults, as text. ``refused``: keywords that are no fields,
    and why they are refused.
    """
    defaults = defaults or {}

    def decorate(taker: Taker) -> Taker:
        given: Any = taker
        function = given.__init__ if isinstance(taker, type) else given
        function.__signature__ = signature = _signature(function, kind, without, defaults)
        known = [name for name in signature.parameters if name != "self"]
        passes = [one.name for one in dataclasses.fields(kind)]
        checked = refuses_unknown(known, passes=passes, refused=refused)(function)
        if isinstance(taker, type):
            given.__init__ = checked
            list_them = functools.partial(_listed, taker.__mro__, signature, kind, defaults)
            taker.__doc__ = _Manual(taker.__doc__, list_them)  # type: ignore[assignment]
            return taker
        return checked  # type: ignore[no-any-return]

    return decorate


def describes_like(other: Callable[..., object]) -> Callable[[Taker], Taker]:
    """A decorator for a function: appends the descriptions of the parameters that it shares with ``other`` and does
    not describe itself."""

    def decorate(function: Taker) -> Taker:
        if function.__doc__ is not None:
            named = inspect.signature(function).parameters.keys() - _meanings(function.__doc__).keys()
            lines = [
                f"``{'``, ``'.join(names)}``: {meaning}"
                for names, meaning in described(other.__doc__)
                if not named.isdisjoint(names)
            ]
            function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__), "", *lines])
        return function

    return decorate


def options_taken(taker: type) -> list[Option]:
    """The options in the docstring of a class with :func:`documented` or :func:`takes_options`."""
    manual = vars(taker)["__doc__"]
    return manual.options() if isinstance(manual, _Manual) else []


class _Manual:
    """A docstring that ends with a list of options.

    Built when it is first read: parsing the source takes longer than the rest of the import.
    """

    def __init__(self, own: str | None, options: Callable[[str], list[Option]]) -> None:
        self._own = inspect.cleandoc(own or "")
        self._options = options
        self._text: str | None = None

    def options(self) -> list[Option]:
        return self._options(self._own)

    def __get__(self, instance: object, owner: type | None = None) -> str:
        if self._text is None:
            try:
                self._text = "\n".join([self._own, *_lines(self.options())])
            except (OSError, TypeError, SyntaxError):  # the source is missing, or has changed
                self._text = self._own
        return self._text


def _listed(
    classes: tuple[type, ...], signature: inspect.Signature, kind: type, defaults: Mapping[str, str], own: str
) -> list[Option]:
    """``classes``: the class that takes options, and its bases. ``own``: its docstring."""
    described_there = _meanings(own)
    others = {name: one for name, one in signature.parameters.items() if name not in described_there}
    fields = {one.name: one for one in options_of(kind) if one.name in others}
    of_bases: dict[str, str] = {}
    for base in reversed(classes[1:]):
        of_bases |= _meanings(base.__doc__)
    return [
        *(_as_option(one, of_bases[name]) for name, one in others.items() if name in of_bases and name not in fields),
        *(one._replace(default=defaults.get(name, one.default)) for name, one in fields.items()),
    ]


def _lines(options: list[Option]) -> Iterator[str]:
    yield from ("", "Options")
    for group, members in groupby(options, key=lambda one: one.group):
        if group:
            yield from ("", f"  {group}")
        for one in members:
            yield from ("", f"    {one.name}: {one.type}" + (f" = {one.default}" if one.default is not None else ""))
            meaning = re.sub(r":\w+:`~?(?:[^`<]*<)?([\w.]+)>?`", lambda found: found[1].rpartition(".")[2], one.meaning)
            yield textwrap.indent(textwrap.fill(" ".join(meaning.split()), _WIDTH - 8), " " * 8)


# -- signatures -----------------------------------------------------------------------------------------


class _Signature(inspect.Signature):
    """Prints one parameter per line, and types without their modules."""

    __slots__ = ()

    def __str__(self) -> str:
        lines = [_parameter(one) for one in self.parameters.values()]
        positional = [one for one in self.parameters.values() if one.kind is not one.KEYWORD_ONLY]
        lines.insert(len(positional), "*")
        return "(\n" + "".join(f"    {line},\n" for line in lines) + ")"

    def format(self, **_: object) -> str:
        """For ``help()`` of Python 3.13 and later."""
        return str(self)


def _parameter(one: inspect.Parameter) -> str:
    option = _as_option(one, "")
    shown = option.name + (f": {option.type}" if option.type else "")
    return shown if option.default is None else f"{shown} = {option.default}"


def _as_option(one: inspect.Parameter, meaning: str) -> Option:
    return Option(one.name, _type(one.annotation), _value(one.default), meaning, "")


def _type(annotation: object) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    written = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    # Without modules, and without the variance marks of type variables.
    return re.sub(r"\b(?:\w+\.)+(?=\w)|[+~-](?=[A-Z])", "", written)


def _value(default: object) -> str | None:
    if default is inspect.Parameter.empty:
        return None
    if isinstance(default, enum.Enum):
        return str(default)
    if dataclasses.is_dataclass(default):
        return f"{type(default).__name__}()"
    return repr(default)


class _Text(str):
    """Text for a default that is computed."""

    __slots__ = ()

    __repr__ = str.__str__


def _signature(
    function: Callable[..., object], kind: Any, without: Collection[str], defaults: Mapping[str, str]
) -> inspect.Signature:
    own = inspect.signature(function, eval_str=True)
    parameters = {name: one for name, one in own.parameters.items() if one.kind is not one.VAR_KEYWORD}
    if len(parameters) < len(own.parameters):
        types = _types(kind)
        for one in dataclasses.fields(kind):
            if one.name not in parameters and one.name not in without:
                default = one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
                if one.name in defaults:
                    default = _Text(defaults[one.name])
                parameters[one.name] = inspect.Parameter(
                    one.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if default is dataclasses.MISSING else default,
                    annotation=types.get(one.name, one.type),
                )
    return _Signature(list(parameters.values()), return_annotation=own.return_annotation)


@functools.cache
def _types(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except NameError:  # a name that only type checkers import
        return {}
