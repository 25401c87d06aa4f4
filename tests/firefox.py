"""An unmodified Firefox for tests of pages, through WebDriver BiDi, which it offers on a local port."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tornado.websocket import websocket_connect

PROGRAMS = ("firefox-esr", "firefox")
ABSENT = f"no Firefox: none of {', '.join(PROGRAMS)} is on the path; `apt-get install firefox-esr` installs one"
_PATIENCE = 60.0  # seconds for an answer


def find() -> str | None:
    """The program, if there is one."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Firefox:
    """One tab; `evaluate` runs an expression there, and errors of the page are in `wrong`."""

    def __init__(self, address: str) -> None:
        self.wrong: list[str] = []
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._socket = self._wait(lambda: websocket_connect(f"{address}/session", max_message_size=1 << 28))
        self._ask("session.new", {"capabilities": {}})
        self._ask("session.subscribe", {"events": ["log.entryAdded"]})
        self._tab = self._ask("browsingContext.getTree", {})["contexts"][0]["context"]

    def open(self, page: Path, width: int = 1400, height: int = 900) -> None:
        """Load a page and wait until it is drawn."""
        size = {"width": width, "height": height}
        self._ask("browsingContext.setViewport", {"context": self._tab, "viewport": size})
        self._ask(
            "browsingContext.navigate", {"context": self._tab, "url": page.resolve().as_uri(), "wait": "complete"}
        )
        self.evaluate(
            "new Promise((done) => (function ask() { window.app?.readyAt ? done() : setTimeout(ask, 20); })())"
        )

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, as JSON has it; raise AssertionError where it throws."""
        text = f"Promise.resolve({expression}).then((value) => JSON.stringify(value ?? null))"
        target = {"context": self._tab}
        found = self._ask("script.evaluate", {"expression": text, "target": target, "awaitPromise": True})
        assert found["type"] == "success", found
        return json.loads(found["result"]["value"])

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keyboard", "actions": actions}
        self._ask("input.performActions", {"context": self._tab, "actions": [source]})

    def screenshot(self, path: Path) -> None:
        path.write_bytes(
            base64.b64decode(self._ask("browsingContext.captureScreenshot", {"context": self._tab})["data"])
        )

    def close(self) -> None:
        self._socket.close()
        self._loop.close()

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        number = next(self._numbers)
        self._wait(lambda: self._socket.write_message(json.dumps({"id": number, "method": method, "params": params})))
        while True:
            answer = json.loads(self._wait(self._socket.read_message))
            if answer.get("method") == "log.entryAdded" and answer["params"]["level"] in ("error", "warn"):
                self.wrong.append(answer["params"]["text"])
            if answer.get("id") == number:
                assert answer["type"] == "success", answer
                return answer["result"]

    def _wait(self, start: Callable[[], Any]) -> Any:
        async def waited() -> Any:
            return await asyncio.wait_for(start(), _PATIENCE)

        return self._loop.run_until_complete(waited())


@contextmanager
def launched() -> Iterator[Firefox]:
    """A running Firefox with an empty profile; the caller has seen that there is one."""
    with tempfile.TemporaryDirectory() as profile:
        command = [find() or "", "--headless", "--no-remote", "--profile", profile, "--remote-debugging-port", "0"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            assert process.stderr is not None
            lines = (re.search(r"WebDriver BiDi listening on (ws://\S+)", line) for line in process.stderr)
            address = next(filter(None, lines))[1]
            browser = Firefox(address)
            yield browser
            browser.close()
        finally:
            process.kill()
            process.communicate()
