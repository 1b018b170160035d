"""The docstrings of the package for the site: reStructuredText as Markdown, roles as links, options as tables.

MkDocs loads :class:`Docstrings` as an extension of griffe, which reads the package without importing it. The options of
a consumer come from :mod:`aioparallel.config.option_docs`, as in ``help()`` and in docs/reference.md.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import groupby
from typing import Any, Final, NamedTuple

import griffe

from aioparallel import Options, ParallelConsumer
from aioparallel.config.option_docs import DESCRIBED, Option, described, options_of, options_taken
from docs.reference import other_options, shown_default
from docs.site_build.public_names import public_paths

__all__ = ["Docstrings", "to_markdown"]

_ROLE: Final = re.compile(r":(?P<role>class|meth|func|attr|mod|data|exc|obj):`(?P<text>[^`]+)`")
_NAME: Final = re.compile(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b")
"""A class in a sentence, such as HandlerTimeout."""
_LITERAL_BLOCK: Final = re.compile(r"(?P<before>[^\n]*?)::\n\n(?P<body>(?:(?: {4}.*)?(?:\n|$))+)")
_TABLE: Final = re.compile(r"^=+ [= ]+\n(?P<head>.+)\n=+ [= ]+\n(?P<rows>(?:.+\n)+?)=+ [= ]+$", re.MULTILINE)
_CODE: Final = re.compile(r"^(?:(?:from|import|async|await|with|assert|def|class) |@|\w+ = |\w+\()", re.MULTILINE)
_LABELS: Final = {"async", "classmethod", "property", "staticmethod"}
"""What the site says of a method beside its name."""

Link = Callable[[str], str | None]
"""From the name in a role to the identifier of its heading; None if the site has no heading for it."""


# -- text -----------------------------------------------------------------------------------------------


def to_markdown(text: str, link: Link, *, of_module: bool = False) -> str:
    """A docstring, or a part of one, as Markdown. Literal blocks become fenced blocks.

    ``of_module``: blocks that are not code list the files of a package, which a reader of the reference does not need.
    They are left out with the line above them.
    """
    text = _LITERAL_BLOCK.sub(partial(_fence, of_module), text)
    text = _TABLE.sub(_table, text)
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _inline(part, link) for part in parts).strip()


def _fence(of_module: bool, found: re.Match[str]) -> str:
    code = textwrap.dedent(found["body"]).strip("\n")
    is_code = _CODE.search(code)
    if of_module and not is_code:
        return "\n"
    before = f"{found['before']}:\n\n" if found["before"] else ""
    return f"{before}```{'python' if is_code else 'text'}\n{code}\n```\n\n"


def _table(found: re.Match[str]) -> str:
    starts = [one.start() for one in re.finditer(r"(?<![=])=", found[0].partition("\n")[0])]
    ends = [*starts[1:], None]

    def row(line: str) -> str:
        return "| " + " | ".join(line[start:end].strip() for start, end in zip(starts, ends, strict=True)) + " |"

    if found["head"].startswith("file "):  # lists the files of a package
        return ""
    return "\n".join([row(found["head"]), "|" + " --- |" * len(starts), *map(row, found["rows"].splitlines())])


def _inline(text: str, link: Link) -> str:
    def role(found: re.Match[str]) -> str:
        titled = re.fullmatch(r"(?P<title>[^<]+?) *<(?P<name>[^>]+)>", found["text"])
        name = (titled["name"] if titled else found["text"]).removeprefix("~")
        shown = name.rpartition(".")[2] if found["text"].startswith("~") else name
        if found["role"] in ("meth", "func"):
            shown += "()"
        if titled:
            shown = titled["title"]
        target = link(name)
        return f"`{shown}`" if target is None else f"[`{shown}`][{target}]"

    def word(found: re.Match[str]) -> str:
        target = link(found[0])
        return found[0] if target is None else f"[{found[0]}][{target}]"

    text = re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL)
    parts = re.split(r"(:\w+:`[^`]+`|`[^`]+`)", text)
    return "".join(_ROLE.sub(role, part) if number % 2 else _NAME.sub(word, part) for number, part in enumerate(parts))


# -- sections -------------------------------------------------------------------------------------------


class _Parameter(NamedTuple):
    name: str
    annotation: str | griffe.Expr | None
    default: str | None
    meaning: str
    group: str = ""


class _Docstring(griffe.Docstring):
    """A docstring that griffe takes apart when the site shows it."""

    def __init__(self, of: griffe.Object, own: griffe.Docstring, link: Link) -> None:
        super().__init__(own.value, lineno=own.lineno, endlineno=own.endlineno, parent=of)
        self._link = link
        self._of = of
        self.fields = _documented_fields(of) if isinstance(of, griffe.Class) else {}

    def parse(self, *_: object, **__: object) -> list[griffe.DocstringSection]:
        text = self._text()
        match self._of:
            case griffe.Class() as kind:
                parameters = list(self._of_class(kind, text))
            case griffe.Function() as function:
                parameters = list(self._described(text, _parameters(function), _unpacked(function)))
            case _:
                parameters = []
        if isinstance(self._of, griffe.Class) and _are_options_listed_elsewhere(self._of):
            text += f"\n\n{_where_options_are(self._of)}"
        named = {one.name for one in parameters}
        return [griffe.DocstringSectionText(self._markdown(_without(text, named))), *self._tables(parameters)]

    def _text(self) -> str:
        if _is_decorated(self._of, "describes_like"):
            return inspect.getdoc(_imported(self._of)) or ""
        return self.value

    def _markdown(self, text: str) -> str:
        return to_markdown(text, self._link, of_module=self._of.is_module)

    def _of_class(self, kind: griffe.Class, text: str) -> Iterator[_Parameter]:
        init = kind.all_members.get("__init__")
        own = _parameters(init) if isinstance(init, griffe.Function) else {}
        types = {name: one.annotation for name, one in kind.all_members.items() if isinstance(one, griffe.Attribute)}
        if isinstance(init, griffe.Function):
            types = {**types, **_unpacked(init)}
        yield from self._described(text, own, types)
        if _are_options_listed_elsewhere(kind):
            return
        options: list[Option] = []
        if _is_decorated(kind, "takes_options"):
            options = options_taken(_imported(kind))
        elif _is_decorated(kind, "documented"):
            options = options_of(_imported(kind))
        for one in options:
            annotation = own[one.name].annotation if one.name in own else types.get(one.name)
            yield _Parameter(one.name, annotation or one.type, one.default, one.meaning, one.group)
        shown = {one.name for one in options} | {name for names, _ in described(text) for name in names}
        for name, field in self.fields.items():
            if name not in shown:
                in_call = own[name].default if name in own else None
                yield field if in_call is None else field._replace(default=str(in_call))

    def _described(
        self, text: str, own: Mapping[str, griffe.Parameter], types: Mapping[str, griffe.Expr | str | None]
    ) -> Iterator[_Parameter]:
        """Parameters that the text describes, each in a line that begins with its name."""
        defaults = {}
        if isinstance(self._of, griffe.Function) and _is_decorated(self._of, "takes_options"):
            defaults = {
                name: repr(one.default)
                for name, one in inspect.signature(_imported(self._of)).parameters.items()
                if one.default is not one.empty
            }
        for names, meaning in described(text):
            for name in names:
                if name in own:
                    default = own[name].default
                    yield _Parameter(name, own[name].annotation, None if default is None else str(default), meaning)
                elif name in types:
                    yield _Parameter(name, types[name], defaults.get(name), meaning)

    def _tables(self, parameters: list[_Parameter]) -> Iterator[griffe.DocstringSection]:
        for group, members in groupby(parameters, key=lambda one: one.group):
            yield griffe.DocstringSectionParameters(
                [
                    griffe.DocstringParameter(
                        one.name,
                        annotation=one.annotation,
                        description=self._markdown(one.meaning[:1].upper() + one.meaning[1:]),
                        value=_default(one.default),
                    )
                    for one in members
                ],
                title=group or self._title(),
            )

    def _title(self) -> str:
        if not isinstance(self._of, griffe.Class):
            return "Parameters"
        if any(str(base).endswith("Enum") for base in self._of.bases):
            return "Members"
        return "Parameters" if _is_constructed_by_users(self._of) else "Fields"


def _without(text: str, named: set[str]) -> str:
    """The text without the lines that describe these parameters; other lines of that form become a list."""

    def line(found: re.Match[str]) -> str:
        names = re.findall(r"\w+", found[1])
        return "" if named.issuperset(names) else f"\n- {found[0]}"

    return re.sub(DESCRIBED, line, text)


def _default(written: str | None) -> str | None:
    if written in (None, "{}"):
        return written
    try:
        shown = shown_default(ast.parse(written, mode="eval").body).strip("`")
    except (SyntaxError, NameError):  # a repr that is no code, or a default that depends on another option
        return written
    return "None" if shown == "none" else shown


# -- what griffe has read -------------------------------------------------------------------------------


def _parameters(function: griffe.Function) -> dict[str, griffe.Parameter]:
    return {
        one.name: one
        for one in function.parameters
        if one.name != "self"
        and one.kind not in (griffe.ParameterKind.var_keyword, griffe.ParameterKind.var_positional)
    }


def _unpacked(function: griffe.Function) -> dict[str, griffe.Expr | str | None]:
    """The types of the keywords that ``**options: Unpack[...]`` takes (PEP 692)."""
    for one in function.parameters:
        if one.kind is griffe.ParameterKind.var_keyword and isinstance(one.annotation, griffe.ExprSubscript):
            path = one.annotation.slice.canonical_path if isinstance(one.annotation.slice, griffe.Expr) else ""
            kind = function.modules_collection.get_member(path)
            return {name: each.annotation for name, each in kind.all_members.items() if each.is_attribute}
    return {}


def _documented_fields(kind: griffe.Class) -> dict[str, _Parameter]:
    """The attributes in the body of a class, if any has a docstring. They lose it, so they are shown in a table only.

    Without docstrings, the signature says as much.
    """
    found = {}
    for name, one in kind.members.items():
        if name.startswith("_") or not isinstance(one, griffe.Attribute) or "property" in one.labels:
            continue
        text = one.docstring.value if one.docstring is not None else ""
        annotation, value = one.annotation, None if one.value is None else str(one.value)
        found[name] = _Parameter(name, annotation, value, text)
        one.docstring = None
    return found if any(one.meaning for one in found.values()) else {}


def _is_constructed_by_users(kind: griffe.Class) -> bool:
    return bool(list(described(kind.docstring.value if kind.docstring else ""))) or any(
        _is_decorated(kind, one) for one in ("documented", "takes_options")
    )


def _are_options_listed_elsewhere(kind: griffe.Class) -> bool:
    """Those of ParallelConsumer are listed with it, and not once more with their dataclass or with its subclasses."""
    if not (_is_decorated(kind, "takes_options") or _is_decorated(kind, "documented")):
        return False
    found = _imported(kind)
    return found is not ParallelConsumer and (issubclass(found, ParallelConsumer) or issubclass(Options, found))


def _where_options_are(kind: griffe.Class) -> str:
    found = _imported(kind)
    if issubclass(found, ParallelConsumer):
        return other_options(found).replace("`ParallelConsumer`", ":class:`~aioparallel.ParallelConsumer`")
    return "Its fields are described at :class:`~aioparallel.ParallelConsumer`."


def _is_decorated(of: griffe.Object, name: str) -> bool:
    if not isinstance(of, griffe.Class | griffe.Function):
        return False
    return any(re.match(rf"(?:\w+\.)*{name}\b", str(one.value)) for one in of.decorators)


@cache
def _imported_at(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _imported(of: griffe.Object) -> Any:
    """The class or function itself: its options are listed when it is imported."""
    return _imported_at(of.canonical_path)


# -- links ----------------------------------------------------------------------------------------------


class _Links:
    """Headings of the site for the names in roles."""

    def __init__(self, package: griffe.Module) -> None:
        self._package = package
        self._public: dict[str, str] | None = None

    def of(self, place: griffe.Object) -> Link:
        return lambda name: self._find(name, place)

    def _find(self, name: str, place: griffe.Object) -> str | None:
        found = self._object(name, place)
        if found is None:
            return None
        public = self._public_paths()
        if found.canonical_path in public:
            return public[found.canonical_path]
        parent = found.parent
        if parent is None or parent.canonical_path not in public or found.name.startswith("_"):
            return None
        owner = public[parent.canonical_path]
        if isinstance(parent.docstring, _Docstring) and found.name in parent.docstring.fields:
            if isinstance(parent, griffe.Class) and _are_options_listed_elsewhere(parent):
                owner = "aioparallel.ParallelConsumer"
            return f"{owner}({found.name})"
        return f"{owner}.{found.name}" if found.has_docstring else None

    def _public_paths(self) -> dict[str, str]:
        if self._public is None:
            collection = self._package.modules_collection
            self._public = {collection.get_member(path).canonical_path: path for path in public_paths()}
        return self._public

    def _object(self, name: str, place: griffe.Object) -> griffe.Object | None:
        collection = self._package.modules_collection
        first, _, rest = name.partition(".")
        starts: tuple[Callable[[], str], ...] = (
            lambda: name,
            lambda: f"{place.resolve(first)}.{rest}".rstrip("."),
            lambda: f"{self._package.name}.{name}",
        )
        for start in starts:
            try:
                found = collection.get_member(start())
                return found.final_target if isinstance(found, griffe.Alias) else found
            except (KeyError, griffe.NameResolutionError, griffe.AliasResolutionError):
                continue
        return None


class Docstrings(griffe.Extension):
    """Gives all docstrings of a package the form above."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """All modules of the package have been read."""
        links = _Links(pkg)
        for one in list(_objects(pkg)):
            one.labels &= _LABELS
            if one.docstring is not None:
                one.docstring = _Docstring(one, one.docstring, links.of(one))


def _objects(of: griffe.Object) -> Iterator[griffe.Object]:
    yield of
    for one in of.members.values():
        if isinstance(one, griffe.Object):
            yield from _objects(one)
