"""The share session of a member with one leader: one coroutine, which sends one request after the other.

What is acknowledged is sent at once if no request is under way. A fetch that waits for records holds it up, so

* acknowledgements go ahead of a fetch in a request of their own, unless records come without waiting: then they travel
  with the fetch;
* while acquired records are not acknowledged, a fetch waits for a fraction of the time in which nothing has happened.

What becomes of acknowledgements when something goes wrong:

===================================  ===============================================================================
the request was not sent             they stay due, and end as NOT_SENT when their locks do
sent, and no answer                  UNKNOWN. The connection is closed, so the broker releases all locks
session unknown (122)                due again in a new session. Most likely the broker has released all locks
wrong epoch (123), session limit     due again in a new session. Locks stay
not the leader any more              due again, sent to the new leader, which knows of no locks
partition or topic unknown           NOT_HELD: the locks are as well. A new leader answers this, too
UNKNOWN_SERVER_ERROR                 UNKNOWN. A topic of the session was deleted, before Kafka 4.4
===================================  ===============================================================================
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Protocol

import aiokafka.errors as kafka

from aioparallel.clients.aiokafka.share_answers import Sent, ShareAnswers, not_authorized
from aioparallel.clients.aiokafka.share_partitions import SharePartition
from aioparallel.clients.aiokafka.share_requests import Place, SessionState
from aioparallel.clients.aiokafka.share_state import ShareState
from aioparallel.clients.messages.api import Api
from aioparallel.clients.messages.share_records import (
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    ShareAcknowledgeResponse,
    ShareFetchResponse,
)
from aioparallel.records.error_codes import RETRIABLE, ErrorCode
from aioparallel.records.errors import ClientError

__all__ = ["LeaderSession", "Send"]

logger = logging.getLogger(__name__)

_SHORTEST_WAIT: Final = 0.002
"""Seconds that a fetch waits for records if one has just been acquired or acknowledged."""
_WAIT_SHARE: Final = 1 / 8
"""Part of the time since then that a fetch waits, while records are not acknowledged. So an acknowledgement that meets
a waiting fetch is delayed by an eighth of the handler's time or less."""
_LONGEST_BACKOFF: Final = 1.0


class Send(Protocol):
    """Sends a request to a broker. Raises what ``typed_requests.ask`` raises."""

    async def __call__(self, node: int, api: Api[Any, Any], request: object) -> Any: ...


class LeaderSession:
    """See the module. Times in seconds.

    ``refresh_leaders()``, ``refresh_topics()``: leaders, or the ids of topics, have changed.
    ``reroute()``: a broker has named another leader.
    """

    def __init__(
        self,
        node: int,
        state: ShareState,
        send: Send,
        *,
        max_wait: float,
        max_bytes: int,
        retry_backoff: float,
        refresh_leaders: Callable[[], object],
        refresh_topics: Callable[[], object],
        reroute: Callable[[], object],
    ) -> None:
        self.node = node
        self._state = state
        self._send = send
        self._max_wait = max_wait
        self._max_bytes = max_bytes
        self._retry_backoff = self._backoff = retry_backoff
        self._refresh_leaders = refresh_leaders
        self._refresh_topics = refresh_topics
        self._loop = asyncio.get_running_loop()
        self._session = SessionState(state.group_id, state.member_id)
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self.is_fetching = False  # a request that may bring records is on its way
        self._is_busy = False  # the last fetch brought records
        self._has_left_over = False  # due acknowledgements that could not travel with a fetch
        self._must_close = False  # before it is opened anew
        self._active_at = self._loop.time()  # acquired or acknowledged last
        self._answers = ShareAnswers(
            node, state, refresh_leaders=refresh_leaders, refresh_topics=refresh_topics, reroute=reroute
        )

    def look(self) -> None:
        """Something may have to be sent now."""
        self._changed.set()

    def close(self) -> None:
        """Acknowledge what is due, close the session and let :meth:`run` return."""
        self._closing.set()
        self._changed.set()

    def released(self) -> None:
        """The broker has most likely released all locks."""
        for one in self._state.partitions.of(self.node):
            one.acks.released()

    # -- the coroutine

    async def run(self) -> None:
        """Until :meth:`close`. After a failure of the member nothing is fetched any more; handlers that run then may
        still end well, and what can be acknowledged is."""
        while not (self._closing.is_set() and not self._due()):
            if not self._needs_request():
                self._changed.clear()
                await self._changed.wait()
                continue
            is_well = await self._step()
            self._state.report()
            if is_well:
                self._backoff = self._retry_backoff
                await asyncio.sleep(0)  # so that a fetch that has just returned is called again
            elif self._state.failure is not None:
                self._give_up()
            else:
                await self._pause()
        if self._session.is_open:
            await self._close()

    def _due(self) -> list[SharePartition]:
        return [one for one in self._state.partitions.of(self.node) if one.acks.is_due]

    def _assigned(self) -> list[SharePartition]:
        partitions = self._state.partitions.of(self.node)
        return [one for one in partitions if one.is_assigned and not one.is_excluded]

    def _needs_request(self) -> bool:
        return bool(self._due() or (self._wanted() and self._assigned()))

    def _wanted(self) -> int:
        return 0 if self._closing.is_set() else self._state.wanted_of_each()

    async def _step(self) -> bool:
        """Send one request and apply its answer. Returns whether the next one may follow at once."""
        due, wanted = self._due(), self._wanted()
        if self._must_close:
            self._must_close = False
            await self._close()
        if due and not self._session.is_open:
            return await self._fetch(self._assigned() or due, 0)
        if due and (self._has_left_over or not self._is_busy or not wanted):
            return await self._acknowledge(due)
        return await self._fetch(self._assigned(), wanted)

    def _give_up(self) -> None:
        """The member has failed, and this broker may refuse it for good: who waits for answers need not wait longer."""
        for one in self._due():
            one.acks.expire(math.inf)
        self._state.report()

    async def _pause(self) -> None:
        """Wait before the next request, longer each time. Ends early when the session is closed."""
        for one in self._due():
            one.acks.expire(self._loop.time())
        self._state.report()
        try:
            async with asyncio.timeout(self._backoff):
                await self._closing.wait()
                await asyncio.sleep(self._retry_backoff)
        except TimeoutError:
            self._backoff = min(_LONGEST_BACKOFF, self._backoff * 2)

    # -- requests

    async def _fetch(self, partitions: Collection[SharePartition], most: int) -> bool:
        now = self._loop.time()
        places = {one.place: one for one in partitions}
        groups: dict[Place, Sent] = {}
        if self._session.is_open:
            for place, one in places.items():
                if (group := one.acks.take(now, plain=True)) is not None:
                    groups[place] = Sent(one, group)
            self._has_left_over = bool(self._due())
        request = self._session.fetch(
            places,
            {place: sent.group for place, sent in groups.items()},
            most=most,
            most_bytes=self._max_bytes,
            wait=self._wait(now) if most else 0.0,
        )
        self.is_fetching = most > 0
        try:
            answer: ShareFetchResponse | None = await self._ask(SHARE_FETCH, request, groups)
        finally:
            self.is_fetching = False
        if answer is None:
            for one in partitions:
                one.is_failing = True
            return False
        self._session.advanced(places)
        found = self._answers.fetched(answer, places, groups, sent_at=now, now=self._loop.time())
        self._is_busy = found.has_records
        if found.has_records or groups:
            self._active_at = self._loop.time()
        return found.is_well

    async def _acknowledge(self, partitions: Collection[SharePartition]) -> bool:
        now = self._loop.time()
        self._has_left_over = False
        groups: dict[Place, Sent] = {}
        for one in partitions:
            if (group := one.acks.take(now)) is not None:
                groups[one.place] = Sent(one, group)
        if not groups:
            return True
        request = self._session.acknowledge({place: sent.group for place, sent in groups.items()})
        answer: ShareAcknowledgeResponse | None = await self._ask(SHARE_ACKNOWLEDGE, request, groups)
        if answer is None:
            return False
        self._session.advanced()
        self._active_at = self._loop.time()
        return self._answers.acknowledged(answer, groups, sent_at=now, now=self._loop.time())

    async def _close(self) -> None:
        """The broker then releases what is still locked. If this fails, it does so when the connection is closed."""
        request = self._session.close()
        self._session.lost()
        try:
            await self._send(self.node, SHARE_ACKNOWLEDGE, request)
        except (kafka.KafkaError, OSError, ClientError) as error:
            logger.debug("A share session was not closed: %r", error, extra={"action": "share_session_not_closed"})

    async def _ask(self, api: Api[Any, Any], request: object, groups: Mapping[Place, Sent]) -> Any:
        """The answer if it is good for all of the session, else None. While this waits, partitions may get other
        leaders, be assigned no more or be replaced; the groups belong to this request whatever happens."""
        try:
            answer = await self._send(self.node, api, request)
        except kafka.NodeNotReadyError as error:
            self._return(groups)
            self._broken(error)
            return None
        except BaseException as error:
            for sent in groups.values():
                sent.partition.acks.unknown(sent.group)
            self._session.lost()
            if isinstance(error, kafka.IncompatibleBrokerVersion) or not isinstance(error, kafka.KafkaError | OSError):
                raise
            self._broken(error)
            return None
        if answer.error_code != ErrorCode.NONE:
            self._failed(answer.error_code, answer.error_message, groups)
            return None
        return answer

    def _return(self, groups: Mapping[Place, Sent]) -> None:
        for sent in groups.values():
            sent.partition.acks.again(sent.group, self._loop.time())

    def _wait(self, now: float) -> float:
        """How long a fetch may wait for records."""
        if not any(one.acks.holds for one in self._state.partitions.of(self.node)):
            return self._max_wait
        return min(self._max_wait, max(_SHORTEST_WAIT, (now - self._active_at) * _WAIT_SHARE))

    # -- failures of the whole request

    def _broken(self, error: Exception) -> None:
        """The connection is closed, so the broker ends the session and releases its records."""
        self._session.lost()
        self.released()
        self._refresh_leaders()
        logger.info(
            "The share session with broker %d is interrupted: %s",
            self.node,
            error,
            extra={"action": "share_session_interrupted", "node": self.node, "group_id": self._state.group_id},
        )

    def _failed(self, code: int, message: str | None, groups: Mapping[Place, Sent]) -> None:
        self._session.lost()
        if code == ErrorCode.UNKNOWN_SERVER_ERROR:
            for sent in groups.values():
                sent.partition.acks.unknown(sent.group)
            self._refresh_topics()
            # Records may be locked that were not sent. Closing releases them, and all others as well.
            self._must_close = not any(one.acks.holds for one in self._state.partitions.of(self.node))
        else:
            self._return(groups)
        if code == ErrorCode.SHARE_SESSION_NOT_FOUND:
            self.released()
        elif code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
            self._state.fail(not_authorized(self._state.group_id))
        elif code not in RETRIABLE | {ErrorCode.UNKNOWN_SERVER_ERROR}:
            doing = f"fetching as a member of share group {self._state.group_id!r} from broker {self.node}"
            self._state.fail(ClientError(f"{doing}: {message} (error code {code})"))
        is_first = self._backoff == self._retry_backoff
        logger.log(
            logging.WARNING if is_first and code != ErrorCode.SHARE_SESSION_NOT_FOUND else logging.INFO,
            "Broker %d has refused a request of a share session (%s, error code %d); another session follows",
            self.node,
            message,
            code,
            extra={"action": "share_session_refused", "node": self.node, "code": code},
        )
