"""Writes ``reference.md``: every option, every figure of ``Stats``, every kind of ``Problem``, every ``action`` in the
log. All of it stands in the code; what a log line is for stands in ``log_actions.toml``.

``make docs`` runs it. What has no sentence is an error here, and ``tests/docs/test_reference.py`` fails when the page
is not what this makes.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from aioparallel import (
    BrokerOutputs,
    Deduplicate,
    FailurePolicy,
    LongestLane,
    Options,
    ParallelConsumer,
    PartitionStats,
    ProblemKind,
    Producing,
    RetryPolicy,
    Security,
    State,
    Stats,
    Transactions,
    batches,
    in_processes,
    in_threads,
    parallel_map,
)
from aioparallel.http import Cache, Request, http_handler
from aioparallel.http.handler import HttpHandler
from aioparallel.observe.stats import StateStats, TransactionStats
from aioparallel.queues.kmq import KmqConsumer, RedeliveryTracker
from aioparallel.queues.priority import PriorityConsumer, PriorityProducer
from aioparallel.web import ConsumerService, RestartPolicy
from docs.log_lines import LEVELS, Line, log_lines

PAGE = Path(__file__).with_name("reference.md")
_ACTIONS = Path(__file__).with_name("log_actions.toml")
_MEBIBYTE = 1024 * 1024

_HEAD = """\
# Reference

Every option, every figure of `Stats`, every kind of `Problem`, every `action` in the log. Written by `make docs` from
the docstrings in the code; do not edit it here.
"""


class NoSentence(Exception):
    """Something that a user sees has no docstring, or no line in ``log_actions.toml``."""


def page() -> str:
    """All of it, as Markdown."""
    parts = [_HEAD, _options(), _figures(), _problems(), _actions()]
    return "\n".join(parts)


# -- options --------------------------------------------------------------------------------------------


def _options() -> str:
    intro = """## Options

Times are seconds. A wrong option is refused with `ConfigurationError`: its name, the value and what is allowed.
"""
    consumer = [*_arguments(ParallelConsumer.__init__, ParallelConsumer), *map(_option, _fields(Options))]
    groups = (RetryPolicy, FailurePolicy, Producing, Transactions, State, Deduplicate, Security)
    tables = [
        _section("ParallelConsumer", consumer),
        *map(_group, groups),
        *(_section(one.__name__, _arguments(one, one)) for one in (parallel_map, batches, in_threads, in_processes)),
        _section("http_handler", _arguments(HttpHandler, http_handler)),
        _section("Request", _arguments(Request.__init__, Request)),
        _group(Cache),
        _section("ConsumerService", _arguments(ConsumerService.__init__, ConsumerService)),
        _group(RestartPolicy),
        _section("KmqConsumer", _arguments(KmqConsumer.__init__, KmqConsumer)),
        _section("RedeliveryTracker", _arguments(RedeliveryTracker.__init__, RedeliveryTracker)),
        _section("PriorityConsumer", _arguments(PriorityConsumer.__init__, PriorityConsumer)),
        _section("PriorityProducer", _arguments(PriorityProducer.__init__, PriorityProducer)),
    ]
    return "\n".join([intro, *tables])


def _group(kind: type) -> str:
    return _section(kind.__name__, map(_option, _fields(kind)))


def _section(title: str, rows: Iterable[tuple[str, ...]]) -> str:
    return f"### {title}\n\n" + _table(("option", "type", "default", "meaning"), rows)


class _Field(NamedTuple):
    name: str
    kind: str
    default: ast.expr | None
    meaning: str


def _fields(kind: type) -> list[_Field]:
    """The attributes that are declared in a class and in those that it inherits from, each with its docstring."""
    bases = [*_fields(kind.__base__)] if dataclasses.is_dataclass(kind.__base__) else []
    return bases + [
        _Field(target.id, ast.unparse(statement.annotation), statement.value, meaning)
        for statement, meaning in _documented(kind)
        if isinstance(statement, ast.AnnAssign) and isinstance(target := statement.target, ast.Name)
    ]


def _documented(kind: type) -> Iterator[tuple[ast.stmt, str]]:
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(declared, ast.ClassDef)
    for statement, after in zip(declared.body, [*declared.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign | ast.Assign) or ast.unparse(statement).startswith("_"):
            continue
        match after:
            case ast.Expr(value=ast.Constant(value=str(meaning))):
                yield statement, inspect.cleandoc(meaning)
            case _:
                raise NoSentence(f"{kind.__qualname__}: {ast.unparse(statement)}")


def _option(one: _Field) -> tuple[str, ...]:
    return (f"`{one.name}`", _type(one.kind), _default(one.name, one.default), _markdown(one.meaning))


def _default(name: str, written: ast.expr | None) -> str:
    match written:
        case ast.Call(func=ast.Name(id="field"), keywords=keywords):
            given = {one.arg: one.value for one in keywords}
            made = given.get("default_factory")
            if made is None:
                return _default(name, given.get("default"))
            shown = "none" if ast.unparse(made) == "dict" else f"`{ast.unparse(made)}()`"
        case ast.BinOp():
            value = eval(compile(ast.Expression(written), name, "eval"))
            assert value % _MEBIBYTE == 0, name
            shown = f"{value // _MEBIBYTE} MiB"
        case ast.Constant(value=None):
            shown = "none"
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            shown = f"{number:,}" if isinstance(number, int) else f"{number:g}"
        case None:
            shown = "required"
        case _:
            shown = f"`{ast.unparse(written).replace(chr(39), chr(34))}`"
    return shown


def _arguments(function: Callable[..., object], described: object) -> Iterator[tuple[str, ...]]:
    """Those that the docstring names, as it puts them together: ````name``: meaning`` at the beginning of a line."""
    text = inspect.getdoc(described) or ""
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    known_already: set[str] = set()  # have rows elsewhere
    if isinstance(described, type) and issubclass(described, ParallelConsumer):
        known_already = {one.name for one in _fields(Options)}
        if described is not ParallelConsumer:
            known_already |= set(inspect.signature(ParallelConsumer.__init__).parameters)
    known = dict(inspect.signature(function).parameters)
    defaults = _defaults(declared)
    for found in re.finditer(r"^((?:``\w+``(?:, )?)+): (.*?)(?=\n``\w+``[:,]|\n\n|\Z)", text, re.M | re.S):
        names = re.findall(r"\w+", found[1])
        kinds = {_type(str(known.pop(name).annotation)) for name in names}
        yield (
            ", ".join(f"`{name}`" for name in names),
            ", ".join(sorted(kinds)),
            _default(names[0], defaults.get(names[0])),
            _markdown(found[2][0].upper() + found[2][1:]),
        )
    if missing := known.keys() - {"self", "handler", "options"} - known_already:
        raise NoSentence(f"{function.__qualname__}: {', '.join(missing)}")


def _defaults(declared: ast.stmt) -> dict[str, ast.expr | None]:
    """Of a function's keywords, or of the fields of a dataclass."""
    if isinstance(declared, ast.ClassDef):
        fields = [one for one in declared.body if isinstance(one, ast.AnnAssign)]
        return {one.target.id: one.value for one in fields if isinstance(one.target, ast.Name)}
    assert isinstance(declared, ast.FunctionDef)
    return dict(zip((one.arg for one in declared.args.kwonlyargs), declared.args.kw_defaults, strict=True))


# -- what a consumer shows ------------------------------------------------------------------------------


def _figures() -> str:
    parts = ["## Stats\n\n`consumer.stats()` is a frozen dataclass, made at the moment it is asked for.\n"]
    for kind in (Stats, PartitionStats, LongestLane, BrokerOutputs, TransactionStats, StateStats):
        rows = [(f"`{one.name}`", _type(one.kind), _markdown(one.meaning)) for one in _fields(kind)]
        rows += [
            (f"`{name}`", _type(str(value.fget.__annotations__["return"])), _markdown(inspect.getdoc(value) or ""))
            for name, value in vars(kind).items()
            if isinstance(value, property)
        ]
        parts.append(f"### {kind.__name__}\n\n{_markdown(inspect.getdoc(kind) or '')}\n")
        parts.append(_table(("field", "type", "meaning"), rows))
    return "\n".join(parts)


def _problems() -> str:
    intro = """## Problems

`consumer.health()` is healthy while the consumer runs and there is no `Problem`. Each has a `message` and a `kind`, a
`ProblemKind`, which is equal to its text.
"""
    return f"{intro}\n" + _table(("kind", "what it is", "what to do"), map(_problem, _members(ProblemKind)))


def _members(kind: type[StrEnum]) -> Iterator[tuple[str, str]]:
    for statement, meaning in _documented(kind):
        assert isinstance(statement, ast.Assign)
        yield ast.literal_eval(statement.value), meaning


def _problem(one: tuple[str, str]) -> tuple[str, ...]:
    what, remedy = one[1].split("\n\n")
    return (f"`{one[0]}`", _markdown(what), _markdown(remedy))


# -- the log -------------------------------------------------------------------------------------------


def _actions() -> str:
    meanings: dict[str, dict[str, str]] = tomllib.loads(_ACTIONS.read_text())
    places: defaultdict[str, list[Line]] = defaultdict(list)
    for line in log_lines():
        for action in line.actions:
            places[action].append(line)
    listed = {action for group in meanings.values() for action in group}
    if differing := listed ^ places.keys():
        raise NoSentence(f"{_ACTIONS.name} and the code do not name the same actions: {', '.join(sorted(differing))}")
    parts = [
        "## Log\n\nLoggers are named as the modules are, below `aioparallel`. Each line has an `action` "
        "(given as `extra`, so an attribute of the log record), and beside it what it is about, such as `offset`, "
        "`partition` or `group_id`.\n"
    ]
    for group, rows in meanings.items():
        lines = [
            (f"`{action}`", _levels_of(places[action]), _loggers_of(places[action]), meaning)
            for action, meaning in rows.items()
        ]
        parts.append(f"### {group.capitalize()}\n\n" + _table(("action", "level", "logger", "meaning"), lines))
    return "\n".join(parts)


def _levels_of(places: list[Line]) -> str:
    found = {level for line in places for level in line.levels}
    return ", ".join(level for level in LEVELS if level in found)


def _loggers_of(places: list[Line]) -> str:
    return ", ".join(f"`{name.removeprefix('aioparallel.')}`" for name in sorted({line.module for line in places}))


# -- Markdown -------------------------------------------------------------------------------------------


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _type(annotation: str) -> str:
    choices = re.sub(r"Literal\[(.*?)\]", lambda found: found[1].replace("'", '"').replace(", ", " | "), annotation)
    return "`" + choices.replace(" | ", " or ") + "`"


def _markdown(text: str) -> str:
    """Of a docstring: roles and literals become code, lines become one."""
    without_roles = re.sub(r":\w+:`(?:~[\w.]*\.)?([\w.]+)`", r"`\1`", text)
    return " ".join(re.sub(r"``(.+?)``", r"`\1`", without_roles, flags=re.DOTALL).split())


if __name__ == "__main__":
    PAGE.write_text(page())
