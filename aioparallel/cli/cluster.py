"""Options to reach a cluster, and the aiokafka options made from them.

Annotations are not postponed here: cyclopts would resolve their names in the modules of subclasses.
"""

import inspect
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from cyclopts import Group, Parameter

from aioparallel.cli.parsing import name_and_value
from aioparallel.cli.security import Secure
from aioparallel.records.errors import ConfigurationError

__all__ = ["WHERE", "Cluster", "connecting_options", "parse_client_options"]

WHERE: Final = Group("Where", sort_key=3)


@Parameter(name="*", group=WHERE)
@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Options to reach a cluster."""

    bootstrap_servers: Annotated[str, Parameter(env_var="AIOPARALLEL_BOOTSTRAP_SERVERS")] = "localhost:9092"
    """The brokers: host:port, several with commas."""
    client_options: Annotated[
        tuple[str, ...],
        Parameter(name="--client-option", metavar="NAME=VALUE", env_var="AIOPARALLEL_CLIENT_OPTIONS"),
    ] = ()
    """An option of aiokafka's consumer by its name there, as in `request_timeout_ms=60000`. Repeatable; several in the
    variable are separated by spaces."""
    skip_unreadable: Annotated[tuple[str, ...], Parameter(metavar="TOPIC:PARTITION:OFFSET")] = ()
    """Skip just this batch if it cannot be read, as the error names it; its records are lost. Repeatable."""
    secure: Secure = field(default_factory=Secure)

    @property
    def skipped(self) -> tuple[tuple[str, int, int], ...]:
        """The parsed ``skip_unreadable`` options. Raises ConfigurationError."""
        return tuple(map(_batch, self.skip_unreadable))


def _batch(text: str) -> tuple[str, int, int]:
    topic, *numbers = text.split(":")
    if not topic or len(numbers) != 2 or not all(number.isascii() and number.isdigit() for number in numbers):
        raise ConfigurationError("skip_unreadable", text, "must be topic:partition:offset of a batch: orders:3:4711")
    return topic, int(numbers[0]), int(numbers[1])


def connecting_options(access: Cluster) -> dict[str, object]:
    """Client options and security options together. Raises ConfigurationError if both set security."""
    from aioparallel.config.security.secret import Hidden  # noqa: PLC0415 - not for help

    options, security = parse_client_options(access.client_options), access.secure.security()
    if security is None:
        return options
    for name in options:
        if name.startswith("sasl_") or name in ("security_protocol", "ssl_context"):
            raise ConfigurationError(
                f"client_options[{name!r}]", Hidden(options[name]), "cannot be combined with security_protocol"
            )
    return {**options, **security.client_options()}


def parse_client_options(texts: Sequence[str]) -> dict[str, object]:
    """Parse ``name=value`` texts; each value gets the type of aiokafka's default.

    With ``security_protocol`` SSL or SASL_SSL adds a default TLS context, which verifies certificates by the system's
    authorities or those in the file that SSL_CERT_FILE names. Raises ConfigurationError.
    """
    from aiokafka import AIOKafkaConsumer  # noqa: PLC0415 - not for help

    known = inspect.signature(AIOKafkaConsumer.__init__).parameters
    options: dict[str, object] = {}
    for text in texts:
        name, value = name_and_value("client_options", text, "name=value, as in security_protocol=SASL_SSL")
        options[name] = _typed(name, value, known[name].default if name in known else None)
    if str(options.get("security_protocol", "")).endswith("SSL"):
        options["ssl_context"] = ssl.create_default_context()
    return options


def _typed(name: str, value: str, default: object) -> object:
    option = f"client_options[{name!r}]"
    if isinstance(default, bool):
        if value.lower() not in {"true", "false"}:
            raise ConfigurationError(option, value, "true or false")
        return value.lower() == "true"
    if isinstance(default, int):
        try:
            return int(value)
        except ValueError:
            raise ConfigurationError(option, value, "a whole number") from None
    return value
