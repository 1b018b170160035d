"""A certificate authority for tests, and certificates that it signs."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Final

from aioparallel.records.errors import BrokerStartError

__all__ = ["TestAuthority"]

_DAYS: Final = 30
"""Validity of a certificate in days."""


class TestAuthority:
    """Signs certificates, and keeps all files, including keys, in one directory. Needs ``trustme``."""

    __test__ = False  # not a test, for pytest

    def __init__(self, directory: Path) -> None:
        try:
            import trustme  # noqa: PLC0415 - of the extra "testing"
        except ImportError as error:
            raise BrokerStartError(
                "TLS needs trustme, which makes the certificates: pip install 'aioparallel[testing]'"
            ) from error
        self._authority = trustme.CA()
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.ca_file = directory / "ca.pem"
        """Its own certificate, for others to trust."""
        self._authority.cert_pem.write_to_path(str(self.ca_file))

    def issue(
        self,
        file: str,
        *hosts: str,
        name: str | None = None,
        key_password: str | None = None,
        ended: bool = False,
        lasts: float = _DAYS * 86_400.0,
    ) -> Path:
        """Issue a certificate for ``hosts``, or a client certificate for ``name``. Returns a file with the certificate
        and its key, for Kafka and Python. ``ended``: it expired yesterday. ``lasts``: its validity in seconds."""
        now = dt.datetime.now(dt.UTC)
        issued = self._authority.issue_cert(
            *(hosts or ("client.invalid",)),
            common_name=name,
            not_before=now - dt.timedelta(days=2),
            not_after=now + (dt.timedelta(days=-1) if ended else dt.timedelta(seconds=lasts)),
        )
        path = self._directory / file
        key = _pkcs8(issued.private_key_pem.bytes(), key_password)
        path.write_bytes(key + b"".join(one.bytes() for one in issued.cert_chain_pems))
        path.chmod(0o600)
        return path


def _pkcs8(key: bytes, password: str | None) -> bytes:
    """The key in the format that Java reads."""
    from cryptography.hazmat.primitives import serialization as forms  # noqa: PLC0415 - trustme brings it

    hiding = forms.NoEncryption() if password is None else forms.BestAvailableEncryption(password.encode())
    return forms.load_pem_private_key(key, None).private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, hiding)
