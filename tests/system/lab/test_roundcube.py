"""Roundcube in a browser: log in, send with Bcc, read, search. PHP's own server, headless Chromium."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support import expected_conditions as shown
from selenium.webdriver.support.ui import WebDriverWait

from adapter.transport.transport import Transport
from tests.support.imapd import PASSWORD, make_store
from tests.support.messages import message
from tests.support.processes.serving import Served, served
from tests.support.stores import ADA, BOB, deliver, rows
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.needs("php", "chromium", "chromedriver")

_PROGRAM = Path("/var/lib/roundcube")
_CONFIG = """<?php
$config['db_dsnw'] = 'sqlite:///{home}/roundcube.db?mode=0600';
$config['imap_host'] = 'ssl://127.0.0.1:{imap}';
$config['smtp_host'] = 'ssl://127.0.0.1:{submission}';
$config['imap_conn_options'] = $config['smtp_conn_options'] =
    ['ssl' => ['verify_peer' => false, 'verify_peer_name' => false]];
$config['smtp_user'] = '%u';
$config['smtp_pass'] = '%p';
$config['des_key'] = 'rcmail-!24ByteDESkey*Str';
$config['plugins'] = [];
$config['skin'] = 'elastic';
$config['log_dir'] = $config['temp_dir'] = '{home}/';
$config['imap_debug'] = true;
$config['htmleditor'] = 0;
$config['draft_autosave'] = 0;
"""
_BROWSER = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1300,1000",
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    if not (_PROGRAM / "public_html").is_dir():
        pytest.skip("needs Debian's package roundcube-core")
    root = tmp_path / "store"
    make_store(root, ADA, BOB)
    with Transport.open(root) as transport:
        deliver(transport, ADA, octets=message(subject="A first letter", body="The engine waits.\r\n"))
        deliver(transport, ADA, octets=message(subject="Another one", body="About the loom.\r\n"))
    return root


@contextlib.contextmanager
def roundcube(server: Served, home: Path) -> Iterator[str]:
    home.mkdir()
    config = _CONFIG.format(home=home, imap=server.ports["imaps"], submission=server.ports["submissions"])
    (home / "config.inc.php").write_text(config, encoding="utf-8")
    for defaults in ("defaults.inc.php", "mimetypes.php"):
        (home / defaults).symlink_to(_PROGRAM / "config" / defaults)
    with contextlib.closing(sqlite3.connect(home / "roundcube.db")) as database:
        database.executescript((_PROGRAM / "SQL" / "sqlite.initial.sql").read_text(encoding="utf-8"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (home / "php.log").open("wb") as log:
        php = subprocess.Popen(
            ["php", "-S", f"127.0.0.1:{port}", "-t", str(_PROGRAM / "public_html")],
            env={**os.environ, "ROUNDCUBE_CONFIG_DIR": str(home), "PHP_CLI_SERVER_WORKERS": "4"},
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert time.monotonic() < deadline, (home / "php.log").read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/"
    finally:
        php.terminate()
        php.wait(PATIENCE)


class Page:
    """The browser, and waits for what it shows."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for option in (*_BROWSER, f"--user-data-dir={profile}"):
            options.add_argument(option)
        self.driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
        self._wait = WebDriverWait(self.driver, PATIENCE)

    def element(self, css: str) -> WebElement:
        return self._wait.until(shown.visibility_of_element_located((By.CSS_SELECTOR, css)))

    def click(self, css: str) -> None:
        self._wait.until(shown.element_to_be_clickable((By.CSS_SELECTOR, css))).click()

    def text(self, css: str, text: str) -> None:
        self._wait.until(shown.text_to_be_present_in_element((By.CSS_SELECTOR, css), text))

    def subjects(self, count: int) -> list[str]:
        """The subjects listed, once there are so many."""
        listed = (By.CSS_SELECTOR, "#messagelist tbody tr:not([style*='none']) td.subject span.subject a")
        self._wait.until(lambda driver: len(driver.find_elements(*listed)) == count)
        return [each.text for each in self.driver.find_elements(*listed)]


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    opened = Page(tmp_path / "profile")
    try:
        yield opened
    finally:
        opened.driver.save_screenshot(str(tmp_path / "last.png"))
        opened.driver.quit()


def test_roundcube_logs_in_reads_sends_and_searches(store: Path, tmp_path: Path, page: Page) -> None:
    home = tmp_path / "roundcube"
    with served(store, ("imaps", "submissions"), tmp_path) as server, roundcube(server, home) as address:
        page.driver.get(address)
        page.element("#rcmloginuser").send_keys(ADA)
        page.element("#rcmloginpwd").send_keys(PASSWORD)
        page.click("#rcmloginsubmit")
        assert sorted(page.subjects(2)) == ["A first letter", "Another one"]

        inbox = page.driver.current_url
        with Transport.open(store) as transport:
            first = next(row.uid for row in rows(transport, "INBOX", ADA))
        page.driver.get(f"{address}?_task=mail&_mbox=INBOX&_uid={first}&_action=show")
        page.text("#messagebody", "The engine waits.")

        page.driver.get(f"{address}?_task=mail&_action=compose&_to={BOB}&_bcc={ADA}")
        page.element("input[name=_subject]").send_keys("Written in a browser")
        page.element("textarea[name=_message]").send_keys("Hello Bob, this is Roundcube.")
        page.click("a.send, button.send")
        with Transport.open(store) as transport:
            deadline = time.monotonic() + PATIENCE
            while not (sent := rows(transport, "Sent", ADA)):
                assert time.monotonic() < deadline, (home / "errors.log").read_text()
                time.sleep(0.1)
            (received,) = rows(transport, "INBOX", BOB)
            assert b"Subject: Written in a browser" in transport.content.octets(received.message_id)
            assert b"Bcc" not in transport.content.octets(received.message_id)

        page.driver.get(inbox)
        page.subjects(3)
        with Transport.open(store) as transport:
            (sent_row,) = rows(transport, "Sent", ADA)  # once, and with the Bcc of Roundcube's own copy
            assert len(sent) == 1
            assert f"Bcc: {ADA}".encode() in transport.content.octets(sent_row.message_id)
        page.driver.execute_script("rcmail.env.search_mods = {'*': {'text': 1}}; rcmail.qsearch('loom');")
        assert page.subjects(1) == ["Another one"]
    refused = [line for line in (home / "imap.log").read_text().splitlines() if " S: A" in line and " OK" not in line]
    assert not [line for line in refused if " NO " in line or " BAD " in line], refused
