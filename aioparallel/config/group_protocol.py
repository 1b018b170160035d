"""Checks the options of the group protocols. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from aioparallel.records.errors import ConfigurationError

__all__ = [
    "BROKERS_SESSION",
    "HEARTBEAT_INTERVAL",
    "OF_BROKERS",
    "SESSION_TIMEOUT",
    "check_group_protocol",
    "check_pattern",
    "given_for_classic",
    "refuse_for_own_client",
]

OF_BROKERS: Final[Mapping[str, str]] = {
    "session_timeout": "group.consumer.session.timeout.ms",
    "heartbeat_interval": "group.consumer.heartbeat.interval.ms",
}
"""Options that do not apply to the protocol "consumer", and what the brokers have instead."""
SESSION_TIMEOUT: Final = 30.0
HEARTBEAT_INTERVAL: Final = 3.0
"""Seconds, in the protocol "classic"."""
BROKERS_SESSION: Final = 45.0
"""Seconds; the default of ``group.consumer.session.timeout.ms``."""
_ASSIGNOR: Final = "partition_assignment_strategy"
_INSTANCE: Final = "group_instance_id"


def given_for_classic(times: Mapping[str, float], client_options: Mapping[str, object]) -> list[str]:
    """The names of those that have no effect in the protocol "consumer", or another one."""
    return [*times, *(name for name in (_ASSIGNOR, _INSTANCE) if client_options.get(name) is not None)]


def check_group_protocol(
    protocol: str, remote_assignor: object, times: Mapping[str, float], client_options: Mapping[str, object]
) -> None:
    """Check what belongs to one protocol. ``times``: the options of ``OF_BROKERS`` that are given. Raises
    ConfigurationError."""
    if remote_assignor is not None:
        name = "group_remote_assignor"
        if not isinstance(remote_assignor, str) or not remote_assignor.strip():
            raise ConfigurationError(name, remote_assignor, 'must be an assignor of the brokers, such as "uniform"')
        if protocol == "classic":
            raise ConfigurationError(
                name,
                remote_assignor,
                f'needs group_protocol="consumer" or "auto"; members of the protocol "classic" assign by '
                f"client_options[{_ASSIGNOR!r}]",
            )
    if protocol != "consumer":
        return
    for name, time in times.items():
        config = OF_BROKERS[name]
        raise ConfigurationError(
            name,
            time,
            'cannot be combined with group_protocol="consumer", in which the brokers decide it: leave it out, and set '
            f"{config} there, or {config.removeprefix('group.')} of this group",
        )
    if _ASSIGNOR in client_options:
        raise ConfigurationError(
            f"client_options[{_ASSIGNOR!r}]",
            client_options[_ASSIGNOR],
            'cannot be combined with group_protocol="consumer", in which the brokers assign: leave it out; '
            "group_remote_assignor chooses one of theirs",
        )


def check_pattern(protocol: str, remote_assignor: str | None, pattern: object, left_out: Collection[str]) -> None:
    """Check what a pattern of topics does not allow. ``left_out``: the consumer's own topics that it matches. Raises
    ConfigurationError."""
    if protocol == "consumer" and left_out:
        raise ConfigurationError(
            "topics",
            pattern,
            f'matches {", ".join(left_out)}, which this consumer writes to. With group_protocol="consumer" the brokers '
            "match the pattern, and cannot leave that out: write a pattern that does not match it",
        )
    if protocol == "auto" and remote_assignor is not None:
        raise ConfigurationError(
            "group_remote_assignor",
            remote_assignor,
            'needs group_protocol="consumer" where topics is a pattern: "auto" reads patterns in the classic protocol',
        )


def refuse_for_own_client(options: Mapping[str, object]) -> None:
    """Raise ConfigurationError for an option that a client of the user would not learn of."""
    for name, default in {"group_protocol": "auto", "group_remote_assignor": None}.items():
        if options.get(name, default) != default:
            raise ConfigurationError(
                name, options[name], "cannot be combined with a client of your own: set it at that client"
            )
