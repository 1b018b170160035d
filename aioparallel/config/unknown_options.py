"""Refuses options that do not exist, and suggests the one that was meant."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from aioparallel.records.errors import ConfigurationError

__all__ = ["OF_AIOKAFKA", "did_you_mean", "is_secret", "meant", "no_such_option", "refuses_others", "refuses_unknown"]

Taker = TypeVar("Taker", bound=Callable[..., Any])

_SECRET: Final = "pass?w|passphrase|secret|token|jaas|private.?key"


OF_AIOKAFKA: Final = frozenset(
    {
        "check_crcs",
        "client_id",
        "client_rack",
        "connections_max_idle_ms",
        "fetch_max_bytes",
        "fetch_max_wait_ms",
        "fetch_min_bytes",
        "group_instance_id",
        "isolation_level",
        "max_partition_fetch_bytes",
        "metadata_max_age_ms",
        "partition_assignment_strategy",
        "request_timeout_ms",
        "retry_backoff_ms",
        "sasl_kerberos_domain_name",
        "sasl_kerberos_service_name",
        "sasl_mechanism",
        "sasl_oauth_token_provider",
        "sasl_plain_password",
        "sasl_plain_username",
        "security_protocol",
        "ssl_context",
    }
)
"""Options of aiokafka's consumer that are not among ours, and that ``client_options`` takes."""


def meant(name: str, known: Collection[str], *, likeness: float = 0.6) -> str | None:
    """Return the known option that ``name`` is most like, or None if it is like none of them. ``likeness``: 0 to 1."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=likeness)
    return near[0] if near else None


def is_secret(name: str) -> bool:
    """Whether an option of this name may hold a secret, which messages must not show."""
    return re.search(_SECRET, name.lower()) is not None


def did_you_mean(near: str, refused: str | None = None) -> str:
    """Return the question about a similar name. ``refused``: why that one must not be set either."""
    return f"did you mean {near!r}?" + (f" Do not set that one either: {refused}" if refused else "")


def no_such_option(
    name: str, value: object, known: Collection[str], *, of: str = "", secret: bool = False
) -> ConfigurationError:
    """Make the error for an option that is not among the known ones.

    ``of``: what has the options, for the message. ``secret``: do not show the value.
    """
    from aioparallel.config.security.secret import Hidden  # noqa: PLC0415 - its package has options of its own

    near = meant(name, known)
    if "client_options" in known and name in OF_AIOKAFKA:
        hint = f'aiokafka has it: client_options={{"{name}": ...}}'
    else:
        hint = did_you_mean(near) if near else f"the options are {', '.join(sorted(known))}"
    shown = Hidden(value) if secret or is_secret(name) else value
    return ConfigurationError(f"{of} {name}".lstrip(), shown, f"there is no such option; {hint}")


def refuses_unknown(
    known: Collection[str],
    *,
    passes: Collection[str] = (),
    refused: Mapping[str, str] | None = None,
    of: str = "",
    secret: bool = False,
) -> Callable[[Taker], Taker]:
    """A decorator for a function: another keyword than the known ones raises ConfigurationError, and not TypeError.

    ``passes``: keywords that are not suggested, but that the function refuses itself, with a reason. ``refused``: other
    keywords with a reason. Others: see :func:`no_such_option`.
    """
    reasons = refused or {}
    allowed = frozenset([*known, *passes])

    def decorate(function: Taker) -> Taker:
        @functools.wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            if not options.keys() <= allowed:
                name = next(one for one in options if one not in allowed)
                if name in reasons:
                    raise ConfigurationError(name, options[name], reasons[name])
                raise no_such_option(name, options[name], known, of=of, secret=secret)
            return function(*args, **options)

        return checked  # type: ignore[return-value]

    return decorate


def refuses_others(function: Taker) -> Taker:
    """A decorator for a function, method or class without ``**options``: a keyword that is no parameter raises
    ConfigurationError."""
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    if isinstance(function, type):
        made: Any = function
        made.__init__ = refuses_unknown(parameters, of=function.__name__)(made.__init__)
        return function
    return refuses_unknown(parameters)(function)
