"""Explains why a connection fails: TLS, the login, or the wrong kind of port."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Mapping
from typing import Final

import aiokafka.errors as kafka

from aioparallel.clients.aiokafka.aiokafka_errors import AUTHENTICATION
from aioparallel.clients.aiokafka.secure_connection import causes_of, open_connection
from aioparallel.config.security.tls import RenewingContext
from aioparallel.records.errors import AuthenticationFailed

__all__ = ["explain_connection_error", "look_at_port"]

_LOOK: Final = 2.0
"""Seconds to detect the protocol of a port."""

_NO_CERTIFICATE: Final = (
    "the broker requires a client certificate, and got none",
    "give certificate_file, and key_file, in Security",
)
_TLS_REASONS: Final = (
    # (OpenSSL's text, its meaning, what to do)
    (
        "unknown ca",
        "the broker does not trust this client's certificate (unknown authority)",
        "give a certificate_file that an authority of the broker's truststore has signed",
    ),
    (
        "certificate (required|unknown|expired|revoked)|(bad|unsupported) certificate",
        "the broker does not accept this client's certificate",
        "check certificate_file: its authority, and whether it has expired",
    ),
    (
        "protocol version|unsupported protocol|handshake failure|no shared cipher",
        "the broker and this client have no TLS version, or no cipher, in common",
        "check ssl.enabled.protocols and ssl.cipher.suites of the broker",
    ),
)


def explain_connection_error(
    error: BaseException, server: str, options: Mapping[str, object]
) -> AuthenticationFailed | None:
    """Return an AuthenticationFailed for a TLS or login error that a retry does not resolve; None for other errors."""
    for cause in causes_of(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return AuthenticationFailed(server, *_verification(cause, options))
        if isinstance(cause, ssl.SSLError) and (found := _alert(cause)) is not None:
            return AuthenticationFailed(server, *(_NO_CERTIFICATE if _has_none(options) else found))
        if isinstance(cause, AUTHENTICATION):
            return AuthenticationFailed(server, *_login(cause, options))
    return None


def _has_none(options: Mapping[str, object]) -> bool:
    """Whether this client has no certificate. Java sends the same alert for a missing one as for a wrong one."""
    context = options.get("ssl_context")
    return isinstance(context, RenewingContext) and not context.has_certificate


def _verification(error: ssl.SSLCertVerificationError, options: Mapping[str, object]) -> tuple[str, str]:
    text = error.verify_message
    if "ostname mismatch" in text or "IP address mismatch" in text or "not valid for" in text:
        return f"its certificate is for another host ({text})", (
            "use a name in bootstrap_servers that is in the certificate; it must also contain the brokers' own names "
            "(advertised.listeners)"
        )
    if "expired" in text or "not yet valid" in text:
        return f"its certificate is not valid now ({text})", "renew it, and check this machine's clock"
    return f"its certificate is not trusted ({text})", (
        "give the certificate of the authority that has signed it: ca_file in Security"
    )


def _alert(error: ssl.SSLError) -> tuple[str, str] | None:
    reason = f"{error.reason or ''} {error}".replace("_", " ").lower()
    for pattern, meaning, advice in _TLS_REASONS:
        if re.search(pattern, reason):
            return meaning, advice
    return None


def _login(error: BaseException, options: Mapping[str, object]) -> tuple[str, str]:
    mechanism = options.get("sasl_mechanism")
    text = _text(error)
    if isinstance(error, kafka.UnsupportedSaslMechanismError):
        enabled = re.search(r"nabled mechanisms are: (.*)$", text)
        has = f"; it has {', '.join(re.findall(r'[A-Z0-9-]+', enabled[1]))}" if enabled else ""
        return f"the broker has no {mechanism}{has}", "use another mechanism, or have it enabled"
    if isinstance(error, kafka.IllegalSaslStateError):
        return "this port does not accept logins", (
            'leave the login out ("SSL", or no security at all), or use the port of the listener with SASL'
        )
    if mechanism == "OAUTHBEARER":
        return text, "the token function, or token_file, must provide a token that is valid now, for this cluster"
    user = options.get("sasl_plain_username")
    return f"{text} (user {user!r})", "check username, password and mechanism"


def _text(error: BaseException) -> str:
    """The error's text without the class that aiokafka prepends."""
    text = str(error.args[0]) if error.args and error.args[0] else str(error)
    # Without a reason aiokafka passes the connection instead.
    return type(error).__name__ if text.startswith("<AIOKafka") else text


async def look_at_port(host: str, port: int, server: str, options: Mapping[str, object]) -> AuthenticationFailed | None:
    """Explain a connection that was closed at once, if only one side uses TLS; else None."""
    wants_tls = options.get("security_protocol") in {"SSL", "SASL_SSL"}
    if not wants_tls and await _speaks_tls(host, port):
        return AuthenticationFailed(
            server,
            "it uses TLS, and this client does not",
            'give security=Security("SSL"), or "SASL_SSL" with a login',
        )
    if wants_tls and await _speaks_plain(host, port):
        return AuthenticationFailed(
            server,
            "it does not use TLS, and this client does",
            'use the port of the listener with TLS; if there is none, leave security out, or use "SASL_PLAINTEXT"',
        )
    return None


async def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # no data is sent
    try:
        async with asyncio.timeout(_LOOK):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        return "alert" in str(error).lower()  # an alert is TLS as well
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_LOOK):
            await writer.wait_closed()
    return True


async def _speaks_plain(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_LOOK):
            connection = await open_connection(host, port, {})  # sends only ApiVersions, which needs no login
            if (closed := connection.close()) is not None:
                await closed
    except (OSError, TimeoutError, kafka.KafkaError):
        return False
    return True
