"""The group's state machine under members that follow the protocol, in any order of steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aioparallel.group.client import Committed, Generation
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.assignor import Subscription
from aioparallel.testing.memory.groups import Group, GroupState
from aioparallel.testing.memory.refused import FENCING, Refused
from tests.support.examples import examples

PARTITIONS = frozenset(TopicPartition("t", number) for number in range(5))


@dataclass
class Player:
    """A client that does what the protocol asks, one step at a time."""

    member_id: str | None = None
    generation: Generation | None = None
    joining: bool = False
    joined: Generation | None = None
    held: set[TopicPartition] = field(default_factory=set)
    past: list[Generation] = field(default_factory=list)


class GroupMachine(RuleBasedStateMachine):
    """Players step in any order while time passes and sessions expire."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group("g")
        self.now = 0.0
        self.players: list[Player] = []
        self.committed: dict[TopicPartition, Committed] = {}
        self.highest = 0
        self.cooperative = False

    @initialize(cooperative=st.booleans(), players=st.integers(1, 4))
    def begin(self, cooperative: bool, players: int) -> None:
        self.cooperative = cooperative
        self.players = [Player() for _ in range(players)]

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """One player takes the next step of the protocol."""
        player = data.draw(st.sampled_from(self.players))
        try:
            if player.joined is not None:
                self.sync(player, player.joined)
            elif player.joining:
                self.see_joined(player)
            elif player.generation is None:
                self.join(player)
            else:
                self.group.heartbeat(player.generation, self.now)
        except Refused as refused:
            self.refused(player, refused.code)

    def join(self, player: Player) -> None:
        if not self.cooperative:
            player.held.clear()  # revoked before it joins
        owned = frozenset(player.held)
        player.member_id = self.group.join(
            player.member_id,
            Subscription(PARTITIONS, owned),
            session_timeout=10.0,
            rebalance_timeout=20.0,
            now=self.now,
        )
        player.joining = True

    def see_joined(self, player: Player) -> None:
        assert player.member_id is not None
        player.joined = self.group.joined(player.member_id)

    def sync(self, player: Player, joined: Generation) -> None:
        self.group.sync(joined, self.now)
        share = self.group.synced(joined)
        if share is not None:
            gone = player.held - share
            player.held = set(share)  # what is gone is revoked at once
            player.generation, player.joined, player.joining = joined, None, False
            player.past.append(joined)
            if gone:
                player.generation = None  # joins again, to hand it on

    def refused(self, player: Player, code: ErrorCode) -> None:
        player.generation, player.joined, player.joining = None, None, False
        if code in FENCING:
            player.held.clear()
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            player.member_id = None

    @rule(data=st.data(), offset=st.integers(0, 1000))
    def commit(self, data: st.DataObject, offset: int) -> None:
        """Somebody commits something under any generation it ever had."""
        generations = [generation for player in self.players for generation in player.past]
        generation = data.draw(st.sampled_from([*generations, Generation(-1, "")]))
        asked = {data.draw(st.sampled_from(sorted(PARTITIONS))): Committed(offset, "x" * (offset % 3))}
        current = generation.id == self.group.generation and generation.member_id in self.group.members
        by_tool = generation.id < 0 and not self.group.members
        try:
            results = self.group.commit(asked, generation, self.now)
        except Refused as refused:
            fenced = refused.code in FENCING
            assert fenced or (current and self.group.state is GroupState.COMPLETING_REBALANCE)
            assert fenced is not (current or by_tool)
            return
        assert current or by_tool
        assert results == dict.fromkeys(asked)
        self.committed.update(asked)

    @precondition(lambda self: any(player.member_id for player in self.players))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A player leaves, or is evicted, without knowing yet."""
        known = [player.member_id for player in self.players if player.member_id in self.group.members]
        if known:
            self.group.leave(data.draw(st.sampled_from(known)) or "", self.now)

    @rule(seconds=st.sampled_from([0.5, 3.0, 9.0, 21.0]))
    def wait(self, seconds: float) -> None:
        """Time passes; the coordinator looks at its clock now and then."""
        self.now += seconds
        self.group.advance(self.now)

    @invariant()
    def offsets_change_by_accepted_commits_only(self) -> None:
        """What is stored is what was acknowledged."""
        assert self.group.offsets == self.committed

    @invariant()
    def generations_rise(self) -> None:
        """The generation never goes back."""
        assert self.group.generation >= self.highest
        self.highest = self.group.generation

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        """In one generation no two members are assigned the same partition, and no two members that the group
        knows believe to hold it."""
        members = self.group.members
        assigned = [p for member in members.values() for p in member.assignment]
        assert len(assigned) == len(set(assigned))
        believed = [p for player in self.players if player.member_id in members for p in player.held]
        assert len(believed) == len(set(believed))

    @invariant()
    def the_state_fits_the_members(self) -> None:
        """Only an empty group has no members, and a group that nobody holds up has gone on."""
        assert (self.group.state is GroupState.EMPTY) == (not self.group.members)
        if self.group.state is GroupState.PREPARING_REBALANCE:
            assert not all(member.has_joined for member in self.group.members.values())


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=examples(150), stateful_step_count=60)
