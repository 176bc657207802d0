"""The gNB aggregator as a process.

``python -m ranloom.federated.server --config gnb.json --state gnb.sqlite --ue tcp://127.0.0.1:5601
--control tcp://127.0.0.1:5602`` serves UEs on one socket and the core on the other (``:0`` picks
a free port; the ports are printed). Only loopback and ``ipc://`` addresses are accepted: the
protocol carries no authentication, which in a RAN is the bearer's task.

The process may be killed at any time: every answer that it has given is in the database.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import zmq

from ranloom.errors import InputError
from ranloom.federated import protocol
from ranloom.federated.accumulator import Accumulator
from ranloom.federated.aggregator import Aggregator
from ranloom.federated.aggregator_config import AggregatorConfig
from ranloom.federated.journal import Journal
from ranloom.federated.ledger import STAGED
from ranloom.federated.payload import WIRE_DTYPES, encode, peak_magnitude
from ranloom.federated.protocol import ProtocolError, encode_message
from ranloom.federated.server_config import read_config
from ranloom.federated.update import Accepted, Answer, Counted, Stored

_GROUP = 64  # events in one commit, at most
_LONGEST_WAIT_S = 1.0
_HIGH_WATER = 16  # messages queued per peer: with the chunk size, a bound of memory
_LOOPBACK = ("tcp://127.0.0.1:", "tcp://[::1]:", "ipc://")


class Server:
    """Sockets, journal and aggregator.

    Args:
        config: of the aggregator.
        journal: its durable state.
        ue_endpoint: where UEs connect.
        control_endpoint: where the core connects.

    Raises:
        InputError: an endpoint that is not local or cannot be bound.
    """

    def __init__(
        self, config: AggregatorConfig, journal: Journal, ue_endpoint: str, control_endpoint: str
    ) -> None:
        self.config, self.journal = config, journal
        self.machine: Aggregator = journal.load()
        self.malformed = 0
        self._context = zmq.Context()
        most = config.chunk_bytes + protocol.MAX_HEADER_BYTES
        self.ue = self._bind("--ue", ue_endpoint, most)
        self.control = self._bind(
            "--control", control_endpoint, config.staging_bytes + protocol.MAX_HEADER_BYTES
        )
        self._running = True

    def _bind(self, option: str, endpoint: str, most_bytes: int) -> zmq.Socket:
        if not endpoint.startswith(_LOOPBACK):
            raise InputError(option, endpoint, f"allowed: {', '.join(_LOOPBACK)}...")
        socket = self._context.socket(zmq.ROUTER)
        # libzmq closes the connection of a peer that sends more, before it is in memory
        socket.setsockopt(zmq.MAXMSGSIZE, most_bytes)
        socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
        socket.setsockopt(zmq.SNDHWM, _HIGH_WATER)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise InputError(option, endpoint, f"allowed: a free address ({error})") from None
        return socket

    def endpoints(self) -> tuple[str, str]:
        """Addresses as bound, for UEs and for the core."""
        return (
            self.ue.getsockopt_string(zmq.LAST_ENDPOINT),
            self.control.getsockopt_string(zmq.LAST_ENDPOINT),
        )

    def stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Leave :meth:`run` after the group of events in hand."""
        self._running = False

    def run(self) -> None:
        """Serve until stopped."""
        poller = zmq.Poller()
        poller.register(self.ue, zmq.POLLIN)
        poller.register(self.control, zmq.POLLIN)
        while self._running:
            wait_s = min(_LONGEST_WAIT_S, max(0.0, self.machine.due_s() - self._now_s()))
            try:
                ready = dict(poller.poll(int(wait_s * 1000) + 1))
            except InterruptedError:
                continue
            self._serve_group([s for s in (self.control, self.ue) if s in ready])
        self._context.destroy(linger=0)

    def _now_s(self) -> float:
        # the wall clock goes on across restarts; it may be set back, the aggregator's may not
        return max(time.time(), self.machine.now_s)

    def _serve_group(self, sockets: list[zmq.Socket]) -> None:
        """Handle what has come, commit once, then answer."""
        if not sockets and self.machine.due_s() > self._now_s():
            return
        answers: list[tuple[zmq.Socket, list[bytes]]] = []
        self.journal.begin()
        for socket in sockets:
            for _ in range(_GROUP):
                try:
                    peer, *frames = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                answers.append((socket, [peer, *self._answer(frames, socket is self.control)]))
        self.machine.tick(self._now_s())
        self.journal.commit(self.machine)
        for socket, frames in answers:
            # a peer that is gone or does not read will ask again
            with contextlib.suppress(zmq.ZMQError):
                socket.send_multipart(frames, zmq.NOBLOCK)

    def _answer(self, frames: list[bytes], control: bool) -> list[bytes]:
        try:
            request, data = protocol.parse(frames, control=control)
            fields, frame = self._handle(request, data)
        except ProtocolError as error:
            self.malformed += 1
            number = protocol.request_number(frames)
            return [encode_message("malformed", max(number, 0), detail=str(error))]
        except InputError as error:
            return [encode_message("rejected", request.request, detail=str(error))]
        header = encode_message(fields.pop("kind"), request.request, **fields)
        return [header] if frame is None else [header, frame]

    def _handle(
        self, request: protocol.UeRequest | protocol.ControlRequest, data: bytes
    ) -> tuple[dict[str, Any], bytes | None]:
        """Fields of the answer, ``kind`` among them, and its frame."""
        machine, now_s = self.machine, self._now_s()
        match request:
            case protocol.Offer():
                header = request.header.header()
                answer = machine.offer(header, now_s)
                entry = machine.ledger.get(header.update_id)
                if isinstance(answer, Accepted) and entry is not None and not entry.chunks:
                    self.journal.forget_chunks(header.update_id)
                return _fields(answer), None
            case protocol.Chunk():
                answer = machine.chunk(request.update_id, request.index, data, now_s)
                if isinstance(answer, Stored | Counted):
                    self.journal.put_chunk(request.update_id, request.index, data)
                return _fields(answer), None
            case protocol.Withdraw():
                return _fields(machine.withdraw(request.update_id, now_s)), None
            case protocol.Describe():
                return self._describe(), None
            case protocol.Attach():
                return self._attach(request, data, now_s), None
            case protocol.Detach():
                context = machine.detach(request.ue, now_s, keep_chunks=request.keep_chunks)
                document, frame = protocol.hand_over_document(context)
                return {"kind": "detached", "context": document}, frame
            case protocol.BeginRound():
                if request.round != machine.round:  # else asked again after a lost answer
                    machine.begin_round(request.round, now_s, set(request.expected))
                return {"kind": "begun"}, None
            case protocol.NextWave():
                stored = self.journal.oldest_wave()
                if stored is None:
                    return {"kind": "no_wave"}, None
                return {"kind": "wave", "wave": stored.document}, stored.sums
            case protocol.ShipWave():
                known = self.journal.ship(request.round, request.index)
                return {"kind": "shipped", "known": known}, None
            case protocol.Status():
                return self._status(), None

    def _attach(self, request: protocol.Attach, data: bytes, now_s: float) -> dict[str, Any]:
        context = None
        if request.context is not None:
            context = protocol.hand_over(request.context, data)
        self.machine.attach(request.ue, now_s, context)
        for entry in self.machine.ledger:
            if entry.header.ue == request.ue and entry.state == STAGED:
                for number, chunk in entry.chunks.items():
                    self.journal.put_chunk(entry.header.update_id, number, chunk)
        return {"kind": "attached"}

    def _describe(self) -> dict[str, Any]:
        layout = self.config.layout
        return {
            "kind": "description",
            "gnb": self.config.gnb,
            "tensors": [(t.name, list(t.shape)) for t in layout.tensors],
            "layout_digest": layout.digest,
            "chunk_bytes": self.config.chunk_bytes,
            "round": self.machine.round,
            "collecting": self.machine.collecting,
        }

    def _status(self) -> dict[str, Any]:
        return {
            "kind": "status",
            "round": self.machine.round,
            "collecting": self.machine.collecting,
            "account": asdict(self.machine.ledger.account),
            "refusals": dict(sorted(self.machine.refusals.items())),
            "malformed": self.malformed,
            "staged_bytes": self.machine.ledger.staged_bytes,
            "waiting_samples": self.machine.waiting_samples(),
            "waves_waiting": self.journal.waves_waiting(),
        }


def load_kernels(config: AggregatorConfig) -> None:
    """Compile or load what the first update would otherwise wait for."""
    for dtype in WIRE_DTYPES:
        if dtype != "fix64":
            payload = encode(np.zeros(1), dtype)
            sums = Accumulator(1, config.arithmetic, config.fraction_bits)
            sums.add(payload, 1.0, peak_magnitude(payload))


def _fields(answer: Answer) -> dict[str, Any]:
    return {"kind": type(answer).__name__.lower(), **asdict(answer)}


def main(arguments: list[str] | None = None) -> int:
    """Run a server; exit code 2 with one line for input that cannot be used."""
    parser = argparse.ArgumentParser(prog="ranloom.federated.server", description="gNB aggregator")
    parser.add_argument("--config", type=Path, required=True, help="JSON file, see the docs")
    parser.add_argument("--state", type=Path, required=True, help="SQLite database, kept")
    parser.add_argument("--ue", default="tcp://127.0.0.1:0", help="address for UEs")
    parser.add_argument("--control", default="tcp://127.0.0.1:0", help="address for the core")
    parser.add_argument(
        "--sync",
        choices=("full", "normal"),
        default="full",
        help="full: acknowledged data survives a power cut; normal: a kill of the process",
    )
    options = parser.parse_args(arguments)
    try:
        config = read_config(options.config)
        journal = Journal(options.state, config, power_loss_safe=options.sync == "full")
        server = Server(config, journal, options.ue, options.control)
        load_kernels(config)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, server.stop)
    signal.signal(signal.SIGINT, server.stop)
    ue, control = server.endpoints()
    print(f"ue {ue}\ncontrol {control}", flush=True)
    server.run()
    journal.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
