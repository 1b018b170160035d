"""Writes ``reference.md``: every option, every figure of ``Stats``, every kind of ``Problem``, every ``action`` in the
log. All of it stands in the code; what a log line is for stands in ``log_actions.toml``.

``make docs`` runs it; it writes the TypedDicts of :mod:`docs.option_fields` as well. What has no sentence is an error
here, and ``tests/docs/test_reference.py`` fails when the page is not what this makes.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path

from aioparallel import (
    BrokerOutputs,
    Deduplicate,
    FailurePolicy,
    LongestLane,
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
from aioparallel.config.option_docs import (
    Option,
    Undocumented,
    attribute_docstrings,
    described,
    options_of,
    options_taken,
)
from aioparallel.control import OffsetsEndpoint
from aioparallel.http import Cache, Request, http_handler
from aioparallel.http.handler import HttpHandler
from aioparallel.observe.metrics import OpenTelemetryMetrics, PrometheusMetrics, serve_metrics
from aioparallel.observe.stats import MemberStats, PartitionCounts, ShareStats, StateStats, TransactionStats
from aioparallel.queues.kmq import KmqConsumer, RedeliveryTracker
from aioparallel.queues.priority import PriorityConsumer, PriorityProducer
from aioparallel.queues.share import ShareConsumer
from aioparallel.web import ConsumerService, RestartPolicy
from docs import instruments, option_fields
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
    """An action in the log has no line in ``log_actions.toml``."""


def page() -> str:
    """All of it, as Markdown."""
    parts = [_HEAD, _options(), _figures(), _problems(), _actions()]
    return "\n".join(parts)


# -- options --------------------------------------------------------------------------------------------


def _options() -> str:
    intro = """## Options

Times are seconds. A wrong option is refused with `ConfigurationError`: its name, the value and what is allowed.
"""
    groups = (RetryPolicy, FailurePolicy, Producing, Transactions, State, Deduplicate, Security)
    tables = [
        _taker(ParallelConsumer),
        *map(_group, groups),
        *(_section(one.__name__, _arguments(one, one)) for one in (parallel_map, batches, in_threads, in_processes)),
        _grouped("http_handler", (), options_of(HttpHandler, http_handler)),
        _section("Request", _arguments(Request.__init__, Request)),
        _group(Cache),
        _section("ConsumerService", _arguments(ConsumerService.__init__, ConsumerService)),
        _group(RestartPolicy),
        _section("PrometheusMetrics", _arguments(PrometheusMetrics.__init__, PrometheusMetrics)),
        _section("OpenTelemetryMetrics", _arguments(OpenTelemetryMetrics.__init__, OpenTelemetryMetrics)),
        _section("serve_metrics", _arguments(serve_metrics, serve_metrics)),
        _section("OffsetsEndpoint", _arguments(OffsetsEndpoint.__init__, OffsetsEndpoint)),
        _taker(ShareConsumer),
        _taker(KmqConsumer),
        _taker(RedeliveryTracker),
        _taker(PriorityConsumer),
        _section("PriorityProducer", _arguments(PriorityProducer.__init__, PriorityProducer)),
    ]
    return "\n".join([intro, *tables])


def _group(kind: type) -> str:
    return _grouped(kind.__name__, (), options_of(kind))


def _taker(kind: type[object]) -> str:
    """Of a class that takes options: its own parameters, then the others."""
    own = _arguments(kind.__init__, kind)
    if kind is ParallelConsumer or not issubclass(kind, ParallelConsumer):
        return _grouped(kind.__name__, own, options_taken(kind))
    return _section(kind.__name__, own) + f"\n{other_options(kind)}\n"


def other_options(kind: type) -> str:
    """What a subclass of ParallelConsumer takes besides its own parameters, in a sentence."""
    all_of_them, taken = ({one.name: one for one in options_taken(one)} for one in (ParallelConsumer, kind))
    own = inspect.signature(kind).parameters
    left_out = ", ".join(f"`{name}`" for name in all_of_them if name not in own)
    others = [
        f" `{name}` is by default `{one.default}`." for name, one in taken.items() if one != all_of_them.get(name, one)
    ]
    return "".join([f"It also takes the options of `ParallelConsumer`, except {left_out}.", *others])


def _grouped(title: str, own: Iterable[tuple[str, ...]], options: Iterable[Option]) -> str:
    """A table of what has no group, then one for each group."""
    groups: dict[str, list[tuple[str, ...]]] = {"": [*own]}
    for one in options:
        groups.setdefault(one.group, []).append(_option(one))
    ungrouped = groups.pop("")
    parts = [_section(title, ungrouped) if ungrouped else f"### {title}\n"]
    return "\n".join(parts + [f"#### {group}\n\n{_options_table(rows)}" for group, rows in groups.items()])


def _section(title: str, rows: Iterable[tuple[str, ...]]) -> str:
    return f"### {title}\n\n{_options_table(rows)}"


def _options_table(rows: Iterable[tuple[str, ...]]) -> str:
    return _table(("option", "type", "default", "meaning"), rows)


def _option(one: Option) -> tuple[str, ...]:
    default = None if one.default is None else ast.parse(one.default, mode="eval").body
    return (f"`{one.name}`", _type(one.type), shown_default(default), _markdown(one.meaning))


def shown_default(written: ast.expr | None) -> str:
    """A default as Markdown. None: there is none, so the option is required."""
    match written:
        case ast.BinOp():
            value = eval(compile(ast.Expression(written), "default", "eval"))
            assert value % _MEBIBYTE == 0, ast.unparse(written)
            shown = f"{value // _MEBIBYTE} MiB"
        case ast.Constant(value=None) | ast.Dict(keys=[]):
            shown = "none"
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            shown = f"{number:,}" if isinstance(number, int) else f"{number:g}"
        case None:
            shown = "required"
        case _:
            shown = f"`{ast.unparse(written).replace(chr(39), chr(34))}`"
    return shown


def _arguments(function: Callable[..., object], describing: object) -> Iterator[tuple[str, ...]]:
    """The parameters that a docstring describes, as it puts them together. Each must be there, or an option."""
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(declared, ast.FunctionDef)
    known = {one.arg: one.annotation for one in (*declared.args.args, *declared.args.kwonlyargs) if one.annotation}
    defaults = {one.arg: value for one, value in zip(declared.args.kwonlyargs, declared.args.kw_defaults, strict=True)}
    for names, meaning in described(inspect.getdoc(describing)):
        types = {_type(ast.unparse(known.pop(name))) for name in names}
        yield (
            ", ".join(f"`{name}`" for name in names),
            ", ".join(sorted(types)),
            shown_default(defaults.get(names[0])),
            _markdown(meaning[0].upper() + meaning[1:]),
        )
    elsewhere = {"handler"}
    if isinstance(describing, type):
        elsewhere |= {one.name for one in options_taken(describing)}
        if issubclass(describing, ParallelConsumer) and describing is not ParallelConsumer:
            elsewhere |= inspect.signature(ParallelConsumer).parameters.keys()
    if missing := known.keys() - elsewhere:
        raise Undocumented(f"{function.__qualname__}: {', '.join(missing)}")


# -- what a consumer shows ------------------------------------------------------------------------------


def _figures() -> str:
    parts = ["## Stats\n\n`consumer.stats()` is a frozen dataclass, made at the moment it is asked for.\n"]
    kinds = (
        Stats,
        PartitionStats,
        PartitionCounts,
        MemberStats,
        LongestLane,
        BrokerOutputs,
        TransactionStats,
        StateStats,
        ShareStats,
    )
    for kind in kinds:
        rows = [(f"`{one.name}`", _type(one.type), _markdown(one.meaning)) for one in options_of(kind)]
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
    for statement, meaning in attribute_docstrings(kind):
        assert isinstance(statement, ast.Assign)
        assert meaning is not None, ast.unparse(statement)
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
    option_fields.write()
    instruments.write()
