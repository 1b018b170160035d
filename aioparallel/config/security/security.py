"""Security: the options to connect to a secured cluster, for the consumer, its producer, the command line and
others."""

from __future__ import annotations

import functools
import inspect
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import Final, Literal, TypeVar, cast, get_args

from aioparallel.config.option_docs import documented
from aioparallel.config.security.secret import (
    Hidden,
    Password,
    Token,
    TokenSource,
    is_sendable,
    read_secret,
    suppress_login_logs,
)
from aioparallel.config.security.tls import Certificates, RenewingContext
from aioparallel.records.errors import ConfigurationError

__all__ = ["Mechanism", "Protocol", "Security"]

T = TypeVar("T")

Protocol = Literal["SSL", "SASL_SSL", "SASL_PLAINTEXT"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

_OF_TLS: Final = ("ca_file", "certificate_file", "key_file", "key_password", "key_password_file")
_OF_PASSWORDS: Final = ("username", "password", "password_file")
_OF_TOKENS: Final = ("token", "token_file")
_EXTENSION: Final = re.compile("[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
_SECRET: Final = frozenset({"key_password", "password", "token"})


@documented
@dataclass(frozen=True, slots=True, repr=False)
class Security:
    """The options to connect to a secured cluster. Checked at construction; never shows a secret.

    ::

        from aioparallel import Security

        security = Security("SASL_SSL", mechanism="SCRAM-SHA-512", username="me", password=lambda: "from a vault")

    Raises ConfigurationError.
    """

    protocol: Protocol
    """``"SSL"``: TLS; ``"SASL_SSL"``: TLS and a login; ``"SASL_PLAINTEXT"``: a login without encryption."""
    _: KW_ONLY
    ca_file: str | Path | None = None
    """The certificates to trust, in PEM format, for brokers whose certificates are signed by a private authority. None:
    the system's certificates."""
    certificate_file: str | Path | None = None
    """For mutual TLS: this client's certificate, followed by intermediate certificates, in PEM format. Files that have
    changed are read again for new connections; this applies to ``ca_file`` as well."""
    key_file: str | Path | None = None
    """The private key. None: it is in ``certificate_file``."""
    key_password: str | None = None
    """The password of an encrypted key."""
    key_password_file: str | Path | None = None
    """A file with the password of an encrypted key."""
    check_hostname: bool = True
    """False accepts a trusted certificate of any host, so any owner of one can read everything. It is better to issue a
    certificate with the right names."""
    mechanism: Mechanism | None = None
    """The login mechanism; required with ``"SASL_SSL"`` and ``"SASL_PLAINTEXT"``."""
    username: str | None = None
    """For PLAIN and SCRAM."""
    password: str | Callable[[], str] | None = None
    """The password, or a function that returns it. The function is called at construction and at each login, on the
    event loop, so it must be fast. A changed password is used for the next connection."""
    password_file: str | Path | None = None
    """A file with the password, read at each login."""
    token: Callable[[], Awaitable[str | Token]] | None = None
    """For OAUTHBEARER: an async function that returns a valid token. It is called for each connection, and may take ten
    seconds. If it returns a :class:`~aioparallel.Token`, which has an expiry time, that token is used for all
    connections until a fifth of its lifetime is left."""
    token_file: str | Path | None = None
    """A file with the token, read for each connection. Kubernetes keeps such files up to date."""
    extensions: Mapping[str, str] = field(default_factory=dict)
    """SASL extensions that are sent with a token (KIP-342), as some services require."""
    _options: Mapping[str, object] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        _check_kinds(self)
        logs_in = self.protocol != "SSL"
        if logs_in:
            _check_login(self)
        else:
            for name in ("mechanism", *_OF_PASSWORDS, *_OF_TOKENS, "extensions"):
                _refuse_without(self, name, 'protocol="SASL_SSL" or "SASL_PLAINTEXT"; there is no login with "SSL"')
        options: dict[str, object] = {"security_protocol": self.protocol}
        if self.protocol == "SASL_PLAINTEXT":
            for name in _OF_TLS:
                _refuse_without(self, name, 'protocol="SSL" or "SASL_SSL"; nothing is encrypted with "SASL_PLAINTEXT"')
        else:
            options["ssl_context"] = _context(self)
        if logs_in:
            options |= _login(self)
        object.__setattr__(self, "_options", options)
        for name in ("key_password", "password"):
            if isinstance(secret := getattr(self, name), str):
                object.__setattr__(self, name, Password(secret))  # hidden from ``dataclasses.asdict`` as well

    def client_options(self) -> dict[str, object]:
        """These options as options of aiokafka's clients: for the ``client_options`` of this package, or for your own
        aiokafka clients. From now on aiokafka's DEBUG log omits the requests that log in."""
        suppress_login_logs()
        return dict(self._options)

    def __repr__(self) -> str:
        given = [
            f"{name}={Hidden(value) if name in _SECRET else repr(str(value) if isinstance(value, Path) else value)}"
            for name, value, default in _shown(self)
            if value != default
        ]
        return f"Security({', '.join([repr(self.protocol), *given])})"


def _shown(security: Security) -> list[tuple[str, object, object]]:
    return [
        (one.name, getattr(security, one.name), {} if one.name == "extensions" else one.default)
        for one in fields(Security)
        if one.name not in ("protocol", "_options")
    ]


def _refuse(name: str, value: object, allowed: str) -> ConfigurationError:
    shown = Hidden(value) if name in _SECRET and value is not None else value
    return ConfigurationError(f"Security {name}", str(shown) if isinstance(shown, Path) else shown, allowed)


def _refuse_without(security: Security, name: str, needed: str) -> None:
    value = getattr(security, name)
    if value is not None and value != {}:
        raise _refuse(name, value, f"needs {needed}")


def _check_kinds(security: Security) -> None:
    if security.protocol not in get_args(Protocol):
        hint = "; leave security out for it" if cast("object", security.protocol) == "PLAINTEXT" else ""
        raise _refuse("protocol", security.protocol, f"must be one of {_named(Protocol)}{hint}")
    for name in ("ca_file", "certificate_file", "key_file", "key_password_file", "password_file", "token_file"):
        value = getattr(security, name)
        if value is not None and not (isinstance(value, str | Path) and str(value) and "\0" not in str(value)):
            raise _refuse(name, value, "must be the path of a file")
    for name in ("username", "key_password"):
        value = getattr(security, name)
        if value is not None and not is_sendable(value):
            raise _refuse(name, value, "must be a non-empty string in UTF-8")
    if not isinstance(security.check_hostname, bool):
        raise _refuse("check_hostname", security.check_hostname, "must be True or False")
    extensions: object = security.extensions
    if not isinstance(extensions, Mapping) or not all(
        isinstance(one, str) for pair in extensions.items() for one in pair
    ):
        raise _refuse("extensions", extensions, "must be a mapping of strings")
    for name, value in security.extensions.items():
        # Other characters would be taken for another part of the login (RFC 7628, 3.1).
        if name == "auth" or not (_EXTENSION.fullmatch(name) and _EXTENSION_VALUE.fullmatch(value)):
            raise _refuse("extensions", name, "names are letters, but not auth, and values are visible ASCII")


def _named(choices: object) -> str:
    return ", ".join(repr(one) for one in get_args(choices))


def _check_login(security: Security) -> None:
    mechanism = security.mechanism
    if mechanism not in get_args(Mechanism):
        known = f"must be one of {_named(Mechanism)} with protocol={security.protocol!r}"
        raise _refuse("mechanism", mechanism, f"{known}; for others, such as Kerberos, use client_options")
    if mechanism == "OAUTHBEARER":
        for name in _OF_PASSWORDS:
            _refuse_without(security, name, 'mechanism="PLAIN" or a SCRAM one; OAUTHBEARER takes token or token_file')
        _check_one_of(security, *_OF_TOKENS)
        if security.token is not None and not inspect.iscoroutinefunction(_called(security.token)):
            raise _refuse("token", security.token, "must be an async function without arguments that returns a token")
        return
    for name in (*_OF_TOKENS, "extensions"):
        _refuse_without(security, name, f'mechanism="OAUTHBEARER"; {mechanism} takes username and password')
    if security.username is None:
        raise _refuse("username", None, f"is needed with mechanism={mechanism!r}")
    _check_one_of(security, "password", "password_file")
    password: object = security.password
    if not (password is None or callable(password) or is_sendable(password)):
        raise _refuse("password", password, "must be a non-empty string in UTF-8, or a function that returns it")
    if callable(password) and inspect.iscoroutinefunction(_called(password)):
        raise _refuse("password", password, "must be a plain function; an async one cannot be awaited at a login")


def _called(function: object) -> object:
    while isinstance(function, functools.partial):
        function = function.func
    is_plain = inspect.isfunction(function) or inspect.ismethod(function)
    return function if is_plain else getattr(type(function), "__call__", None)  # noqa: B004


def _check_one_of(security: Security, one: str, other: str) -> None:
    given = [name for name in (one, other) if getattr(security, name) is not None]
    if not given:
        raise _refuse(one, None, f"give {one} or {other} with mechanism={security.mechanism!r}")
    if len(given) == 2:
        raise _refuse(one, getattr(security, one), f"cannot be combined with {other}: leave one of them out")


def _context(security: Security) -> ssl.SSLContext:
    if security.certificate_file is None:
        for name in ("key_file", "key_password", "key_password_file"):
            _refuse_without(security, name, "certificate_file as well")
    if security.key_password is not None and security.key_password_file is not None:
        raise _refuse(
            "key_password", security.key_password, "cannot be combined with key_password_file: leave one of them out"
        )
    certificates = Certificates(
        security.ca_file,
        security.certificate_file,
        security.key_file,
        security.key_password,
        security.key_password_file,
    )
    return _prefixed(lambda: RenewingContext.of(certificates, check_hostname=security.check_hostname))


def _prefixed(make: Callable[[], T]) -> T:
    try:
        return make()
    except ConfigurationError as error:
        raise ConfigurationError(f"Security {error.option}", error.value, error.allowed) from None


def _login(security: Security) -> dict[str, object]:
    login: dict[str, object] = {"sasl_mechanism": security.mechanism}
    if security.mechanism == "OAUTHBEARER":
        login["sasl_oauth_token_provider"] = TokenSource(_asking(security), dict(security.extensions))
        return login
    current = _current(security)
    text = security.password if isinstance(security.password, str) else None
    login["sasl_plain_username"] = security.username
    login["sasl_plain_password"] = Password(text) if text is not None else Password(current(), current)
    return login


def _asking(security: Security) -> Callable[[], Awaitable[str | Token]]:
    if security.token is not None:
        return security.token
    file = cast("str | Path", security.token_file)
    read_secret("Security token_file", file)  # checks that it exists
    return functools.partial(_read_token, file)


async def _read_token(file: str | Path) -> str:
    return read_secret("Security token_file", file)


def _current(security: Security) -> Callable[[], str]:
    if security.password_file is not None:
        return functools.partial(read_secret, "Security password_file", security.password_file)
    return functools.partial(_ask, cast("Callable[[], str]", security.password))


def _ask(function: Callable[[], str]) -> str:
    if not is_sendable(found := function()):
        given: object = found
        if inspect.iscoroutine(given):
            given.close()  # nothing awaits it
        allowed = "its function must return a non-empty string in UTF-8"
        raise ConfigurationError("Security password", Hidden(found), allowed)
    return found
