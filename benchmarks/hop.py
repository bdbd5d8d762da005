"""One hop beside the same bytes over plain TCP and over TLS: round trips between two processes.

    python -m benchmarks.hop

Half a round trip of Shoal's channel (ZeroMQ with CURVE, msgpack, a wake-up of the poller) next to
blocking sockets that do nothing else. The bytes are boundary rows of Qwen2.5 1.5B: one token's, eight
tokens', and a prefill chunk's. TLS needs `openssl` for a certificate.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import socket
import ssl
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from shoal.core.placement import Endpoint, WorkerId
from shoal.wire.channel import Channel
from shoal.wire.curve import SecureContext
from shoal.wire.messages import Close, Received

ROW_WIDTH = 1536
NUM_ROWS = (1, 8, 128)
ROUNDS = 300
HERE, THERE = WorkerId("here"), WorkerId("there")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {"Shoal": over_channel(), "raw TCP": over_sockets(None)}
    if shutil.which("openssl"):
        with tempfile.TemporaryDirectory() as folder:
            found["TLS"] = over_sockets(_certificate(Path(folder)))
    for name, hops_us in found.items():
        print(f"{name:8}", *(f"{4 * ROW_WIDTH * n:>8,} bytes: {us:7.0f} us" for n, us in hops_us.items()))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


# ---------------------------------------------------------------- Shoal's channel


def over_channel() -> dict[int, float]:
    """Half a round trip in microseconds, median, by number of rows."""
    secure = SecureContext()
    channel = Channel(secure, "127.0.0.1")
    parent, child = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_echo_channel, args=(child, channel.endpoint), daemon=True
    )
    process.start()
    channel.set_peers({THERE: parent.recv()})
    parent.send("go")

    def trip(rows: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> None:
        channel.send(THERE, Received(1, 1, HERE), rows)
        while not channel.receive(1.0):
            pass

    hops_us = {n: _half_trip_us(lambda n=n: trip(np.zeros((n, ROW_WIDTH), np.float32))) for n in NUM_ROWS}  # type: ignore[misc]
    channel.send(THERE, Close((1,)))
    process.join()
    channel.close()
    secure.close()
    return hops_us


def _echo_channel(pipe: Connection, driver: Endpoint) -> None:
    secure = SecureContext()
    channel = Channel(secure, "127.0.0.1")
    channel.set_peers({HERE: driver})
    pipe.send(channel.endpoint)
    pipe.recv()
    while True:
        for arrival in channel.receive(1.0):
            if isinstance(arrival.message, Close):
                channel.close()
                secure.close()
                return
            channel.send(HERE, Received(1, 1, THERE), arrival.rows(ROW_WIDTH))


# ---------------------------------------------------------------- plain sockets


def over_sockets(certificate: Path | None) -> dict[int, float]:
    """The same over blocking sockets; over TLS with a certificate and key in one file."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        process = multiprocessing.get_context("fork").Process(
            target=_echo_socket, args=(listening, certificate), daemon=True
        )
        process.start()
        plain = socket.create_connection(listening.getsockname())
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = plain if certificate is None else _tls_client().wrap_socket(plain)

    def trip(payload: bytes) -> None:
        stream.sendall(len(payload).to_bytes(8, "little") + payload)
        _read(stream, 8 + len(payload))

    hops_us = {n: _half_trip_us(lambda n=n: trip(bytes(4 * ROW_WIDTH * n))) for n in NUM_ROWS}  # type: ignore[misc]
    stream.close()
    process.join()
    return hops_us


def _echo_socket(listening: socket.socket, certificate: Path | None) -> None:
    plain, _ = listening.accept()
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream: socket.socket = plain
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        stream = context.wrap_socket(plain, server_side=True)
    while head := _read(stream, 8):
        stream.sendall(head + _read(stream, int.from_bytes(head, "little")))


def _read(stream: socket.socket, num_bytes: int) -> bytes:
    """Empty where the other side has closed."""
    pieces, left = [], num_bytes
    while left:
        piece = stream.recv(left)
        if not piece:
            return b""
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _tls_client() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is timed, not trusted
    return context


def _certificate(folder: Path) -> Path:
    path = folder / "pair.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-nodes", "-subj", "/CN=hop", "-days", "1", "-keyout", str(path), "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    if b"CERTIFICATE" not in path.read_bytes() or b"PRIVATE" not in path.read_bytes():
        raise SystemExit("openssl wrote no certificate with its key")
    return path


def _half_trip_us(trip: Callable[[], None]) -> float:
    for _ in range(20):
        trip()
    times_s = []
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        trip()
        times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s) * 1e6 / 2


if __name__ == "__main__":
    main()
