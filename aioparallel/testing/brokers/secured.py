"""Listeners with TLS, logins and permissions, in addition to the plain listener of a LocalKafka.

The plain listener is for the test itself, on loopback, to fill topics and query permissions: everybody may do
everything there. So may the clients of the listener with one-way TLS, which do not identify themselves.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

from aioparallel.config.security import Security, Token
from aioparallel.config.security.security import Mechanism
from aioparallel.records.errors import BrokerStartError, ConfigurationError
from aioparallel.testing.brokers.certificates import TestAuthority

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

__all__ = ["ListenerName", "Secured"]

ListenerName = Literal["SSL", "MUTUAL_SSL", "SASL_SSL", "SASL_PLAINTEXT"]
"""The listeners: Kafka's names of their protocols, and one for mutual TLS."""

_HOST: Final = "127.0.0.1"
_WORD: Final = re.compile(r"[A-Za-z0-9._~!@#%^*+=-]+")
_MODULE: Final = "org.apache.kafka.common.security"
_ITERATIONS: Final = 4096
_TIMEOUT: Final = 30.0
"""Seconds for the brokers to apply a password or permission."""


class Secured:
    """The secured listeners and their users: ``LocalKafka(secured=Secured({"alice": "wonderland"}))``.

    ``users``: passwords by name, for PLAIN and SCRAM. With OAUTHBEARER, a token of :meth:`token` logs in as its user
    (Kafka's unsecured tokens, for tests only). With ``MUTUAL_SSL``, a certificate of :meth:`security` does.
    ``acls``: True gives users only the permissions of :meth:`allow` (StandardAuthorizer), False gives them all.
    ``session``: seconds after which a login expires (``connections.max.reauth.ms``), unless its token expires earlier.

    Raises ConfigurationError.
    """

    def __init__(self, users: Mapping[str, str], *, acls: bool = False, session: float | None = None) -> None:
        for user, password in users.items():
            if not (_WORD.fullmatch(user) and _WORD.fullmatch(password)):
                raise ConfigurationError("users", user, "names and passwords: letters, digits, and ._~!@#%^*+=-")
        if session is not None and not session > 0:
            raise ConfigurationError("session", session, "must be more than 0 seconds, or None")
        self.users = dict(users)
        self.acls = acls
        self._session = session
        self._authority: TestAuthority | None = None
        self._server = Path()
        self._ports: dict[ListenerName, list[int]] = {}
        self._plain = ""

    def __repr__(self) -> str:
        return f"<Secured of {', '.join(self.users) or 'no users'}>"

    # -- for clients

    def bootstrap_servers(self, listener: ListenerName = "SASL_SSL") -> str:
        """``host:port`` of one of the listeners on all brokers, separated by commas."""
        if listener not in get_args(ListenerName):
            raise ConfigurationError("listener", listener, f"must be one of {', '.join(get_args(ListenerName))}")
        if not self._ports:
            raise BrokerStartError("Apache Kafka is not running; call start() first")
        return ",".join(f"{_HOST}:{port}" for port in self._ports[listener])

    @property
    def authority(self) -> TestAuthority:
        """The authority that signs the certificates."""
        if self._authority is None:
            raise BrokerStartError("Apache Kafka is not running; call start() first")
        return self._authority

    def security(
        self, listener: ListenerName = "SASL_SSL", user: str | None = None, mechanism: Mechanism = "SCRAM-SHA-512"
    ) -> Security:
        """The options for a user, by default the first one, to connect to a listener."""
        user = user or next(iter(self.users), "anybody")
        ca = None if listener == "SASL_PLAINTEXT" else self.authority.ca_file
        if listener == "SSL":
            return Security("SSL", ca_file=ca)
        if listener == "MUTUAL_SSL":
            certificate = self.authority.issue(f"{user}.pem", name=user)
            return Security("SSL", ca_file=ca, certificate_file=certificate)
        if mechanism == "OAUTHBEARER":
            return Security(listener, ca_file=ca, mechanism=mechanism, token=self.tokens(user))
        return Security(listener, ca_file=ca, mechanism=mechanism, username=user, password=self.users[user])

    def token(self, user: str, seconds: float = 3600.0) -> str:
        """A token for a user, valid for ``seconds``; negative: expired that long ago."""
        now = time.time()
        claims = {"sub": user, "iat": min(now, now + seconds) - 1, "exp": now + seconds}
        parts = [base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in (_NO_KEY, claims)]
        return ".".join([*parts, ""])

    def tokens(self, user: str, seconds: float = 3600.0) -> Callable[[], Awaitable[Token]]:
        """A function that returns a new token each time, for ``Security(token=...)``."""

        async def token() -> Token:
            return Token(self.token(user, seconds), time.time() + seconds)

        return token

    # -- while the brokers run

    def set_password(self, user: str, password: str) -> None:
        """Change a SCRAM password; PLAIN keeps the first one. Existing connections stay until their session ends.
        Blocks until the brokers have applied it."""
        from confluent_kafka import admin  # noqa: PLC0415 - of the extra "testing"

        changes = [
            admin.UserScramCredentialUpsertion(user, admin.ScramCredentialInfo(kind, _ITERATIONS), password.encode())
            for kind in (admin.ScramMechanism.SCRAM_SHA_256, admin.ScramMechanism.SCRAM_SHA_512)
        ]
        client = self._admin()
        for one in changes:
            _results(client.alter_user_scram_credentials([one]))
        self.users[user] = password

    def allow(self, user: str, *operations: str, topic: str = "", group: str = "") -> None:
        """Grant permissions by Kafka's names (``"READ"``, ``"WRITE"``, ``"DESCRIBE"``, ``"ALL"``) on a topic, on a
        group, or with neither on the cluster. ``"*"`` means all of them. Blocks until the brokers have applied it."""
        self._change(user, operations, topic, group, allow=True)

    def forbid(self, user: str, *operations: str, topic: str = "", group: str = "") -> None:
        """Revoke permissions that ``allow`` has granted."""
        self._change(user, operations, topic, group, allow=False)

    def _change(self, user: str, operations: tuple[str, ...], topic: str, group: str, *, allow: bool) -> None:
        from confluent_kafka import admin  # noqa: PLC0415 - of the extra "testing"

        if not self.acls:
            raise ConfigurationError("acls", False, "permissions need Secured(..., acls=True)")
        kind = admin.ResourceType.TOPIC if topic else admin.ResourceType.GROUP if group else admin.ResourceType.BROKER
        name = topic or group or "kafka-cluster"
        client = self._admin()
        for operation in operations:
            about = (
                kind,
                name,
                admin.ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                admin.AclOperation[operation],
                admin.AclPermissionType.ALLOW,
            )
            wanted = admin.AclBindingFilter(*about)
            if allow:
                _results(client.create_acls([admin.AclBinding(*about)]))
            else:
                _results(client.delete_acls([wanted]))
            deadline = time.monotonic() + _TIMEOUT
            while bool(client.describe_acls(wanted).result(_TIMEOUT)) is not allow:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the brokers have not applied {operation} on {name} within {_TIMEOUT:g} s")
                time.sleep(0.02)

    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - of the extra "testing"

        if not self._plain:
            raise BrokerStartError("Apache Kafka is not running; call start() first")
        return AdminClient({"bootstrap.servers": self._plain, "log_level": 0})

    # -- for LocalKafka

    @property
    def listeners(self) -> tuple[ListenerName, ...]:
        """The names of the listeners."""
        return get_args(ListenerName)

    def prepare(self, directory: Path) -> None:
        """Make the certificates, in a directory that is deleted with the broker."""
        self._authority = TestAuthority(directory)
        self._server = self._authority.issue("server.pem", _HOST)

    def placed(self, plain: str, ports: Mapping[ListenerName, list[int]]) -> None:
        """Set the addresses of these listeners and of the plain one."""
        self._plain, self._ports = plain, dict(ports)

    def started(self) -> None:
        """Store the users' SCRAM passwords in the cluster."""
        for user, password in self.users.items():
            self.set_password(user, password)

    def stopped(self) -> None:
        """The cluster has ended, and its data is deleted."""
        self._plain, self._ports, self._authority = "", {}, None

    def properties(self) -> dict[str, str]:
        """The properties of each broker, apart from those of listeners and ports."""
        passwords = " ".join(f'user_{user}="{password}"' for user, password in self.users.items())
        modules = {
            "plain": f"{_MODULE}.plain.PlainLoginModule required {passwords};",
            "scram-sha-256": f"{_MODULE}.scram.ScramLoginModule required;",
            "scram-sha-512": f"{_MODULE}.scram.ScramLoginModule required;",
            "oauthbearer": f'{_MODULE}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="b";',
        }
        properties = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.ca_file),
            # The last part of the certificate's name: User:alice.
            "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
            "listener.name.mutual_ssl.ssl.client.auth": "required",
        }
        for listener in ("sasl_ssl", "sasl_plaintext"):
            before = f"listener.name.{listener}"
            properties[f"{before}.sasl.enabled.mechanisms"] = ",".join(get_args(Mechanism))
            for mechanism, module in modules.items():
                properties[f"{before}.{mechanism}.sasl.jaas.config"] = module
                if self._session is not None:
                    properties[f"{before}.{mechanism}.connections.max.reauth.ms"] = str(round(self._session * 1000))
        if self.acls:
            properties |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
            }
        return properties


_NO_KEY: Final = {"alg": "none"}


def _results(futures: Mapping[object, Future[object]]) -> None:
    for future in futures.values():
        future.result(_TIMEOUT)
