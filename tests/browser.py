"""A real browser for tests of pages: headless Chromium with an empty profile.

python -m tests.browser --install    installs Debian's Chromium where there is none and that is possible; never fails
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
ABSENT = f"no browser: none of {', '.join(PROGRAMS)} is on the path; `make browser` installs one"
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
_PATIENCE = 600  # seconds for a package manager


def find() -> str | None:
    """The program, if there is one."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def install() -> str:
    """Ensure that it is installed; return what was done, or the reason for a failure."""
    if found := find():
        return f"browser: {found}"
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return f"{ABSENT}, but only as root and with apt-get"
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-qq", "--no-install-recommends", "chromium"]):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            return f"no browser: {' '.join(command)} took too long"
        if done.returncode:
            return f"no browser: {' '.join(command)} failed; tests that need one are skipped"
    return f"browser: {find()}"


@contextmanager
def launched() -> Iterator[Any]:
    """A running browser; the caller has seen that there is one."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(), args=list(_OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A page in a new tab, and everything that went wrong there: errors, messages, requests."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.wrong: list[str] = []
        self.page = browser.new_page(**{"viewport": {"width": 1400, "height": 900}, **options})
        self.page.on("console", lambda message: self.wrong.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        address = path.resolve().as_uri()
        self.page.route("**/*", lambda route: self._request(route, address))
        self.page.goto(address)

    def _dialog(self, dialog: Any) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, route: Any, address: str) -> None:
        if route.request.url == address:
            route.continue_()
        else:
            self.wrong.append(f"request: {route.request.url}")
            route.abort()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--install", action="store_true", help="install one where there is none, if possible")
    print(install() if parser.parse_args().install else find() or ABSENT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
