"""Certificates: read, checked at construction of the options, and read again when their files change."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path
from typing import Any, Self

from aioparallel.config.security.secret import Hidden, read_secret
from aioparallel.records.errors import ConfigurationError

__all__ = ["Certificates", "RenewingContext"]


class Certificates:
    """The certificate files of a client. Raises ConfigurationError, naming the option."""

    def __init__(
        self,
        ca_file: str | Path | None,
        certificate_file: str | Path | None,
        key_file: str | Path | None,
        key_password: str | None,
        key_password_file: str | Path | None = None,
    ) -> None:
        self.ca_file = ca_file
        self.certificate_file = certificate_file
        self.key_file = key_file if key_file is not None else certificate_file
        self.key_password = key_password
        self.key_password_file = key_password_file

    def load(self, context: ssl.SSLContext) -> None:
        """Load the trusted certificates, and this client's certificate, into the context."""
        if self.ca_file is not None:
            _readable("ca_file", self.ca_file)
            try:
                context.load_verify_locations(cafile=self.ca_file)
            except (ssl.SSLError, OSError) as error:
                raise ConfigurationError(
                    "ca_file", str(self.ca_file), f"contains no certificates in PEM format ({_reason(error)})"
                ) from None
        if self.certificate_file is not None and self.key_file is not None:
            _readable("certificate_file", self.certificate_file)
            _readable("key_file", self.key_file)
            self._load_own(context, self.certificate_file, self.key_file)

    def _load_own(self, context: ssl.SSLContext, certificate: str | Path, key: str | Path) -> None:
        asked, key_password = False, self.key_password
        if self.key_password_file is not None:
            key_password = read_secret("key_password_file", self.key_password_file)

        def password() -> str:
            nonlocal asked
            asked = True  # without a function OpenSSL would ask on the terminal
            return str.__str__(key_password or "")

        try:
            context.load_cert_chain(certificate, key, password)
        except (ssl.SSLError, OSError, ValueError) as error:
            if asked:
                if key_password is None:
                    raise ConfigurationError(
                        "key_file", str(key), "is encrypted: give key_password or key_password_file"
                    ) from None
                raise ConfigurationError(
                    "key_password", Hidden(key_password), f"does not decrypt key_file={str(key)!r}"
                ) from None
            if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
                raise ConfigurationError(
                    "key_file", str(key), f"is not the key of certificate_file={str(certificate)!r}"
                ) from None
            raise ConfigurationError(
                "certificate_file",
                str(certificate),
                f"with key_file={str(key)!r}: one of them is not in PEM format ({_reason(error)})",
            ) from None

    def changed(self) -> object:
        """A value that changes when a file is replaced."""
        files = (self.ca_file, self.certificate_file, self.key_file, self.key_password_file)
        return tuple(None if file is None else _stamp(file) for file in files)


class RenewingContext(ssl.SSLContext):
    """A client's context that reads its files again when they have changed, for later connections.

    It delegates to another context, which is replaced each time: a context cannot remove authorities, and is left
    partially changed when loading fails.
    """

    _certificates: Certificates
    _seen: object
    _loaded: ssl.SSLContext

    @classmethod
    def of(cls, certificates: Certificates, *, check_hostname: bool) -> Self:
        """A context with the defaults of ``ssl.create_default_context``. Raises ConfigurationError."""
        context = cls(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if sys.version_info >= (3, 13):
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT
        context.check_hostname = check_hostname
        context._certificates, context._seen = certificates, certificates.changed()
        context._loaded = context._load()
        return context

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self._certificates, self.check_hostname)

    @property
    def has_certificate(self) -> bool:
        """Whether the client has a certificate."""
        return self._certificates.certificate_file is not None

    def renew(self) -> None:
        """Load changed files, if there are any. Raises ConfigurationError, and then keeps what was loaded before."""
        if (now := self._certificates.changed()) != self._seen:
            self._loaded = self._load()
            self._seen = now

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Used by asyncio."""
        return self._loaded.wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        """Used by blocking clients."""
        return self._loaded.wrap_socket(*args, **options)

    def _load(self) -> ssl.SSLContext:
        loaded = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        loaded.minimum_version, loaded.check_hostname = self.minimum_version, self.check_hostname
        loaded.verify_flags = self.verify_flags
        if self._certificates.ca_file is None:
            loaded.load_default_certs(ssl.Purpose.SERVER_AUTH)
        self._certificates.load(loaded)
        return loaded


def _again(certificates: Certificates, check_hostname: bool) -> RenewingContext:
    return RenewingContext.of(certificates, check_hostname=check_hostname)


def _readable(option: str, file: str | Path) -> None:
    try:
        with Path(file).open("rb"):
            pass
    except OSError as error:
        raise ConfigurationError(option, str(file), f"cannot be read: {error.strerror or error}") from None


def _stamp(file: str | Path) -> tuple[int, int, int]:
    try:
        found = Path(file).stat()
    except OSError:
        return (0, 0, 0)
    return found.st_mtime_ns, found.st_size, found.st_ino


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error) or type(error).__name__
