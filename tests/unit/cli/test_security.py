"""How the command line says how a secured cluster is reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from aioparallel.cli.security import Secure
from tests.support.command_line import invoke

REFUSED = [
    (["--username", "me"], {}, "--username='me': needs --security-protocol as well"),
    (["--security-protocol", "SSL", "--ca-file", "none"], {}, "--ca-file='none': cannot be read"),
    (["--security-protocol", "SASL_SSL"], {}, "--mechanism=None: must be one of"),
    (
        ["--security-protocol", "SASL_SSL", "--mechanism", "PLAIN", "--username", "me"],
        {},
        "--password-file=None: give it, or put the password into the variable AIOPARALLEL_PASSWORD",
    ),
    (
        ["--security-protocol", "SASL_SSL", "--mechanism", "PLAIN", "--client-option", "sasl_plain_password=s3cret"],
        {"AIOPARALLEL_USERNAME": "me", "AIOPARALLEL_PASSWORD": "s3cret"},
        "cannot be combined with --security-protocol",
    ),
    (["--security-protocol", "TLS"], {}, 'Choose from: "SSL", "SASL_SSL", "SASL_PLAINTEXT"'),
]


@pytest.mark.parametrize(("flags", "variables", "said"), REFUSED)
def test_wrong_options_are_named_as_they_are_typed(flags: list[str], variables: dict[str, str], said: str) -> None:
    """With code 2, before anything is connected, and without a secret."""
    ran = invoke("dlq", "list", "orders.dlq", *flags, environment=variables)
    assert (ran.exit_code, said in ran.stderr, "s3cret" in ran.output) == (2, True, False), ran.stderr


def test_a_password_comes_from_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is what counts where there are both; no flag takes a password."""
    (tmp_path / "password").write_text("of the file\n")
    monkeypatch.setenv("AIOPARALLEL_PASSWORD", "of the variable")

    def password(file: str | None) -> object:
        secure = Secure(
            security_protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", username="me", password_file=file
        )
        security = secure.security()
        assert security is not None
        return security.client_options()["sasl_plain_password"]

    assert (password(None), password(str(tmp_path / "password"))) == ("of the variable", "of the file")
    assert Secure().security() is None
    assert "--password " not in invoke("dlq", "list", "--help").output
