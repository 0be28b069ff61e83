"""A headless Chromium, driven over a pipe by the DevTools protocol and the standard library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
COMMAND = next(filter(None, map(shutil.which, NAMES)), None)
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe",
)  # fmt: skip
# Seconds: Chromium starts slowly on a busy machine.
PATIENCE = 90.0


class Browser:
    """One page of a running Chromium."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._rest, self._number = to, os.fdopen(back, "rb", 0), b"", 0
        self._session: str | None = None
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.requests: list[str] = []

    def call(self, method: str, **params: Any) -> Any:
        """The result of a command; events that arrive before it are noted."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params}
        command |= {} if self._session is None else {"sessionId": self._session}
        os.write(self._to, json.dumps(command).encode() + b"\0")
        while (reply := self._message()).get("id") != command["id"]:
            self._note(reply)
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']['message']}")
        return reply["result"]

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            content = self._back.read(1 << 20)
            if not content:
                raise RuntimeError("Chromium ended")
            self._rest += content
        first, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(first))

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        if event.get("method") == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(json.dumps(params["args"]))
        url = params.get("request", {}).get("url", "data:")
        if event.get("method") == "Network.requestWillBeSent" and not url.startswith("data:"):
            self.requests.append(url)

    def open(self, file: Path, hash: str = "", width: int = 1280, height: int = 900) -> None:
        """Load a page in a window of this size, and forget errors and requests of earlier pages."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url="about:blank")
        self.errors, self.requests = [], []
        self.call("Page.navigate", url=f"file://{file.absolute()}{hash}")
        self.wait("document.readyState === 'complete'")

    def prefer(self, scheme: str) -> None:
        """Let the system prefer ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        options = {"expression": script, "returnByValue": True, "awaitPromise": True}
        reply = self.call("Runtime.evaluate", userGesture=True, **options)
        if "exceptionDetails" in reply:
            raise RuntimeError(json.dumps(reply["exceptionDetails"]))
        return reply["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.run(script):
            if time.monotonic() > end:
                raise TimeoutError(script)
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press a key of the keyboard."""
        text = {"Enter": "\r", "Escape": ""}.get(key, key if len(key) == 1 else "")
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowDown": 40}
        code = codes.get(key, ord(key[0]))
        event = {"key": key, "text": text, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with its own profile, which ends with the block."""
    assert COMMAND is not None
    theirs, to = os.pipe()
    back, theirs_out = os.pipe()

    def as_three_and_four() -> None:
        # Copies first: one of the two may already be number 3 or 4.
        commands, replies = os.dup(theirs), os.dup(theirs_out)
        os.dup2(commands, 3)
        os.dup2(replies, 4)

    with TemporaryDirectory(prefix="skipbench-chromium-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [COMMAND, *OPTIONS, f"--user-data-dir={profile}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=as_three_and_four,
        )
        os.close(theirs)
        os.close(theirs_out)
        try:
            yield Browser(to, back)
        finally:
            os.close(to)
            process.terminate()
            process.wait(timeout=PATIENCE)
