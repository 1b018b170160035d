"""Faults: what happens to which request."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

import pytest

from aioparallel.records.errors import ConfigurationError
from aioparallel.testing.memory import ErrorCode, Fault, Faults, InMemoryBroker, Request

LATE = Fault(request_delay=5.0)
LOST = Fault(is_response_lost=True)
REFUSED = Fault(error=ErrorCode.NOT_COORDINATOR)


def test_nothing_happens_by_itself() -> None:
    """Without faults every request is answered at once."""
    faults = Faults()
    assert all(faults.decide(request).is_harmless for request in Request)


def test_a_script_is_played_once_in_order() -> None:
    """The next requests of the kind meet the scripted faults, one each; other kinds do not."""
    faults = Faults()
    faults.script(Request.COMMIT, LATE, Fault(), LOST)
    assert faults.decide(Request.HEARTBEAT).is_harmless
    assert [faults.decide(Request.COMMIT) for _ in range(4)] == [LATE, Fault(), LOST, Fault()]


def test_script_then_chance_then_standing() -> None:
    """A script goes before chance, chance before what always happens, that before latency; heal() ends all."""
    faults = Faults()
    faults.latency(Request.FETCH, 0.1, 0.2)
    assert 0.1 <= faults.decide(Request.FETCH).request_delay <= 0.2
    faults.always(Request.FETCH, REFUSED)
    assert faults.decide(Request.FETCH) == REFUSED
    faults.sometimes(Request.FETCH, 1.0, LOST)
    assert faults.decide(Request.FETCH) == LOST
    faults.script(Request.FETCH, LATE)
    assert faults.decide(Request.FETCH) == LATE
    faults.heal()
    assert faults.decide(Request.FETCH).is_harmless


def test_healing_one_kind_leaves_the_others() -> None:
    """heal(kind) forgets that kind only."""
    faults = Faults()
    faults.always(Request.FETCH, LATE)
    faults.always(Request.COMMIT, LATE)
    faults.heal(Request.FETCH)
    assert faults.decide(Request.FETCH).is_harmless
    assert faults.decide(Request.COMMIT) == LATE


def test_faults_of_one_node() -> None:
    """They meet requests to this node, before what holds for all of them; heal() forgets these too."""
    faults = Faults()
    faults.always(Request.PRODUCE, LATE)
    faults.always(Request.PRODUCE, LOST, node=2)
    faults.script(Request.PRODUCE, REFUSED, node=3)
    assert [faults.decide(Request.PRODUCE, node) for node in (1, 2, 3, 3)] == [LATE, LOST, REFUSED, LATE]
    faults.script(Request.PRODUCE, REFUSED)
    assert [faults.decide(Request.PRODUCE, node) for node in (2, 2)] == [REFUSED, LOST]
    assert faults.decide(Request.PRODUCE) == LATE
    faults.sometimes(Request.IDENTIFY, 1.0, LOST, node=1)
    faults.latency(Request.IDENTIFY, 1.0, 1.0, node=2)
    faults.heal(Request.PRODUCE)
    assert faults.decide(Request.PRODUCE, 2).is_harmless
    assert [faults.decide(Request.IDENTIFY, node) for node in (1, 2, 3)] == [LOST, Fault(request_delay=1.0), Fault()]
    assert faults.decide(Request.IDENTIFY).is_harmless
    faults.heal()
    assert all(faults.decide(Request.IDENTIFY, node).is_harmless for node in (1, 2, 3))


def test_chance_repeats_with_its_seed() -> None:
    """The same seed gives the same faults; about as many as the probability says."""

    def drawn(seed: int) -> list[bool]:
        faults = Faults(random.Random(seed))
        faults.sometimes(Request.COMMIT, 0.3, LOST)
        return [faults.decide(Request.COMMIT).is_harmless for _ in range(1000)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert 600 < sum(drawn(1)) < 800


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_wrong_delays_are_refused(seconds: float) -> None:
    """A delay below 0, or no number, is a ConfigurationError that names it."""
    with pytest.raises(ConfigurationError, match="response_delay"):
        Fault(response_delay=seconds)


def test_an_error_is_needed_for_the_answer() -> None:
    """Carried out is every request that arrives; only one that is refused says so."""
    with pytest.raises(ConfigurationError, match="is_carried_out"):
        Fault(is_carried_out=True)


def test_wrong_odds_are_refused() -> None:
    """Probabilities outside 0 to 1 and intervals that end before they begin are ConfigurationErrors."""
    with pytest.raises(ConfigurationError, match="probability"):
        Faults().sometimes(Request.FETCH, 1.5, LOST)
    with pytest.raises(ConfigurationError, match="latency"):
        Faults().latency(Request.FETCH, 2.0, 1.0)


def test_what_can_never_happen_is_refused() -> None:
    """A kind of request or a fault that is none, a node that the broker has not, and one for requests that go to no
    single node are ConfigurationErrors: a test with them would test nothing."""
    faults = InMemoryBroker(nodes=3).faults
    no_request, no_fault, no_code = cast("Request", "produce"), cast("Fault", "lost"), cast("ErrorCode", "boom")
    wrongs: tuple[Callable[[], None], ...] = (
        lambda: faults.script(no_request, LOST),
        lambda: faults.always(no_request, LOST),
        lambda: faults.sometimes(no_request, 0.5, LOST),
        lambda: faults.latency(no_request, 0.0, 1.0),
        lambda: faults.heal(no_request),
    )
    for wrong in wrongs:
        with pytest.raises(ConfigurationError, match=r"^request='produce': a Request, one of Request.CONNECT"):
            wrong()
    with pytest.raises(ConfigurationError, match=r"^fault='lost'"):
        faults.script(Request.PRODUCE, LOST, no_fault)
    for node in (7, 0):
        with pytest.raises(ConfigurationError, match=rf"^node={node}: 1 to 3"):
            faults.always(Request.PRODUCE, LOST, node=node)
    with pytest.raises(ConfigurationError, match=r"^node=1: leave it out, a fetch request is for no single node"):
        faults.script(Request.FETCH, LOST, node=1)
    with pytest.raises(ConfigurationError, match=r"^error='boom': an ErrorCode"):
        Fault(error=no_code)
    with pytest.raises(ConfigurationError, match=r"^request_delay='5': seconds"):
        Fault(request_delay=cast("float", "5"))
    faults.script(Request.PRODUCE, LOST, node=3)
    assert faults.decide(Request.PRODUCE, 3) is LOST
