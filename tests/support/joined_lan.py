"""A head and machines that have joined it, each on a host of a small network, as a test uses them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import httpx
import msgspec

from shoal.core.status import ClusterStatus
from tests.support.lan import Command, Host

URL = "http://127.0.0.1:8000"
ANSWER_TOKENS = 1500


class Head:
    """The gateway, asked from the head itself."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def get(self, path: str) -> httpx.Response:
        return self._host.inside(lambda: httpx.get(URL + path, timeout=10))

    def is_ready(self) -> bool:
        return self.get("/health/ready").status_code == 200

    def status(self) -> ClusterStatus:
        response = self.get("/admin/status")
        assert response.status_code == 200, response.text
        return msgspec.convert(response.json(), ClusterStatus)

    def carriers(self) -> list[str]:
        """The machines that carry the stages, in order."""
        return [worker.node for worker in self.status().workers if worker.role == "stage"]

    def standbys(self) -> set[str]:
        return {worker.node for worker in self.status().workers if "standby" in worker.role}

    def chat(self, when_begun: Callable[[], None] = lambda: None) -> str:
        """A greedy answer's text. when_begun: called once some of it has come."""
        begun = threading.Event()

        def act() -> None:
            if begun.wait(30):
                when_begun()

        # Started here, not from the thread inside: that one's children are inside too.
        acting = threading.Thread(target=act)
        acting.start()
        text = self._host.inside(lambda: _stream(begun))
        acting.join()
        return text


def _stream(begun: threading.Event) -> str:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    text, num_events = "", 0
    with httpx.stream("POST", f"{URL}/v1/chat/completions", json=body, timeout=60) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            num_events += 1
            if num_events == 50:
                begun.set()
    return text


def join(host: Host, head: Host, token: str, name: str) -> Command:
    return host.start("join", head.address, "--token", token, "--name", name, "--threads", "1")
