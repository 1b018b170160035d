"""``aioparallel share configure`` and ``describe`` of groups that do not exist, against an administrator in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from aioparallel.cli.cluster import Cluster
from aioparallel.cli.share import resetting, showing
from aioparallel.cli.share.commands import Limits
from aioparallel.cli.share.reading import Connected
from aioparallel.clients.aiokafka.share_admin import ShareGroup
from aioparallel.records.errors import ClientError, NotAuthorized
from tests.support.command_line import invoke


class Admin:
    """Knows the share group ``workers``, and the consumer group ``classic``."""

    def __init__(self) -> None:
        self.set: dict[str, dict[str, str | None]] = {}
        self.may_describe = True

    async def describe(self, group: str) -> ShareGroup | None:
        """Raises NotAuthorized, or ClientError."""
        if not self.may_describe:
            raise NotAuthorized("DESCRIBE on the group")
        if group == "classic":
            raise ClientError("group 'classic' is not a share group")
        return ShareGroup(group, "Empty", "simple", ()) if group == "workers" else None

    async def broker_config(self, name: str) -> str | None:
        """One has a value."""
        return "45000" if name == "group.share.min.session.timeout.ms" else None

    async def set_group_configs(self, group: str, configs: Mapping[str, str | None]) -> None:
        """Keep them, or raise ClientError as Kafka 4.3 does."""
        for name, value in configs.items():
            if name not in ("share.delivery.count.limit", "share.session.timeout.ms"):
                raise ClientError(f"share group {group!r}: Unknown group config name: {name} (Kafka error 40)")
            if name == "share.session.timeout.ms" and value == "10000":
                raise ClientError(f"{name} must be greater than or equal to group.share.min.session.timeout.ms")
        self.set.setdefault(group, {}).update(configs)

    async def group_configs(self, group: str, *, only_set: bool = False) -> dict[str, str]:
        """The default of one is 5."""
        found = {} if only_set else {"share.delivery.count.limit": "5", "share.session.timeout.ms": "45000"}
        return found | {name: value for name, value in self.set.get(group, {}).items() if value is not None}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    """In place of a connection."""
    found = Admin()

    @asynccontextmanager
    async def connected(where: Cluster) -> AsyncIterator[Connected]:
        yield Connected(cast("Any", found), cast("Any", None), "localhost:9092")

    for module in (resetting, showing):
        monkeypatch.setattr(module, "connected", connected)
    return found


async def test_configuring_a_group(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    """It says if there is no such group, and shows its configuration even so."""
    await resetting.configure("workers", ["share.delivery.count.limit=7"], Cluster())
    out, err = capsys.readouterr()
    assert "share.delivery.count.limit=7" in out
    assert "There is no share group" not in out + err
    await resetting.configure("wrokers", ["share.delivery.count.limit=7"], Cluster())
    out, err = capsys.readouterr()
    text = " ".join((out + err).split())
    assert "There is no share group wrokers yet" in text
    assert "`aioparallel share configure wrokers share.delivery.count.limit=`" in text
    await showing.describe("wrokers", Limits(), Cluster(), as_json=False)
    assert "deliveries of a record at most: 7" in capsys.readouterr().out
    with pytest.raises(ClientError, match="there is no share group 'others'"):
        await showing.describe("others", Limits(), Cluster(), as_json=False)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("share.delivery.count.limt=7", "did you mean 'share.delivery.count.limit'?"),
        ("errors.deadletterqueue.topic.name=dlq.t", "from Kafka 4.4 on"),
        ("share.session.timeout.ms=10000", "the brokers have group.share.min.session.timeout.ms=45000"),
        ("x=1", "Unknown group config name: x (Kafka error 40)"),
    ],
)
async def test_what_the_brokers_refuse_comes_with_a_hint(admin: Admin, config: str, said: str) -> None:
    """A similar name, the version, or the limit."""
    with pytest.raises(ClientError) as found:
        await resetting.configure("workers", [config], Cluster())
    assert said in str(found.value)


async def test_a_group_of_another_type_is_not_configured(admin: Admin) -> None:
    with pytest.raises(ClientError, match="is not a share group"):
        await resetting.configure("classic", ["share.delivery.count.limit=7"], Cluster())
    assert admin.set == {}


async def test_who_may_not_describe_may_configure(admin: Admin) -> None:
    """The rights are different ones."""
    admin.may_describe = False
    await resetting.configure("wrokers", ["share.delivery.count.limit=7"], Cluster())
    assert admin.set == {"wrokers": {"share.delivery.count.limit": "7"}}


def test_no_records_are_read() -> None:
    """So there is no batch that could be skipped."""
    for command in ("list", "describe", "configure", "reset", "forget"):
        assert "skip-unreadable" not in invoke("share", command, "--help").output
    assert "skip-unreadable" in invoke("groups", "show", "--help").output
