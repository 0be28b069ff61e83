"""A headless Chromium spoken to over a pipe in the DevTools protocol; nothing but Python's own."""

from __future__ import annotations

import base64
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
COMMAND = next((found for name in NAMES if (found := shutil.which(name))), None)
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe",
)  # fmt: skip
# Chromium starts slowly where other work is done beside it.
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
        """A command's result; what happens until it is there is noted."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": params}
        asked |= {} if self._session is None else {"sessionId": self._session}
        os.write(self._to, json.dumps(asked).encode() + b"\0")
        while (told := self._message()).get("id") != asked["id"]:
            self._note(told)
        if "error" in told:
            raise RuntimeError(f"{method}: {told['error']['message']}")
        return told["result"]

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = self._back.read(1 << 20)
            if not read:
                raise RuntimeError("Chromium ended")
            self._rest += read
        first, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(first))

    def _note(self, told: dict[str, Any]) -> None:
        params = told.get("params", {})
        if told.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        if told.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        if told.get("method") == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(json.dumps(params["args"]))
        url = params.get("request", {}).get("url", "data:")
        if told.get("method") == "Network.requestWillBeSent" and not url.startswith("data:"):
            self.requests.append(url)

    def open(self, file: Path, hash: str = "", width: int = 1280, height: int = 900) -> None:
        """Load a page anew at a size of the window; what it did before is forgotten."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url="about:blank")
        self.errors, self.requests = [], []
        self.call("Page.navigate", url=f"file://{file.absolute()}{hash}")
        self.wait("document.readyState === 'complete'")

    def prefer(self, scheme: str) -> None:
        """``light`` or ``dark``, as a system says."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        asked = {"expression": script, "returnByValue": True, "awaitPromise": True}
        told = self.call("Runtime.evaluate", userGesture=True, **asked)
        if "exceptionDetails" in told:
            raise RuntimeError(json.dumps(told["exceptionDetails"]))
        return told["result"].get("value")

    def wait(self, script: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.run(script):
            if time.monotonic() > end:
                raise TimeoutError(script)
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """A key of the keyboard."""
        text = {"Enter": "\r", "Escape": ""}.get(key, key if len(key) == 1 else "")
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowDown": 40}
        code = codes.get(key, ord(key[0]))
        told = {"key": key, "text": text, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **told)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def picture(self, file: Path) -> None:
        """What the window shows, as PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own, ended with the block."""
    assert COMMAND is not None
    theirs, to = os.pipe()
    back, theirs_out = os.pipe()

    def as_three_and_four() -> None:
        # Beyond 4 first: either may stand in the other's place.
        given, taken = os.dup(theirs), os.dup(theirs_out)
        os.dup2(given, 3)
        os.dup2(taken, 4)

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
