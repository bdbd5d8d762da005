"""A machine's connection to the head: beats, and the files that the head has it fetch.

One thread owns the socket. What the head decides about the machine comes out as `happenings`; what
it wants done meanwhile (fetch a file, end a worker) is done here.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shoal.core.errors import FetchError, ShoalError
from shoal.core.join_token import JoinToken
from shoal.model.store import SliceStore
from shoal.wire.join import HeadArrival, JoinClient, LinkNews
from shoal.wire.join_messages import (
    CHUNK_BYTES,
    Alive,
    Ask,
    Beat,
    CannotHave,
    Chunk,
    Closing,
    EndWorker,
    FromHead,
    FromNode,
    Have,
    Joined,
    Left,
    Offer,
    Refused,
    Welcome,
)

BEAT_S = 0.25
HEAD_PATIENCE_S = 5.0  # without an answer to any beat
CHUNK_PATIENCE_S = 30.0
CHUNKS_ASKED_AT_ONCE = 8
STOP_DEADLINE_S = 3.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeadSilent:
    """Nothing was heard from the head for long."""


Happening = Welcome | Refused | Joined | Left | Closing | HeadSilent | LinkNews


class JoinLink:
    """free_bytes: asked before each beat. end_worker: ends the process of a worker. fetched: told of
    progress, with a file's name and its bytes so far and in all."""

    def __init__(
        self,
        token: JoinToken,
        address: str,
        port: int,
        store: SliceStore,
        free_bytes: Callable[[], int],
        end_worker: Callable[[int], None],
        fetched: Callable[[str, int, int], None] = lambda name, num_done, num_bytes: None,
    ) -> None:
        self.happenings: queue.SimpleQueue[Happening] = queue.SimpleQueue()
        self._client = JoinClient(token, address, port)
        self._store = store
        self._free_bytes = free_bytes
        self._end_worker = end_worker
        self._fetched = fetched
        self._to_send: deque[FromNode] = deque()
        self._chunks: dict[str, queue.SimpleQueue[tuple[int, bytes] | None]] = {}
        self._beats = False
        self._heard_s = time.monotonic()
        self._stopping = threading.Event()
        self._closing = threading.Lock()  # nobody wakes a socket that has been closed
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="shoal-link", daemon=True)
        self._thread.start()

    def send(self, message: FromNode) -> None:
        """From any thread."""
        self._to_send.append(message)
        self._wake()

    def close(self) -> None:
        """Idempotent."""
        self._stopping.set()
        self._wake()
        self._thread.join(STOP_DEADLINE_S)

    def _wake(self) -> None:
        with self._closing:
            if not self._is_closed:
                self._client.wake()

    # ------------------------------------------------------------ the link's thread

    def _run(self) -> None:
        next_beat_s = time.monotonic()
        try:
            while not self._stopping.is_set():
                arrivals, news = self._client.receive(next_beat_s - time.monotonic())
                for arrival in arrivals:
                    self._heard_s = time.monotonic()
                    self._take(arrival)
                for item in news:
                    self.happenings.put(item)
                while self._to_send:
                    self._client.send(self._to_send.popleft())
                now_s = time.monotonic()
                if now_s >= next_beat_s:
                    next_beat_s = now_s + BEAT_S
                    self._beat(now_s)
        finally:
            for chunks in list(self._chunks.values()):
                chunks.put(None)
            with self._closing:
                self._is_closed = True
                self._client.close()

    def _beat(self, now_s: float) -> None:
        if not self._beats:
            return
        self._client.send(Beat(self._free_bytes()))
        if now_s - self._heard_s > HEAD_PATIENCE_S:
            self._beats = False
            self.happenings.put(HeadSilent())

    def _take(self, arrival: HeadArrival) -> None:
        message: FromHead = arrival.message
        match message:
            case Alive():
                pass
            case Offer():
                if message.name not in self._chunks:
                    self._chunks[message.name] = queue.SimpleQueue()
                    threading.Thread(
                        target=self._fetch, args=(message,), name="shoal-fetch", daemon=True
                    ).start()
            case Chunk(name, offset):
                if name in self._chunks and arrival.payload is not None:
                    self._chunks[name].put((offset, arrival.payload))
            case EndWorker(pid):
                threading.Thread(
                    target=self._end_worker, args=(pid,), name="shoal-end-worker", daemon=True
                ).start()
            case Welcome():
                self._beats = True
                self.happenings.put(message)
            case Refused() | Left() | Closing():
                self._beats = False
                self.happenings.put(message)
            case Joined():
                self.happenings.put(message)

    # ------------------------------------------------------------ fetching, in threads of their own

    def _fetch(self, offer: Offer) -> None:
        try:
            path = self._store.fetched_path(
                offer.name, offer.num_bytes, offer.sha256, lambda: self._receive_chunks(offer)
            )
        except ShoalError as error:
            logger.error("cannot hold %s: %s", offer.name, error)
            answer: FromNode = CannotHave(offer.name, error.message)
        except OSError as error:
            answer = CannotHave(offer.name, str(error))
        else:
            answer = Have(offer.name, str(path))
        del self._chunks[offer.name]
        self.send(answer)

    def _receive_chunks(self, offer: Offer) -> Iterator[bytes]:
        """Ask for a few chunks ahead, so that the link is never idle; they come in order."""
        chunks = self._chunks[offer.name]
        offsets = range(0, offer.num_bytes, CHUNK_BYTES)
        for offset in offsets[:CHUNKS_ASKED_AT_ONCE]:
            self.send(Ask(offer.name, offset))
        for index, expected in enumerate(offsets):
            try:
                received = chunks.get(timeout=CHUNK_PATIENCE_S)
            except queue.Empty:
                received = None
            if received is None or received[0] != expected:
                raise FetchError(f"{offer.name} stopped coming after {expected} of {offer.num_bytes} bytes.")
            if index + CHUNKS_ASKED_AT_ONCE < len(offsets):
                self.send(Ask(offer.name, offsets[index + CHUNKS_ASKED_AT_ONCE]))
            yield received[1]
            self._fetched(offer.name, expected + len(received[1]), offer.num_bytes)
