"""Options in ``help()``: the dataclass, the signatures, the docstrings and the reference page say the same."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
from typing import Any, get_type_hints

import pytest

from aioparallel import (
    Deduplicate,
    FailurePolicy,
    Handling,
    Options,
    ParallelConsumer,
    Producing,
    RetryPolicy,
    Security,
    State,
    Transactions,
    Work,
    parallel_map,
)
from aioparallel.config.option_docs import (
    Option,
    Undocumented,
    described,
    describes_like,
    documented,
    options_of,
    takes_options,
)
from aioparallel.http import Cache, Request, http_handler
from aioparallel.http.handler import HttpHandler
from aioparallel.queues.kmq import KmqConsumer, RedeliveryTracker
from aioparallel.queues.priority import PriorityConsumer
from aioparallel.web import RestartPolicy
from aioparallel.web.starlette import running
from docs.reference import page

DATACLASSES = (
    Handling, Options, RetryPolicy, FailurePolicy, Producing, Transactions, State, Deduplicate, Security, Cache,
    RestartPolicy, Work,
)  # fmt: skip


def words(text: str) -> str:
    """Without line breaks, and without what Markdown and reStructuredText write around names."""
    return " ".join(text.replace("`", "").replace("|", "").split())


def shown(one: Option) -> str:
    """An option in ``help()``, up to its meaning."""
    return f"    {one.name}: {one.type}" + (f" = {one.default}" if one.default is not None else "") + "\n        "


def test_the_signature_of_a_consumer_has_all_options() -> None:
    """Their names, types and defaults are those of Options."""
    parameters = inspect.signature(ParallelConsumer).parameters
    types = get_type_hints(Options)
    for field in dataclasses.fields(Options):
        found = parameters[field.name]
        assert found.kind is found.KEYWORD_ONLY
        assert found.default == getattr(Options(), field.name)
        if not field.name.endswith("_deserializer"):  # those give the types of a record
            assert found.annotation == types[field.name]
    own = {"topics", "bootstrap_servers", "group_id", "client", "producer"}
    assert parameters.keys() == own | types.keys()
    inspect.signature(ParallelConsumer).bind("t", group_id="g", max_concurrency=3)


def test_help_the_page_and_options_agree() -> None:
    """Each option is in both, in its group, with its type, its default and its meaning."""
    text, on_page = pydoc.plain(pydoc.render_doc(ParallelConsumer)), words(page())
    text = text.replace("\n |  ", "\n")
    place = text.index("\nOptions\n")
    group = ""
    for one in options_of(Options):
        if one.group != group:
            group = one.group
            place = text.index(f"\n  {group}\n", place)
            assert f"#### {group} option type default meaning" in on_page
        place = text.index(shown(one), place)
        meaning = words(one.meaning)
        assert meaning in words(text[place : place + 2 * len(one.meaning) + 1_000])
        assert meaning in on_page
        assert f"{one.name}: " in text[: text.index("\nReads topics")]


def test_help_has_no_modules_and_a_line_for_each_parameter() -> None:
    """It can be read."""
    lines = str(inspect.signature(ParallelConsumer)).splitlines()
    assert "    until: Optional[Literal['end']] = None," in lines
    assert "    failures: FailurePolicy = FailurePolicy()," in lines
    assert "    ordering: Ordering = Ordering.KEY," in lines
    assert "    value_deserializer: Callable[[bytes], V_co] | None = None," in lines
    assert max(map(len, lines)) < 110


@pytest.mark.parametrize("kind", DATACLASSES)
def test_the_docstring_of_each_dataclass_of_options_lists_its_fields(kind: type) -> None:
    """The policies, too, and their own text comes first."""
    text = inspect.getdoc(kind)
    assert text is not None
    assert "\nOptions\n" in text
    listed = options_of(kind)
    assert [one.name for one in listed if shown(one) not in text] == []
    assert {one.name for one in listed} == {one.name for one in dataclasses.fields(kind) if one.name[0] != "_"}


def test_queues_show_the_options_that_they_take() -> None:
    """What is refused there is not shown; a default of their own is."""
    queue, ranked = inspect.signature(KmqConsumer).parameters, inspect.signature(PriorityConsumer).parameters
    options = {one.name for one in dataclasses.fields(Options)}
    refused = {"ordering", "order_by", "commits", "failures", "state", "deduplicate", "when_map_is_full"}
    assert options - queue.keys() == refused
    assert options - ranked.keys() == {"commits"}
    assert repr(queue["max_buffered"].default) == "2 * max_concurrency"
    for kind, known in ((KmqConsumer, queue), (PriorityConsumer, ranked)):
        text = kind.__doc__ or ""
        for one in options_of(Options):
            assert (f"\n    {one.name}: " in text) == (one.name in known)
    assert "\n    max_buffered: int = 2 * max_concurrency\n" in (KmqConsumer.__doc__ or "")


@pytest.mark.parametrize("name", sorted({"ordering", "order_by", "commits", "failures", "state", "deduplicate"}))
def test_what_a_queue_does_not_show_it_refuses(name: str) -> None:
    """With any value that ParallelConsumer takes."""
    values: dict[str, object] = {
        "ordering": Options().ordering, "order_by": len, "commits": Transactions(), "failures": FailurePolicy(),
        "state": None, "deduplicate": None,
    }  # fmt: skip
    given: Any = {name: values[name]}
    with pytest.raises(ValueError, match=name):
        KmqConsumer("t", group_id="g", **given)


def test_a_tracker_describes_what_consumers_have_in_their_words() -> None:
    """Same defaults, where both have one; what it describes itself is not listed again."""
    defaults = Options()
    parameters = inspect.signature(RedeliveryTracker).parameters
    for name in ("session_timeout", "heartbeat_interval", "security"):
        assert parameters[name].default == getattr(defaults, name)
        assert f"\n    {name}: " in (RedeliveryTracker.__doc__ or "")
    assert "\n    producing: " not in (RedeliveryTracker.__doc__ or "")
    assert "max_concurrency" not in (RedeliveryTracker.__doc__ or "")


def test_parallel_map_has_the_defaults_of_handling() -> None:
    """Where both have one."""
    names = {"key": "order_by", "timeout": "handler_timeout"}
    defaults, compared = Handling(), 0
    for name, one in inspect.signature(parallel_map).parameters.items():
        if hasattr(defaults, names.get(name, name)) and one.default is not None:
            assert one.default == getattr(defaults, names.get(name, name))
            compared += 1
    assert compared >= 3


def test_http_handler_has_the_fields_of_its_dataclass_and_describes_each() -> None:
    """With their defaults."""
    parameters = inspect.signature(http_handler).parameters
    made: HttpHandler[Any, Any] = HttpHandler(lambda record: Request("GET", "https://host"))
    assert list(parameters) == [one.name for one in dataclasses.fields(HttpHandler)]
    assert all(one.default == getattr(made, name) for name, one in parameters.items() if name != "request")
    assert [one.name for one in options_of(HttpHandler, http_handler)] == list(parameters)


@documented
@dataclasses.dataclass
class Base:
    """A base."""

    # -- First ----------------

    one: int
    """Of the first group."""

    # -- Second ----------------

    two: int = 2 * 8
    """Of the second."""


@documented
@dataclasses.dataclass
class Derived(Base):
    """More."""

    # -- First ----------------

    three: dict[str, int] = dataclasses.field(default_factory=dict)
    """See
    :class:`~aioparallel.Options` and ``this``."""
    four: list[int] = dataclasses.field(default_factory=list)
    """Of the first."""
    five: int = dataclasses.field(default=5, kw_only=True)
    """Of the first."""


@takes_options(Derived, without=("four",), defaults={"two": "twice one"})
class Takes:
    """Takes options.

    ``own``: its own.
    """

    def __init__(self, own: int, *, three: int = 3, **options: Any) -> None:
        pass


class Inherits(Takes):
    def __init__(self, only: int) -> None:
        super().__init__(only)


@takes_options(Derived)
class TakesMore(Takes):
    """Takes more.

    ``more``: more.
    """

    def __init__(self, own: int, *, more: int, **options: Any) -> None:
        super().__init__(own, **options)


@describes_like(Takes)
def take(own: int, other: int) -> None:
    """Take.

    ``other``: another one.

    It takes.
    """


def test_groups_of_one_title_are_one() -> None:
    """Also where a field is inherited; a default that is made is shown as its call."""
    assert options_of(Derived) == [
        Option("one", "int", None, "Of the first group.", "First"),
        Option("three", "dict[str, int]", "{}", "See\n:class:`~aioparallel.Options` and ``this``.", "First"),
        Option("four", "list[int]", "list()", "Of the first.", "First"),
        Option("five", "int", "5", "Of the first.", "First"),
        Option("two", "int", "2 * 8", "Of the second.", "Second"),
    ]


def test_the_docstring_of_what_takes_options() -> None:
    """Its own text, then the options in their groups; a parameter of its own that is an option is one of them."""
    assert (
        Takes.__doc__
        == """\
Takes options.

``own``: its own.

Options

  First

    one: int
        Of the first group.

    three: dict[str, int] = {}
        See Options and ``this``.

    five: int = 5
        Of the first.

  Second

    two: int = twice one
        Of the second."""
    )
    assert Takes(1).__doc__ == Takes.__doc__
    assert str(inspect.signature(Takes)) == (
        "(\n    own: int,\n    *,\n    three: int = 3,\n    one: int,\n    two: int = twice one,\n    five: int = 5,\n)"
    )


def test_a_subclass_has_its_own_signature() -> None:
    """The options are those of the class whose constructor takes them."""
    assert list(inspect.signature(Inherits).parameters) == ["only"]
    assert Inherits.__doc__ is None


def test_parameters_that_a_base_describes_come_first() -> None:
    """What a class describes itself is not listed."""
    assert "\n\nOptions\n\n    own: int\n        Its own.\n\n  First\n\n    one: int\n" in (TakesMore.__doc__ or "")
    assert "more: int" not in (TakesMore.__doc__ or "")
    assert "bootstrap_servers: str" in (KmqConsumer.__doc__ or "")


def test_a_function_describes_shared_parameters_in_the_words_of_another() -> None:
    """At the end; those that the other one does not share are left out."""
    assert take.__doc__ == "Take.\n\n``other``: another one.\n\nIt takes.\n\n``own``: its own."
    assert {name for names, _ in described(running.__doc__) for name in names} == {
        "name", "restart", "on_failure", "within",
    }  # fmt: skip


def test_a_field_without_a_meaning_is_an_error() -> None:
    """For whoever makes the page, or asks for help."""

    @documented
    @dataclasses.dataclass
    class Silent:
        """Silent."""

        one: int = 1

    with pytest.raises(Undocumented, match=r"Silent\.one"):
        options_of(Silent)


def test_without_sources_there_is_the_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that is installed as bytecode."""

    @documented
    @dataclasses.dataclass
    class Compiled:
        """Compiled."""

        one: int = 1
        """One."""

    def no_source(kind: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr(inspect, "getsource", no_source)
    assert Compiled.__doc__ == "Compiled."
