"""A member with a ``group_instance_id``: what its requests contain, and what follows from FENCED_INSTANCE_ID."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import aiokafka.errors as kafka
import pytest
from aiokafka.protocol.api import RequestStruct
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

from aioparallel.clients.aiokafka import static_member
from aioparallel.clients.aiokafka.group_messages import Heartbeat
from aioparallel.clients.aiokafka.static_member import StaticMember
from aioparallel.records.error_codes import ErrorCode

NEW = ""


class Coordinator:
    """The parts of aiokafka's coordinator that a static member uses. Answers with the codes and errors in
    ``answers``."""

    group_id, generation, member_id = "g", 3, NEW

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.sent: list[Any] = []
        self.resets = 0
        self._closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def _send_req(self, request: object) -> object:
        self.sent.append(request)
        await asyncio.sleep(0)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def reset_generation(self) -> None:
        self.resets += 1


def answer(code: int = ErrorCode.NONE, member_id: str = NEW) -> SimpleNamespace:
    """The broker's answer."""
    return SimpleNamespace(error_code=code, member_id=member_id)


def join(member_id: str = NEW) -> JoinGroupRequest:
    """A join as aiokafka makes it."""
    return JoinGroupRequest("g", 1_000, 1_000, member_id, "one", "consumer", [])


HEARTBEAT = HeartbeatRequest("g", 3, "a")
FENCED = ErrorCode.FENCED_INSTANCE_ID


def of(coordinator: Coordinator) -> tuple[StaticMember, list[None]]:
    """The member, and how often it was fenced."""
    fenced: list[None] = []
    return StaticMember(cast("Any", coordinator), "one", lambda: fenced.append(None)), fenced


async def gets_no_answer(coordinator: Coordinator, sending: asyncio.Future[object], *, is_heartbeat: bool) -> None:
    """Until the coordinator is closed, and then an error. A heartbeat never gets one, because aiokafka would retry
    it."""
    for _ in range(10):
        await asyncio.sleep(0)
    assert not sending.done()
    coordinator._closing.set_result(None)
    if not is_heartbeat:
        with pytest.raises(kafka.IllegalStateError):
            await sending
        return
    for _ in range(10):
        await asyncio.sleep(0)
    assert not sending.done()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending


@pytest.mark.parametrize(
    ("most", "version", "named"), [(5, 4, True), (4, 4, True), (3, 3, True), (2, 1, False), (0, 0, False)]
)
def test_heartbeats_name_the_id_where_the_broker_takes_it(most: int, version: int, named: bool) -> None:
    """In the newest version of both sides. Older versions are aiokafka's."""
    built = cast("Any", Heartbeat("g", 3, "a", "one").prepare({12: (0, most)}))
    assert isinstance(built, RequestStruct)
    assert version == built.API_VERSION
    assert (built.group, built.generation_id, built.member_id) == ("g", 3, "a")
    assert getattr(built, "group_instance_id", None) == ("one" if named else None)
    assert type(built).decode(built.encode()).encode() == built.encode()
    answered = built.RESPONSE_TYPE
    tail = b"\0" if version == 4 else b""
    throttled = b"\0\0\0\0" if version else b""
    assert answered.decode(throttled + FENCED.to_bytes(2) + tail).error_code == FENCED


def test_joins_and_syncs_name_it_in_aiokafka_itself() -> None:
    """From version 5 and 3 on."""
    joined = cast("Any", join("a").prepare({11: (0, 9)}))
    synced = cast("Any", SyncGroupRequest("g", 3, "a", "one", []).prepare({14: (0, 5)}))
    assert (joined.API_VERSION, joined.group_instance_id) == (5, "one")
    assert (synced.API_VERSION, synced.group_instance_id) == (3, "one")


async def test_a_lost_session_joins_with_its_old_id() -> None:
    """Until the group says that it does not know the id."""
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    coordinator = Coordinator(answer(0, "a"), answer(unknown), answer(unknown), answer(0, "b"), answer(0, "b"))
    of(coordinator)
    await coordinator._send_req(join())
    await coordinator._send_req(HEARTBEAT)
    await coordinator._send_req(join())
    await coordinator._send_req(join())
    await coordinator._send_req(join())
    assert [getattr(one, "_member_id", None) for one in coordinator.sent] == [NEW, None, "a", NEW, "b"]
    assert isinstance(coordinator.sent[1], Heartbeat)


@pytest.mark.parametrize("request_", [HEARTBEAT, join("a"), SyncGroupRequest("g", 3, "a", "one", [])])
async def test_fenced_by_any_answer(request_: object) -> None:
    """It is reported once. Nothing is sent any more, and aiokafka gets no answer, because it would retry."""
    coordinator = Coordinator(answer(0, "a"), answer(FENCED))
    member, fenced = of(coordinator)
    await coordinator._send_req(join())
    first = asyncio.ensure_future(coordinator._send_req(request_))
    for _ in range(3):
        await asyncio.sleep(0)
    second = asyncio.ensure_future(coordinator._send_req(join()))
    member.fenced("a")
    await gets_no_answer(coordinator, first, is_heartbeat=request_ is HEARTBEAT)
    with pytest.raises(kafka.IllegalStateError):
        await second
    assert fenced == [None]
    assert len(coordinator.sent) == 2


async def test_fenced_by_a_commit() -> None:
    """Of this member. A commit with an earlier member id says nothing."""
    coordinator = Coordinator(answer(0, "b"))
    member, fenced = of(coordinator)
    await coordinator._send_req(join())
    member.fenced("a")
    assert not fenced
    member.fenced("b")
    assert fenced == [None]


@pytest.mark.parametrize("how", ["heartbeat", "commit"])
async def test_a_late_join_of_its_own_is_no_fencing(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first join gets no answer, the second one does, and then the group handles the first: the member joins once
    more. If it is fenced again, or a while later, another process did it."""
    for seconds, is_own in ((60.0, True), (0.0, False)):
        monkeypatch.setattr(static_member, "_LATE", seconds)
        silence = kafka.RequestTimedOutError()
        codes = [answer(FENCED)] if how == "heartbeat" else []
        coordinator = Coordinator(silence, answer(0, "a"), *codes, answer(0, "b"), answer(FENCED))
        member, fenced = of(coordinator)
        with pytest.raises(kafka.RequestTimedOutError):
            await coordinator._send_req(join())
        await coordinator._send_req(join())
        if not is_own:
            await asyncio.sleep(0.01)
            member.fenced("a")
            assert fenced == [None]
            continue
        if how == "heartbeat":
            heard = cast("SimpleNamespace", await coordinator._send_req(HEARTBEAT))
            assert heard.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        else:
            member.fenced("a")
            assert coordinator.resets == 1
        assert not fenced
        await coordinator._send_req(join())
        assert coordinator.sent[-1]._member_id == NEW
        await gets_no_answer(coordinator, asyncio.ensure_future(coordinator._send_req(HEARTBEAT)), is_heartbeat=True)
        assert fenced == [None]
