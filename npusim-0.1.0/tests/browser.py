"""A headless Chromium, driven through its own pipe: nothing but the browser has to be there.

Messages of the DevTools protocol go to file descriptor 3 and come from 4, each ended by a zero
byte (chromium, content/browser/devtools/devtools_pipe_handler.cc).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = "chromium, which this test drives, is not installed"
PATIENCE_S = 60.0


class Browser:
    """One page; *profile* is an empty folder of its own."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None, MISSING
        read_by_it, self._to = os.pipe()
        self._from, written_by_it = os.pipe()
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
        size = "--window-size=1300,1800"
        command = [CHROMIUM, *flags, size, f"--user-data-dir={profile}", "about:blank"]
        wired = f'exec "$@" 3<&{read_by_it} 4>&{written_by_it}'
        self._process = subprocess.Popen(
            ["bash", "-c", wired, "chromium", *command],
            pass_fds=(read_by_it, written_by_it),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_by_it)
        os.close(written_by_it)
        self._count = 0
        self._rest = b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        os.close(self._to)
        os.close(self._from)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], PATIENCE_S)
            assert ready, "the browser is silent"
            more = os.read(self._from, 1 << 16)
            assert more, "the browser is gone"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command; what happens meanwhile is kept in `events`."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._count:
                assert "error" not in found, found["error"]
                answer: dict[str, Any] = found["result"]
                return answer
            self.events.append(found)

    def sized(self, width: int, height: int, scheme: str) -> None:
        """Show pages in a window of *width* and *height*, light or dark as *scheme* says."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, path: Path) -> None:
        """Load the file at *path* and wait until it is there."""
        before = len(self.events)
        self.call("Page.navigate", url=path.as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events[before:]):
            self.events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        """The value of *expression* on the page, or what it promises."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def point(self, css: str, x: float, y: float, *, click: bool = False) -> None:
        """Move the mouse to *x*, *y* within the element, and click there if asked."""
        self.evaluate(f"document.querySelector({css!r}).scrollIntoView({{block: 'center'}})")
        left, top = self.evaluate(
            f"(() => {{ const box = document.querySelector({css!r}).getBoundingClientRect();"
            " return [box.left, box.top]; })()"
        )
        at = {"x": left + x, "y": top + y}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    @property
    def requests(self) -> list[str]:
        """Where the page asked for anything, itself included."""
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    @property
    def complaints(self) -> list[str]:
        """What the console shows."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(e["params"]) for e in self.events if e.get("method") in kinds]
