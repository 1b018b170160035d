"""Checks the values of aiokafka's options before anything connects.

aiokafka checks some of them when its objects are constructed, in a running loop, and others at the first connection or
request. Most are never checked: a background task then fails again and again, far from the cause.
"""

from __future__ import annotations

import importlib.util
import ssl
from collections.abc import Callable, Collection, Mapping
from typing import Final, NoReturn

from aiokafka.abc import AbstractTokenProvider

from aioparallel.config.security.secret import Hidden
from aioparallel.config.unknown_options import did_you_mean, meant
from aioparallel.records.errors import ConfigurationError

__all__ = ["MOST", "REBOOTSTRAP_AFTER", "GivenOptions", "check_connection", "rebootstrap_after"]

MOST: Final = 2**31 - 1
"""Largest value of most fields of the protocol; 24.8 days in milliseconds."""
_LONGEST_TEXT: Final = 32_767
"""Longest string of the protocol, in bytes."""

REBOOTSTRAP_AFTER: Final = "metadata_recovery_rebootstrap_trigger_ms"
"""An option that aiokafka does not have, named like Kafka's ``metadata.recovery.rebootstrap.trigger.ms``."""
_REBOOTSTRAP_AFTER_MS: Final = 300_000
_SHORTEST_REBOOTSTRAP_MS: Final = 1_000

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "GSSAPI", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_SECRET: Final = "sasl_plain_password"
_SHOWN: Final = frozenset({"sasl_mechanism", "sasl_plain_username"})
"""SASL options whose values messages may show. The value of a misspelled option may be a password."""


class GivenOptions:
    """Options as given by the user. ``place(name)`` says for messages where the option was given. Each check raises
    ConfigurationError."""

    def __init__(self, options: Mapping[str, object], place: Callable[[str], str]) -> None:
        self.options = options
        self._place = place

    def refuse(self, name: str, allowed: str, *, if_missing: str | None = None) -> NoReturn:
        """Raise ConfigurationError. ``if_missing``: the option whose place is reported if ``name`` was not given."""
        value = self.options.get(name)
        if value is not None and name.startswith("sasl_") and name not in _SHOWN:
            value = Hidden(value)
        place = self._place(if_missing if if_missing is not None and name not in self.options else name)
        raise ConfigurationError(f"{place}[{name!r}]", value, allowed)

    def names(self, known: Collection[str], ours: Mapping[str, str]) -> None:
        """Each name must be in ``known``. Names in ``ours`` cannot be set by the user; the value says what to use."""
        for name in self.options:
            if not isinstance(name, str):
                raise ConfigurationError(f"name in {self._place(name)}", name, "names of options are strings")
            if name in ours:
                self.refuse(name, ours[name])
            if name not in known:
                near = meant(name, {*known, *ours})
                if near is None:
                    self.refuse(
                        name, f"aiokafka has no such option; it has {', '.join(sorted(set(known) - set(ours)))}"
                    )
                self.refuse(name, f"aiokafka has no such option; {did_you_mean(near, ours.get(near))}")

    def number(
        self, name: str, default: float, *, least: int = 0, whole: bool = False, optional: bool = False
    ) -> float:
        """The value in milliseconds or bytes, as the name says. ``optional``: None is allowed and gives the default."""
        value = self.options.get(name, default)
        if value is None and optional:
            return default
        kinds = int if whole else int | float
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= MOST:
            unit = "milliseconds" if name.endswith("_ms") else "bytes"
            allowed = f"{'whole ' if whole else ''}{unit}, {least} to {MOST:,}"
            self.refuse(name, f"{allowed}, or None" if optional else allowed)
        return value

    def text(self, name: str, *, optional: bool = True, may_be_empty: bool = True) -> None:
        """The value must be a string that fits the protocol."""
        value = self.options.get(name, "")
        if value is None and optional:
            return
        if not isinstance(value, str) or len(value.encode("utf-8", "replace")) > _LONGEST_TEXT:
            self.refuse(name, f"a text, at most {_LONGEST_TEXT:,} bytes" + (", or None" if optional else ""))
        if not may_be_empty and name in self.options and not value:
            self.refuse(name, "a text that is not empty, or leave it out")

    def truth(self, name: str) -> None:
        if not isinstance(self.options.get(name, True), bool):
            self.refuse(name, "True or False")

    def one_of(self, name: str, allowed: Collection[object], advice: str) -> None:
        # tuple: the value may be unhashable.
        if name in self.options and self.options[name] not in tuple(allowed):
            self.refuse(name, advice)


def check_connection(given: GivenOptions) -> None:
    """Check everything that concerns connections: times, TLS, SASL."""
    given.text("client_id")
    given.number("metadata_max_age_ms", 1, least=1)
    given.number("request_timeout_ms", 1, least=1)
    given.number("retry_backoff_ms", 0)
    given.number("connections_max_idle_ms", 1, least=1, optional=True)
    rebootstrap_after(given)
    _check_tls(given)
    _check_sasl(given)
    _check_protocol_is_named(given)


def rebootstrap_after(given: GivenOptions) -> float:
    """Seconds without metadata before a client closes its connections and starts again from its addresses."""
    return given.number(REBOOTSTRAP_AFTER, _REBOOTSTRAP_AFTER_MS, least=_SHORTEST_REBOOTSTRAP_MS) / 1000


def _check_tls(given: GivenOptions) -> None:
    given.one_of("security_protocol", _PROTOCOLS, "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
    context = given.options.get("ssl_context")
    if context is not None and not isinstance(context, ssl.SSLContext):
        given.refuse("ssl_context", "an ssl.SSLContext, as ssl.create_default_context() makes one")
    protocol = given.options.get("security_protocol")
    if protocol in {"SSL", "SASL_SSL"} and context is None:
        given.refuse("security_protocol", "also needs ssl_context, e.g. ssl.create_default_context()")


def _check_sasl(given: GivenOptions) -> None:
    options = given.options
    logs_in = options.get("security_protocol") in {"SASL_PLAINTEXT", "SASL_SSL"}
    allowed = _MECHANISMS if logs_in else (*_MECHANISMS, None)
    given.one_of("sasl_mechanism", allowed, f"{', '.join(_MECHANISMS[:-1])} or {_MECHANISMS[-1]}")
    for name in ("sasl_plain_username", _SECRET, "sasl_kerberos_domain_name"):
        given.text(name)
    given.text("sasl_kerberos_service_name", optional=False)
    provider = options.get("sasl_oauth_token_provider")
    mechanism = options.get("sasl_mechanism", "PLAIN")
    # aiokafka uses these two even without SASL.
    if (mechanism == "OAUTHBEARER" or provider is not None) and not isinstance(provider, AbstractTokenProvider):
        given.refuse(
            "sasl_oauth_token_provider",
            "an object of a subclass of aiokafka.abc.AbstractTokenProvider",
            if_missing="sasl_mechanism",
        )
    if mechanism == "GSSAPI" and importlib.util.find_spec("gssapi") is None:
        given.refuse("sasl_mechanism", "needs the package gssapi, which is not installed")
    if logs_in and isinstance(mechanism, str) and mechanism.startswith(("PLAIN", "SCRAM-")):
        for name in ("sasl_plain_username", _SECRET):
            if options.get(name) is None:
                advice = f"{mechanism} needs sasl_plain_username and {_SECRET}"
                given.refuse(name, advice, if_missing="security_protocol")


def _check_protocol_is_named(given: GivenOptions) -> None:
    """Settings of TLS or SASL have no effect alone: connections would be plain, without a login."""
    if "security_protocol" in given.options:
        return
    if given.options.get("ssl_context") is not None:
        given.refuse("ssl_context", 'also needs security_protocol="SSL" or "SASL_SSL"; otherwise nothing is encrypted')
    for name, value in given.options.items():
        if name.startswith("sasl_") and value is not None:
            given.refuse(
                name, 'also needs security_protocol="SASL_SSL" or "SASL_PLAINTEXT"; otherwise there is no login'
            )
