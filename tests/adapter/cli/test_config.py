"""``markpost config``: ``check`` reports every mistake with its line, ``show`` prints each setting with its origin."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from adapter.cli import main
from adapter.config import loader, render
from adapter.config.loader import CommandFlag, ConfigError
from adapter.config.locations import key_lines
from adapter.config.schema import Settings
from tests.support.certificates import make_certificate


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["config", *arguments], env=environment)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "markpost.toml"


def test_valid_configuration_has_no_mistakes(file: Path, tmp_path: Path) -> None:
    tls = make_certificate(tmp_path)
    file.write_text(f'[tls]\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\n[listen]\nimaps = ["[::]:993"]\n')
    result = run("check", "--config", str(file))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "no mistakes" in result.stdout
    assert run("check").exit_code == 0
    assert run("check", "--imap", "127.0.0.1:143").exit_code == 0


def test_all_mistakes_of_syntax_are_reported_at_once(file: Path) -> None:
    file.write_text(
        '[limits]\nrecipients = -1\nidel = 5\n\n[smpt]\n[tls.names."a.test"]\nkey = "k"\n[domains]\ncatch_all = 3\n'
    )
    result = run("check", "--config", str(file), MARKPOST_LIMITS_HOPS="many", MARKPOST_LIMITS_EROORS="3")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    for place, text in (
        (f"{file}:2: ", "limits.recipients must be a whole number"),
        (f"{file}:3: ", "unknown setting 'limits.idel'; did you mean 'idle'?"),
        (f"{file}:5: ", "unknown setting 'smpt'; did you mean 'smtp'?"),
        (f"{file}:6: ", "tls.names.a.test.certificate is missing"),
        (f"{file}:9: ", "domains.catch_all must be a table"),
        ("environment MARKPOST_LIMITS_HOPS: ", "limits.hops must be a whole number, not 'many'"),
        ("environment MARKPOST_LIMITS_EROORS: ", "did you mean 'MARKPOST_LIMITS_ERRORS'?"),
    ):
        assert any(line.startswith(place) and text in line for line in lines), (place, lines)
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('[limits]\nexempt = ["here"]\n', 2, "limits.exempt: 'here' is neither a network"),
        ('[aliases]\n"x@a.test" = ["y"]\n', 2, "'y' is not an address"),
        ('[domains]\npostmaster = "me"\n', 2, "'me' is not an address"),
        ('[domains]\ncatch_all = {"a.test" = "me"}\n', 2, "'me' is not an address"),
        ('[account.ada]\nstorage = 1\n', 1, "'ada' is not an address"),
        ('[login]\nmechanisms = [\n  "MAGIC",\n]\n', 2, "'MAGIC' is not one of"),
        ('[login]\ntoken_url = "file:///etc/passwd"\n', 2, "http or https"),
        ('[login]\nthreads = 0\n', 2, "login.threads: must be more than 0"),
        ('[limits]\nconnections = 0\n', 2, "limits.connections: must be more than 0"),
        ('[tls]\nhandshake = 0\n', 2, "tls.handshake: must be more than 0"),
        ('[relay]\nfirst_retry = "0 s"\n', 2, "relay.first_retry: must be more than 0"),
        ('[hook.a]\nurl = "http://h"\nfirst_retry = 0\n', 3, "hook.a.first_retry: must be more than 0"),
        ('[listen]\nsmtp = ["25"]\n', 2, "neither host:port"),
        ('[listen]\nimaps = ["[::]:993"]\n', 2, "needs a certificate"),
        ('[tls]\ncertificate = "/nonexistent.pem"\n', 2, "/nonexistent.pem: no such file"),
        ('[tls.names."a.test"]\ncertificate = "/a.pem"\nkey = "/a.key"\n', 1, "must be set"),
        ('[relay]\nport = 0\n', 2, "from 1 to 65535"),
        ('[relay]\nca_file = "/nonexistent.pem"\n', 2, "cannot be read"),
        ('[relay]\n\nport = = 1\n', 3, "Invalid value"),
    ],
)  # fmt: skip
def test_mistakes_of_meaning_are_reported_with_their_line(file: Path, text: str, line: int, message: str) -> None:
    file.write_text(text)
    result = run("check", "--config", str(file))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"{file}:{line}: ")
    assert message in result.stderr


def test_show_prints_the_origin_of_each_value(file: Path) -> None:
    file.write_text('[limits]\nidle = "5 min"\n[imap]\nfolders = 7\n[aliases]\n"a@x.test" = ["b@x.test"]\n')
    result = run("show", "--config", str(file), "--smtp", "127.0.0.1:25", MARKPOST_IMAP_FOLDERS="8")
    assert result.exit_code == 0, result.stderr
    shown = result.stdout.splitlines()
    assert f'idle = "5 min"  # {file}:2' in shown
    assert "folders = 8  # environment MARKPOST_IMAP_FOLDERS" in shown
    assert 'smtp = ["127.0.0.1:25"]  # --smtp' in shown
    assert 'message_size = "50 MiB"  # default' in shown
    assert f'"a@x.test" = ["b@x.test"]  # {file}:6' in shown
    assert "socket_mode = 0o660  # default" in shown


def test_output_of_show_is_a_valid_configuration(file: Path, tmp_path: Path) -> None:
    file.write_text(
        '[limits]\nidle = 0.5\nmessage_size = 1000\n[account."a@x.test"]\nstorage = "1 GiB"\n[domains]\n'
        'catch_all = {"x.test" = "a@x.test"}\nlocal = ["ü.test", "quo\\"te"]\n'
        '[tls.names."*.x.test"]\ncertificate = "a"\nkey = "b"\n'
    )
    loaded = loader.read(Settings, str(file), {}, {("login", "allow_plaintext"): CommandFlag("--x", value=True)})
    shown = tmp_path / "shown.toml"
    shown.write_text(render.render(loaded))
    assert loader.load(Settings, str(shown), {}) == loaded.settings


def test_secrets_are_masked(file: Path) -> None:
    file.write_text(
        '[login]\ntoken_url = "https://me:hunter2@tokens.test/check"\n'
        '[upstream.work]\nhost = "h"\nuser = "u"\naccount = "ada@example.test"\npassword = "hunter2"\n'
        '[hook.agent]\nurl = "https://hooks.test/new?key=hunter2"\n'
    )
    result = run("show", "--config", str(file))
    assert 'password = "********"' in result.stdout
    assert 'token_url = "https://********@tokens.test/check"' in result.stdout
    assert 'url = "https://hooks.test/new?********"' in result.stdout
    assert "hunter2" not in result.output


def test_show_of_an_invalid_file_fails_in_one_line(file: Path) -> None:
    file.write_text("[limits]\nidel = 1\nidlle = 2\n")
    result = run("show", "--config", str(file))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "(and 1 more: see markpost config check)" in result.stderr


def test_flags_override_the_environment_which_overrides_the_file(file: Path) -> None:
    file.write_text("[imap]\nfolders = 1\nkeywords = 1\nkeyword_length = 1\n")
    environment = {"MARKPOST_IMAP_KEYWORDS": "2", "MARKPOST_IMAP_KEYWORD_LENGTH": "2", "MARKPOST_ROOT": "/mail"}
    loaded = loader.read(Settings, str(file), environment, {("imap", "keyword_length"): CommandFlag("--length", 3)})
    imap = loaded.settings.imap
    assert (imap.folders, imap.keywords, imap.keyword_length) == (1, 2, 3)
    assert [str(loaded.origin(("imap", key))) for key in ("folders", "keyword_length", "idle")] == [
        f"{file}:2", "--length", "default",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["1.5.1", "-", "1e3", ""])
def test_invalid_number_in_the_environment_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="MARKPOST_IMAP_FOLDERS"):
        loader.load(Settings, None, {"MARKPOST_IMAP_FOLDERS": value})


def test_each_key_has_its_line() -> None:
    text = (
        '''# a = 1
a = """
b = 2
""" # c = 3
d = {e = 1, f = {g = [1, {h = 2}], "i.j" = 3}}
k.l = [
  "m = 4", # n = 5
  [6],
]
[o."p.q"]
r = 'it'''
        + "''"
        + """s = 7'
[[s]]
t = {}
u = 8
"""
    )
    text = text.replace("'it''s = 7'", "'its = 7'")
    tomllib.loads(text)
    lines = {".".join(path): line for path, line in key_lines(text).items()}
    expected = {"a": 2, "d": 5, "d.e": 5, "d.f": 5, "d.f.g": 5, "d.f.i.j": 5, "k": 6, "k.l": 6, "o": 10, "o.p.q": 10}
    assert expected.items() <= lines.items()
    assert (lines["o.p.q.r"], lines["s"], lines["s.t"], lines["s.u"]) == (11, 12, 13, 14)
    assert not {"b", "c", "n", "k.m", "m"} & set(lines)
