"""Certificates: read, checked when an option names them, and read again when their files change."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Self

from aioparallel.errors import ConfigurationError
from aioparallel.security.secret import Hidden

__all__ = ["Certificates", "RenewingContext"]


class Certificates:
    """The files of one side. ``key_password``: of an encrypted key. Raises ConfigurationError, naming the option."""

    def __init__(
        self,
        ca_file: str | Path | None,
        certificate_file: str | Path | None,
        key_file: str | Path | None,
        key_password: str | None,
    ) -> None:
        self.ca_file = ca_file
        self.certificate_file = certificate_file
        self.key_file = key_file if key_file is not None else certificate_file
        self.key_password = key_password

    def load(self, context: ssl.SSLContext) -> None:
        """Whom to trust, and who we are."""
        if self.ca_file is not None:
            _readable("ca_file", self.ca_file)
            try:
                context.load_verify_locations(cafile=self.ca_file)
            except (ssl.SSLError, OSError) as error:
                raise ConfigurationError(
                    "ca_file", str(self.ca_file), f"holds no certificates in PEM format ({_reason(error)})"
                ) from None
        if self.certificate_file is not None and self.key_file is not None:
            _readable("certificate_file", self.certificate_file)
            _readable("key_file", self.key_file)
            self._load_own(context, self.certificate_file, self.key_file)

    def _load_own(self, context: ssl.SSLContext, certificate: str | Path, key: str | Path) -> None:
        asked = False

        def password() -> str:
            nonlocal asked
            asked = True  # without a function OpenSSL asks on the terminal
            return str.__str__(self.key_password or "")

        try:
            context.load_cert_chain(certificate, key, password)
        except (ssl.SSLError, OSError, ValueError) as error:
            if asked:
                if self.key_password is None:
                    raise ConfigurationError(
                        "key_file", str(key), "is encrypted: give key_password or key_password_file"
                    ) from None
                raise ConfigurationError(
                    "key_password", Hidden(self.key_password), f"does not open key_file={str(key)!r}"
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
        """Something that is another one when a file was replaced."""
        files = (self.ca_file, self.certificate_file, self.key_file)
        return tuple(None if file is None else _stamp(file) for file in files)


class RenewingContext(ssl.SSLContext):
    """A client's context that reads its files again when they have changed, for the connections after that."""

    _certificates: Certificates
    _seen: object

    @classmethod
    def of(cls, certificates: Certificates, *, check_hostname: bool) -> Self:
        """With the defaults of ``ssl.create_default_context``. Raises ConfigurationError."""
        context = cls(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = check_hostname
        if certificates.ca_file is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        context._certificates, context._seen = certificates, certificates.changed()
        certificates.load(context)
        return context

    @property
    def has_certificate(self) -> bool:
        """Whether the other side can know who this is."""
        return self._certificates.certificate_file is not None

    def renew(self) -> None:
        """Take new files, if there are any. Raises ConfigurationError; what was loaded before stays then."""
        if (now := self._certificates.changed()) != self._seen:
            self._certificates.load(self)
            self._seen = now


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
