"""The bound of bytes of a flow: what was read and what handlers have returned, measured as it comes."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pytest

from aioparallel import RetryLater, batches, parallel_map
from aioparallel.engine.flow.sizes import size_of, size_of_error

SIZE = 10_000
BOUND = 100_000
"""Of ten results, and an item more or less for each of them."""


class Steps:
    """Handlers called, and which of them may go on."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.go_on = asyncio.Event()

    async def held_by_the_first(self, number: int) -> str:
        """A large result for each but the first, which is slow."""
        self.began.append(number)
        if number == 0:
            await self.go_on.wait()
            return ""
        await asyncio.sleep(0)
        return "x" * SIZE


async def settled(steps: Steps) -> int:
    """Handlers called, once no more are."""
    before = -1
    while before != len(steps.began):
        before = len(steps.began)
        for _ in range(200):
            await asyncio.sleep(0)
    return before


@pytest.mark.parametrize("source", ["list", "generator", "async"])
async def test_results_behind_a_slow_item_stop_the_others(source: str) -> None:
    """In order of the input: no more than the bound and what runs; then all of them, in order."""
    steps = Steps()

    async def later() -> AsyncIterator[int]:
        for number in range(1_000):
            yield number

    items: Any = {"list": range(1_000), "async": later()}.get(source, iter(range(1_000)))
    mapped = parallel_map(steps.held_by_the_first, items, max_concurrency=5, max_buffered_bytes=BOUND, in_order=True)
    async with mapped as outcomes:
        reading = asyncio.ensure_future(all_of(outcomes))
        assert 10 <= await settled(steps) <= 16
        steps.go_on.set()
        assert [index for index, _ in await reading] == list(range(1_000))


def test_results_of_items_that_a_thread_reads_are_bounded_too() -> None:
    """On an event loop of the real time: the thread has no other."""

    async def main() -> None:
        steps = Steps()
        mapped = parallel_map(
            steps.held_by_the_first,
            iter(range(1_000)),
            max_concurrency=5,
            max_buffered_bytes=BOUND,
            in_order=True,
            read_in_thread=True,
        )
        async with mapped as outcomes:
            reading = asyncio.ensure_future(all_of(outcomes))
            while len(steps.began) < 10:
                await asyncio.sleep(0)
            assert await settled(steps) <= 16
            steps.go_on.set()
            assert [index for index, _ in await reading] == list(range(1_000))

    asyncio.run(main())


def test_large_items_that_a_thread_reads_are_bounded_too() -> None:
    """Small ones first, after which it reads many at once."""
    ahead = most = 0

    def source() -> Iterator[bytes]:
        nonlocal ahead, most
        for number in range(1_000):
            item = bytes(1 if number < 900 else SIZE)
            ahead += len(item)
            most = max(most, ahead)
            yield item

    async def handle(item: bytes) -> None:
        nonlocal ahead
        await asyncio.sleep(0)
        ahead -= len(item)

    async def main() -> None:
        outcomes = parallel_map(handle, source(), max_concurrency=2, max_buffered_bytes=BOUND, read_in_thread=True)
        assert len(await all_of(outcomes)) == 1_000

    asyncio.run(main())
    assert most <= BOUND + SIZE


async def test_errors_count_with_what_their_calls_held() -> None:
    """As long as an error is there, so are the variables of the calls that it ended."""
    steps = Steps()

    async def handle(number: int) -> None:
        body = await steps.held_by_the_first(number)
        raise ValueError(len(body))

    mapped = parallel_map(
        handle, range(100), max_concurrency=5, max_buffered_bytes=BOUND, in_order=True, on_error="emit"
    )
    async with mapped as outcomes:
        reading = asyncio.ensure_future(all_of(outcomes))
        assert await settled(steps) <= 20
        steps.go_on.set()
        assert [index for index, _ in await reading] == list(range(100))


async def all_of(outcomes: Any) -> list[tuple[int, Any]]:
    return [(outcome.index, outcome.value) async for outcome in outcomes]


async def test_a_reader_that_stops_stops_the_handlers() -> None:
    """In the order in which they end, too."""
    steps = Steps()
    steps.go_on.set()
    async with parallel_map(
        steps.held_by_the_first, range(1_000), max_concurrency=5, max_buffered_bytes=BOUND
    ) as outcomes:
        async for outcome in outcomes:
            if outcome.index:
                break
        assert await settled(steps) <= 20
        assert len(await all_of(outcomes)) == 998


async def test_an_item_that_waits_for_its_next_attempt_is_started_all_the_same() -> None:
    """The others wait for it, so nothing else would free what they take."""
    attempts: Counter[int] = Counter()

    async def handle(number: int) -> str:
        attempts[number] += 1
        if number % 7 == 0 and attempts[number] < 3:
            raise RetryLater(0.01)
        return "x" * SIZE

    async with asyncio.timeout(60):
        outcomes = parallel_map(handle, range(200), max_concurrency=3, max_buffered_bytes=BOUND, in_order=True)
        given = [index for index, _ in await all_of(outcomes)]
    assert given == list(range(200))


async def test_an_item_behind_many_lanes_is_started_all_the_same() -> None:
    """The next in order stands behind another of its key, and its lane behind all others."""
    steps = Steps()
    most = unread = 0

    async def handle(number: int) -> str:
        nonlocal most, unread
        steps.began.append(number)
        if number == 0:
            await steps.go_on.wait()
        unread += 1
        most = max(most, unread)
        return "x" * SIZE

    outcomes = parallel_map(
        handle,
        range(500),
        key=lambda number: "hot" if number < 20 else number,
        max_concurrency=4,
        max_buffered_bytes=BOUND,
        in_order=True,
    )
    given = []
    async with asyncio.timeout(60), outcomes:
        reading = asyncio.ensure_future(anext(aiter(outcomes)))
        assert await settled(steps) <= 15
        steps.go_on.set()
        given.append((await reading).index)
        async for outcome in outcomes:
            unread -= 1
            given.append(outcome.index)
    assert given == list(range(500))
    assert most <= 20


async def test_calls_of_several_items_keep_the_bound() -> None:
    """A batch that is gathered waits for nobody who may not start."""
    called: list[list[int]] = []

    @batches(size=4, linger=3_600.0)
    async def handle(batch: Any) -> list[str]:
        called.append(list(batch))
        await asyncio.sleep(0)
        return ["x" * SIZE] * len(batch)

    async with asyncio.timeout(60):
        outcomes = parallel_map(
            handle,
            range(101),
            key=lambda number: number % 9,
            max_concurrency=2,
            max_buffered_bytes=BOUND,
            in_order=True,
        )
        given = [index for index, _ in await all_of(outcomes)]
    assert given == list(range(101))
    assert sum(map(len, called)) == 101


@pytest.mark.parametrize("on_error", ["emit", "skip"])
async def test_large_items_are_read_by_their_bytes(on_error: Any) -> None:
    """Small ones first; and those that have failed count no more."""
    ahead: list[int] = []
    read = ended = 0

    def source() -> Iterator[bytes]:
        nonlocal read
        for number in range(500):
            read += 1
            ahead.append(read - ended)
            yield bytes(1 if number < 300 else SIZE)

    async def handle(item: bytes) -> None:
        nonlocal ended
        await asyncio.sleep(0)
        ended += 1
        if ended % 2:
            raise ValueError

    async with asyncio.timeout(60):
        outcomes = parallel_map(
            handle, source(), max_concurrency=2, max_buffered_bytes=BOUND, in_order=True, on_error=on_error
        )
        assert len(await all_of(outcomes)) == (500 if on_error == "emit" else 250)
    assert max(ahead[:300]) > 100
    assert max(ahead[-100:]) <= 25


async def test_what_is_larger_than_the_bound_passes() -> None:
    """By itself."""

    async def handle(item: bytes) -> bytes:
        return item * 2

    given = [
        outcome.value
        async for outcome in parallel_map(handle, [b"x" * 1_000] * 50, max_buffered_bytes=1, max_concurrency=3)
    ]
    assert given == [b"x" * 2_000] * 50


class Point(NamedTuple):
    name: str
    values: list[float]


@dataclasses.dataclass(slots=True)
class Page:
    text: str
    parts: list[bytes]


class Plain:
    def __init__(self) -> None:
        self.body = "x" * SIZE


class Slots:
    __slots__ = ("body",)

    def __init__(self) -> None:
        self.body = "x" * SIZE


@dataclasses.dataclass
class Node:
    parent: Node | None
    children: list[Node]
    text: str = "x" * 1_000


def tree(width: int) -> Node:
    """Every node holds those around it."""
    top = Node(None, [])
    top.children = [Node(top, []) for _ in range(width)]
    return top


def nested(depth: int) -> object:
    value: object = "x" * SIZE
    for _ in range(depth):
        value = [value, value]
    return value


class Hostile:
    @property
    def nbytes(self) -> int:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "least"),
    [
        ({"a": "x" * SIZE, "b": 1}, SIZE),
        ({"a": {"b": [{"c": b"x" * SIZE}]}}, SIZE),
        (["x" * 100] * 100, SIZE),
        ([1.0] * 1_000, 24 * 1_000),
        ({str(number): number for number in range(1_000)}, 50 * 1_000),
        (Point("x" * SIZE, [1.0]), SIZE),
        (Page("", [b"x" * SIZE]), SIZE),
        (Plain(), SIZE),
        (Slots(), SIZE),
        (deque(["x" * 100] * 100), SIZE),
        (np.array(["x" * 100] * 100, dtype=object), SIZE),
        (tree(30), 31 * 1_000),
        (nested(60), SIZE),
        (memoryview(bytes(SIZE)), SIZE),
        ("\N{SNOWMAN}" * SIZE, 2 * SIZE),
    ],
    ids=[
        "dict",
        "nested",
        "texts",
        "numbers",
        "map",
        "named tuple",
        "dataclass",
        "object",
        "slots",
        "queue",
        "objects of NumPy",
        "tree",
        "deep",
        "buffer",
        "two bytes each",
    ],
)
def test_sizes(value: object, least: int) -> None:
    """Somewhat more than what it holds."""
    assert least <= size_of(value) <= 6 * least


def test_sizes_of_anything() -> None:
    """It raises nothing, and comes to an end."""
    endless: list[object] = []
    endless.append(endless)
    deep: dict[str, object] = {}
    for _ in range(5_000):
        deep = {"next": deep}
    for value in (None, 1, Hostile(), endless, object, sys, pytest.mark, iter(())):
        assert 0 < size_of(value) < SIZE
    assert 0 < size_of(deep) < 5_000 * 1_000


CALLED: list[str] = []


def call(what: str) -> NoReturn:
    """Code of a user's class."""
    CALLED.append(what)
    raise RuntimeError(what)


class Loads:
    """An attribute that loads what it stands for, as those of object-relational mappers do."""

    def __get__(self, one: object, kind: type | None = None) -> Any:
        if one is None:
            return self
        call("load")

    def __set__(self, one: object, value: object) -> None:
        """It is kept elsewhere."""


@dataclasses.dataclass
class Mapped:
    name: str
    others: Any = None


Mapped.others = Loads()  # as a mapper does, behind the dataclass


class Lazy:
    """A proxy that makes what it stands for when it is first looked at."""

    __slots__ = ("made",)

    def __getattr__(self, name: str) -> Any:
        call(name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        call("class")


class LazyWithAttributes(Lazy):
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        call("dict")

    @property
    def nbytes(self) -> int:
        call("nbytes")


class Query(Mapping[str, str]):
    def __init__(self) -> None:
        self.text = "x" * SIZE

    def __getitem__(self, name: str) -> str:
        call(name)

    def __iter__(self) -> Iterator[str]:
        call("iter")

    def __len__(self) -> int:  # noqa: PLE0303 - it raises
        call("len")


class Numbered(list[str]):
    def __iter__(self) -> Iterator[str]:
        call("iter")

    def __len__(self) -> int:  # noqa: PLE0303 - it raises
        call("len")


class Strict(type):
    """Its classes cannot be looked up in anything."""

    def __eq__(cls, other: object) -> bool:
        call("eq")

    def __hash__(cls) -> int:  # noqa: PLE0309 - it raises
        call("hash")


class OfAStrictOne(metaclass=Strict):
    pass


def test_nothing_of_a_users_class_is_called_for_its_size() -> None:
    """What it does might take long, change something, or fail."""
    CALLED.clear()
    for value, least in (
        (Mapped("x" * SIZE), SIZE),
        (Lazy(), 1),
        (LazyWithAttributes(), 1),
        (Query(), SIZE),
        (Numbered(["x" * SIZE]), SIZE),
    ):
        assert least <= size_of(value) <= SIZE + 1_000
    assert not CALLED


def test_a_class_that_cannot_be_looked_up_has_some_size() -> None:
    """At the top, too, and among the variables of a failed call."""

    def fail() -> None:
        body, odd = "x" * SIZE, OfAStrictOne()
        raise ValueError(len(body), odd)

    assert 0 < size_of(OfAStrictOne()) < SIZE
    assert 0 < size_of({"a": OfAStrictOne()}) < SIZE
    assert 0 < size_of_error(raised_by(fail)) < 2 * SIZE


@dataclasses.dataclass
class File:
    text: str
    nbytes: int = -1


def test_a_field_of_that_name_is_no_size() -> None:
    """``nbytes`` of an array is its size; of a user's class it may be anything."""
    assert SIZE < size_of(File("x" * SIZE)) < 2 * SIZE
    assert SIZE < size_of(File("x" * SIZE, 10 * SIZE)) < 2 * SIZE


def raised_by(function: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        function()
    return caught.value


def fail_with_a_body() -> None:
    body = "x" * SIZE
    raise ValueError(len(body))


def test_errors_of_a_group_count() -> None:
    """As those of tasks that a handler has begun together."""

    def fail() -> None:
        raise BaseExceptionGroup("two of three", [raised_by(fail_with_a_body), raised_by(fail_with_a_body)])

    assert 2 * SIZE < size_of_error(raised_by(fail)) < 3 * SIZE


def test_an_error_counts_with_its_cause_and_its_context() -> None:
    """``raise ... from`` another one keeps that which was handled, too."""

    def fail() -> None:
        try:
            fail_with_a_body()
        except ValueError:
            raise KeyError from OSError("of something else")

    assert SIZE < size_of_error(raised_by(fail)) < 2 * SIZE


def test_errors_that_are_false_or_have_no_length_count() -> None:
    """Nobody asks them."""

    class Odd(Exception):
        def __len__(self) -> int:
            raise RuntimeError

    def fail() -> None:
        try:
            raise Odd
        except Odd as error:
            raise KeyError from error

    assert 0 < size_of_error(raised_by(fail)) < SIZE


@dataclasses.dataclass
class Service:
    cache: dict[int, str]

    def handle(self) -> None:
        fail_with_a_body()


def test_what_a_handlers_own_object_keeps_is_not_its_errors() -> None:
    """A cache would be walked, and counted, at each failure."""
    service = Service(dict.fromkeys(range(100000), "x" * 200))
    error = raised_by(service.handle)
    assert SIZE < size_of_error(error) < 2 * SIZE
    assert size_of(service) > 200 * 100_000


@pytest.mark.parametrize("large", [2, 3, 5, 8, 11, 50, 100], ids=lambda each: f"one-in-{each}")
@pytest.mark.parametrize("small", [1, 7], ids=["the-large-ones-first", "a-large-one-at-last"])
async def test_large_results_among_small_ones_are_noticed(large: int, small: int) -> None:
    """Small ones are not all measured while there are few bytes. Whatever their order is, the bound holds, about."""
    made, bound, go_on = 0, 2_000_000, asyncio.Event()

    async def handle(number: int) -> str:
        nonlocal made
        if number == 0:
            await go_on.wait()
            return ""
        result = "x" * (SIZE if number % large == small % large else 1)
        made += size_of(result)
        return result

    mapped = parallel_map(
        handle, range(100_000), max_concurrency=5, max_buffered=100_000, max_buffered_bytes=bound, in_order=True
    )
    async with mapped as outcomes:
        reading = asyncio.ensure_future(all_of(outcomes))
        before = -1
        while before != made:
            before = made
            for _ in range(300):
                await asyncio.sleep(0)
        reading.cancel()
        go_on.set()
    assert made < 1.5 * bound
