"""Security: checked when constructed, each wrong option named with what to do; secrets shown to nobody."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import ssl
import time
from collections.abc import Mapping
from dataclasses import asdict, astuple
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from aiokafka.protocol.admin import SaslAuthenticateRequest

from aioparallel import ConfigurationError, Options, ParallelConsumer, Producing, Security, Token
from aioparallel.config.security import secret
from aioparallel.config.security.secret import NoToken, Password, TokenSource, read_secret
from aioparallel.config.security.tls import Certificates, RenewingContext
from aioparallel.testing.brokers.certificates import TestAuthority


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``ca.pem``, two users with certificate and key, one encrypted, and files that are no certificates."""
    directory = tmp_path_factory.mktemp("files")
    authority = TestAuthority(directory)
    authority.issue("me.pem", name="me")
    authority.issue("you.pem", name="you")
    authority.issue("locked.pem", name="me", key_password="open")
    for name in ("me", "you"):
        key, begin, rest = (directory / f"{name}.pem").read_text().partition("-----BEGIN CERTIFICATE-----")
        (directory / f"{name}.key").write_text(key)
        (directory / f"{name}.crt").write_text(begin + rest)
    (directory / "nonsense").write_text("nonsense")
    (directory / "empty").write_text("\n")
    (directory / "binary").write_bytes(b"\xff\xfe")
    (directory / "password").write_text("secret\r\n")
    return directory


async def _token() -> str:
    return "token"


WRONG: list[tuple[Mapping[str, object], str]] = [
    ({"protocol": "TLS"}, "Security protocol='TLS': must be one of 'SSL', 'SASL_SSL', 'SASL_PLAINTEXT'"),
    ({"protocol": "PLAINTEXT"}, "leave security out for it"),
    ({"protocol": "SSL", "ca_file": "none"}, "Security ca_file='none': cannot be read: No such file"),
    ({"protocol": "SSL", "ca_file": "{}"}, "cannot be read: Is a directory"),
    ({"protocol": "SSL", "ca_file": "{}/nonsense"}, "contains no certificates in PEM format"),
    ({"protocol": "SSL", "ca_file": 7}, "must be the path of a file"),
    ({"protocol": "SSL", "certificate_file": "none"}, "Security certificate_file='none': cannot be read"),
    ({"protocol": "SSL", "certificate_file": "{}/me.crt"}, "one of them is not in PEM format"),
    ({"protocol": "SSL", "certificate_file": "{}/me.crt", "key_file": "none"}, "Security key_file='none'"),
    (
        {"protocol": "SSL", "certificate_file": "{}/me.crt", "key_file": "{}/you.key"},
        "is not the key of certificate_file",
    ),
    ({"protocol": "SSL", "certificate_file": "{}/locked.pem"}, "is encrypted: give key_password or key_password_file"),
    (
        {"protocol": "SSL", "certificate_file": "{}/locked.pem", "key_password": "no"},
        "key_password=<str>: does not decrypt",
    ),
    ({"protocol": "SSL", "key_file": "{}/me.key"}, "key_file=.*needs certificate_file as well"),
    ({"protocol": "SSL", "key_password": "open"}, "key_password=<str>: needs certificate_file"),
    ({"protocol": "SSL", "check_hostname": 0}, "must be True or False"),
    ({"protocol": "SSL", "mechanism": "PLAIN"}, 'needs protocol="SASL_SSL" or "SASL_PLAINTEXT"'),
    ({"protocol": "SSL", "password": "secret"}, "password=<str>: needs protocol"),
    (
        {"protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN", "ca_file": "{}/ca.pem", "username": "me", "password": "x"},
        "nothing is encrypted",
    ),
    ({"protocol": "SASL_SSL"}, "mechanism=None: must be one of 'PLAIN', 'SCRAM-SHA-256'"),
    ({"protocol": "SASL_SSL", "mechanism": "GSSAPI"}, "mechanism='GSSAPI': must be one of"),
    ({"protocol": "SASL_SSL", "mechanism": "PLAIN"}, "username=None: is needed with mechanism='PLAIN'"),
    ({"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "me"}, "give password or password_file"),
    ({"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": ""}, "must be a non-empty string"),
    ({"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "me", "password": ""}, "must be a non-empty string"),
    ({"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "me", "password": _token}, "must be a plain function"),
    (
        {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "me", "password": lambda: None},
        "password=<NoneType>: its function must return a non-empty string",
    ),
    ({"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "me", "password_file": "none"}, "cannot be read"),
    ({"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "me", "password_file": "{}/empty"}, "is empty"),
    (
        {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "me", "password_file": "{}/binary"},
        "not UTF-8 text",
    ),
    (
        {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "me", "password": "x", "token": _token},
        'token=<function>: needs mechanism="OAUTHBEARER"',
    ),
    ({"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER"}, "give token or token_file"),
    ({"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "token": lambda: "x"}, "must be an async function"),
    ({"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "token": _token, "token_file": "x"}, "be combined with"),
    (
        {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "token": _token, "username": "me"},
        "OAUTHBEARER takes token",
    ),
    ({"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "token": _token, "extensions": {"a": 1}}, "of strings"),
    (
        {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "token": _token, "extensions": {"auth": "x"}},
        "names are letters, but not auth",
    ),
    (
        {
            "protocol": "SASL_SSL",
            "mechanism": "OAUTHBEARER",
            "token": _token,
            "extensions": {"a": "b\x01auth=Bearer c"},
        },
        "values are visible ASCII",
    ),
    (
        {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "token": MagicMock()},
        "token=<MagicMock>: must be an async function",
    ),
    ({"protocol": "SSL", "ca_file": "a\0b"}, "must be the path of a file"),
    (
        {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "me", "password": "secret\udce9"},
        "password=<str>: must be a non-empty string in UTF-8",
    ),
]


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_wrong_options_are_named(given: Mapping[str, object], said: str, files: Path) -> None:
    """With the value, unless it is a secret, and what to do."""
    options = {name: one.format(files) if isinstance(one, str) else one for name, one in given.items()}
    with pytest.raises(ConfigurationError, match=said):
        Security(**options)  # type: ignore[arg-type]


def test_files_that_fit(files: Path) -> None:
    """Certificate and key in one file or in two, encrypted or not."""
    ca_file = files / "ca.pem"
    for given in (
        {"certificate_file": files / "me.pem"},
        {"certificate_file": files / "me.crt", "key_file": files / "me.key"},
        {"certificate_file": files / "locked.pem", "key_password": "open"},
    ):
        options = Security("SSL", ca_file=ca_file, **given).client_options()
        assert options.keys() == {"security_protocol", "ssl_context"}


def test_a_password_is_a_text_that_shows_itself_to_nobody(files: Path) -> None:
    """Kafka clients find it in it, whoever prints it does not; it survives a copy, and is read anew when asked."""
    found = ["first"]
    password = Password("first", lambda: found[0])
    assert ("\0".join(["me", password]), password.encode()) == ("me\0first", b"first")
    assert "first" not in f"{password} {password!r} {password:>9} {[password]}" + "%s" % password  # noqa: UP031
    assert copy.deepcopy(Password("first")) == pickle.loads(pickle.dumps(Password("first"))) == "first"
    found[0] = "second"
    assert password.renewed() == "second"
    security = Security("SASL_PLAINTEXT", mechanism="PLAIN", username="me", password_file=files / "password")
    assert security.client_options()["sasl_plain_password"] == "secret"
    assert "secret" not in f"{security} {security.client_options()}"
    assert (
        repr(security)
        == f"Security('SASL_PLAINTEXT', mechanism='PLAIN', username='me', password_file={str(files / 'password')!r})"
    )


async def test_tokens_are_kept_until_a_fifth_is_left() -> None:
    """Those that know their end; texts are asked for each time, and so is the next one after a refusal."""
    asked = 0

    async def token() -> Token:
        nonlocal asked
        asked += 1
        return Token(f"token {asked}", time.time() + (1000 if asked > 1 else 0.0))

    source = TokenSource(token)
    assert [await source.token() for _ in range(3)] == ["token 1", "token 2", "token 2"]
    source.refused()
    assert await source.token() == "token 3"
    assert "token" not in repr(Token("token", 5.0)).replace("Token", "")


@pytest.mark.parametrize(("put", "passes"), [(3_600.0, 0.0), (-3_600.0, 90.0), (0.0, 90.0)])
async def test_a_token_ends_by_whichever_clock_is_first(
    put: float, passes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wall clock that is put forward costs a new token; one that is put back makes no ended token good."""
    wall, steady, asked = 1e9, 5.0, 0
    monkeypatch.setattr(secret, "time", SimpleNamespace(time=lambda: wall))
    monkeypatch.setattr(secret, "steady_time", lambda: steady)

    async def token() -> Token:
        nonlocal asked
        asked += 1
        return Token(f"token {asked}", wall + 100)

    source = TokenSource(token)
    wall, steady = wall + 70, steady + 70
    assert [await source.token() for _ in range(2)] == ["token 1", "token 1"]
    wall, steady = wall + put + passes, steady + passes
    assert [await source.token() for _ in range(2)] == ["token 2", "token 2"]


def test_a_certificate_ends_by_the_wall_clock(tmp_path: Path) -> None:
    """Its end is a date, which OpenSSL compares with the machine's clock at each handshake: that is how an ended one is
    noticed while a program runs."""
    authority = TestAuthority(tmp_path)
    security = Security("SSL", ca_file=authority.ca_file)
    context = security.client_options()["ssl_context"]
    assert isinstance(context, ssl.SSLContext)
    context.check_hostname = True
    assert handshake(context, authority.issue("good.pem", "localhost", lasts=3_600.0)) == ""
    short = authority.issue("short.pem", "localhost", lasts=2.0)
    ends = time.time() + 2.0
    assert handshake(context, short) == ""
    while not (said := handshake(context, short)) and time.time() < ends + 5:
        time.sleep(0.05)
    assert "certificate has expired" in said
    assert time.time() >= ends - 1  # a certificate tells whole seconds


def handshake(client: ssl.SSLContext, certificate: Path) -> str:
    """In memory, with a server that has this certificate. What the client has against it; empty: nothing."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, there, server_hostname="localhost")
    theirs = server.wrap_bio(there, back, server_side=True)
    open_ends = [ours, theirs]
    while open_ends:
        for end in [*open_ends]:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
            open_ends.remove(end)
    return ""


@pytest.mark.parametrize("security", ["SSL", "SASL_SSL"])
def test_it_can_be_copied_and_sent_and_still_shows_nothing(security: str, files: Path) -> None:
    """As options are: ``asdict``, a deep copy, a pickle."""
    given = {"mechanism": "PLAIN", "username": "me", "password": "secret-4"} if security == "SASL_SSL" else {}
    made = Security(
        security,  # type: ignore[arg-type]
        ca_file=files / "ca.pem",
        certificate_file=files / "locked.pem",
        key_password="open",
        **given,  # type: ignore[arg-type]
    )
    copies = [copy.deepcopy(made), pickle.loads(pickle.dumps(made))]
    assert copies == [made, made]
    for one in copies:
        assert isinstance(one.client_options()["ssl_context"], RenewingContext)
        assert one.client_options().get("sasl_plain_password") == given.get("password")
    shown = str([asdict(Options(security=made)), astuple(made), made.password])
    assert ("secret-4" in shown, "'open'" in shown) == (False, False)


def test_files_are_taken_anew_and_nothing_stays_of_the_old_ones(files: Path, tmp_path: Path) -> None:
    """An authority that was taken out is not trusted any more; an encrypted key may have another password."""
    authority, ca_file = TestAuthority(tmp_path), tmp_path / "trusted.pem"
    ca_file.write_bytes(authority.ca_file.read_bytes())
    key_password_file = tmp_path / "key-password"
    key_password_file.write_text("first")
    given = {
        "certificate_file": authority.issue("me.pem", name="me", key_password="first"),
        "key_password_file": key_password_file,
    }
    context = Security("SSL", ca_file=ca_file, **given).client_options()["ssl_context"]  # type: ignore[arg-type]
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.issue("server.pem", "127.0.0.1"))
    assert isinstance(context, RenewingContext)
    assert _trusts(context, server)
    ca_file.write_bytes((files / "ca.pem").read_bytes())
    authority.issue("me.pem", name="me", key_password="second one")
    key_password_file.write_text("second one")
    context.renew()
    assert not _trusts(context, server)


def _trusts(context: ssl.SSLContext, server: ssl.SSLContext) -> bool:
    """Whether the two shake hands, without a network."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return client.version() is not None


def test_aiokafka_writes_no_login_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does a client that somebody made of ``client_options`` by themselves."""
    Security("SASL_PLAINTEXT", mechanism="PLAIN", username="me", password="secret-5").client_options()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("aiokafka.conn").debug("Request %s", SaslAuthenticateRequest(b"me\0me\0secret-5"))
        logging.getLogger("aiokafka.conn").debug("Request %s", "another")
    assert caplog.messages == ["Request another"]


async def test_a_token_function_may_do_anything() -> None:
    """What it raises, or returns instead of a token, is an OSError with the reason: so Kafka clients expect it."""

    async def is_cancelled() -> str:
        raise asyncio.CancelledError

    async def knows_no_end() -> Token:
        return Token("token", None)  # type: ignore[arg-type]

    async def of_bytes() -> Token:
        return Token(b"token", time.time() + 100)  # type: ignore[arg-type]

    async def fails() -> str:
        raise KeyError("access_token")

    async def forgets() -> str:
        return None  # type: ignore[return-value]

    with pytest.raises(NoToken, match="no token: KeyError: 'access_token'"):
        await TokenSource(fails).token()
    with pytest.raises(NoToken, match="returned NoneType"):
        await TokenSource(forgets).token()
    with pytest.raises(NoToken, match="what the token function waited for was cancelled"):
        await TokenSource(is_cancelled).token()
    with pytest.raises(NoToken, match="its expiry is NoneType"):
        await TokenSource(knows_no_end).token()
    source = TokenSource(of_bytes)
    for _ in range(2):
        with pytest.raises(NoToken, match="returned bytes"):
            await source.token()


async def test_who_asks_for_a_token_can_be_cancelled() -> None:
    """That is no failure of the function."""

    async def never() -> str:
        await asyncio.Event().wait()
        return ""

    asking = asyncio.create_task(TokenSource(never).token())
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


def test_passwords_in_client_options_are_hidden_too() -> None:
    """In the reprs of what holds them; clients get them as they are."""
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_plain_username": "me", "sasl_plain_password": "secret-3"}
    options = Options(client_options=login, producing=Producing(client_options=login))
    assert "secret-3" not in repr(options)
    assert options.client_options == options.producing.client_options == login


def test_security_and_client_options_do_not_contradict_each_other() -> None:
    """One of them says how to connect; the rest of ``client_options`` stays."""
    security = Security("SASL_PLAINTEXT", mechanism="PLAIN", username="me", password="secret-1")
    with pytest.raises(ConfigurationError, match="cannot be combined with security"):
        Options(security=security, client_options={"sasl_plain_password": "secret-2"})
    with pytest.raises(ConfigurationError, match=r"security=<dict>: must be a Security"):
        Options(security={"password": "secret-1"})  # type: ignore[arg-type]
    options = Options(security=security, client_options={"client_id": "mine"})
    assert options.connecting_options["client_id"] == "mine"
    assert options.connecting_options["security_protocol"] == "SASL_PLAINTEXT"
    consumer = ParallelConsumer("t", group_id="g", security=security)
    assert "secret-1" not in f"{consumer!r} {consumer.options!r} {vars(consumer)!r}"


def test_a_file_that_windows_has_written(tmp_path: Path) -> None:
    """The mark at its beginning is no part of the password; and what is shown can be copied."""
    file = tmp_path / "password"
    file.write_bytes(b"\xef\xbb\xbfwonderland\r\n")
    assert read_secret("password_file", file) == "wonderland"
    shown = repr(Security("SASL_PLAINTEXT", mechanism="PLAIN", username="me", password_file=file))
    assert f"password_file={str(file)!r}" in shown
    with pytest.raises(ConfigurationError, match="client_options"):
        Security("SASL_PLAINTEXT", mechanism="GSSAPI")  # type: ignore[arg-type]


def test_certificates_are_verified_as_pythons_default_context_does() -> None:
    """From Python 3.13 on strictly, and with partial chains."""
    context = RenewingContext.of(Certificates(None, None, None, None), check_hostname=True)
    assert context.verify_flags == context._loaded.verify_flags == ssl.create_default_context().verify_flags
