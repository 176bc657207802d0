"""The other ends of an aggregator process: a UE that sends updates, and the core.

Both ask until they get an answer: a socket is thrown away after a time-out and the same request
goes out on a new one. The aggregator takes every request any number of times, so this is safe.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import zmq

from ranloom.errors import InputError
from ranloom.federated.journal import wave_of
from ranloom.federated.layout import TensorLayout
from ranloom.federated.payload import Payload
from ranloom.federated.protocol import encode_message
from ranloom.federated.update import UpdateHeader
from ranloom.federated.wave import Wave

FINAL = ("counted", "duplicate", "refused")
_RETRIABLE = ("payload_hash", "stalled", "no_room", "not_offered")


class NoAnswerError(TimeoutError):
    """The aggregator did not answer in time."""


class Link:
    """A request channel to one address.

    Args:
        endpoint: address of a server.
        timeout_s: how long to wait for an answer before asking again.
        give_up_s: after which :class:`NoAnswerError` is raised.
    """

    def __init__(self, endpoint: str, timeout_s: float = 1.0, give_up_s: float = 60.0) -> None:
        self.endpoint, self.timeout_s, self.give_up_s = endpoint, timeout_s, give_up_s
        self._context = zmq.Context()
        self._numbers = itertools.count(1)
        self._socket: zmq.Socket | None = None

    def close(self) -> None:
        """Close the channel."""
        self._context.destroy(linger=0)

    def ask(self, kind: str, frame: bytes | None = None, **fields: Any) -> tuple[dict, bytes]:
        """Send a request until it is answered.

        Returns:
            The answer's header and its frame (empty where there is none).

        Raises:
            NoAnswerError: nobody answered for ``give_up_s``.
            InputError: the server rejected the request or did not understand it.
        """
        until_s = time.monotonic() + self.give_up_s
        while time.monotonic() < until_s:
            number = next(self._numbers)
            message = [encode_message(kind, number, **fields)]
            if frame is not None:
                message.append(frame)
            answer = self._exchange(message, number)
            if answer is None:
                continue
            header, data = answer
            if header["kind"] in ("malformed", "rejected"):
                raise InputError(f"{kind} to {self.endpoint}", header["detail"], "see the text")
            return header, data
        raise NoAnswerError(f"{self.endpoint}: no answer to {kind} for {self.give_up_s} s")

    def _exchange(self, message: list[bytes], number: int) -> tuple[dict, bytes] | None:
        if self._socket is None:
            self._socket = self._context.socket(zmq.DEALER)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.connect(self.endpoint)
        until_s = time.monotonic() + self.timeout_s
        try:
            self._socket.send_multipart(message, zmq.NOBLOCK)
            while (left_s := until_s - time.monotonic()) > 0:
                if self._socket.poll(int(left_s * 1000) + 1):
                    frames = self._socket.recv_multipart()
                    header = json.loads(frames[0])
                    if header["request"] == number:
                        return header, frames[1] if len(frames) > 1 else b""
        except zmq.Again:
            time.sleep(min(0.05, self.timeout_s))
        self._socket.close()
        self._socket = None
        return None


class UeClient:
    """A UE's side of the protocol.

    Args:
        endpoint: the aggregator's address for UEs; changes with a hand-over.
        timeout_s: see :class:`Link`.
        give_up_s: see :class:`Link`.
        sleep: how to wait when the aggregator has no room.
    """

    def __init__(
        self,
        endpoint: str,
        timeout_s: float = 1.0,
        give_up_s: float = 60.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.link = Link(endpoint, timeout_s, give_up_s)
        self._sleep = sleep

    def close(self) -> None:
        """Close the channel."""
        self.link.close()

    def describe(self) -> dict[str, Any]:
        """What the aggregator adds up: tensors, chunk size, round."""
        return self.link.ask("describe")[0]

    def send_update(
        self, update_id: str, ue: str, round_index: int, n_k: int, payload: Payload
    ) -> dict[str, Any]:
        """Send an update until its fate is known.

        Returns:
            The last answer: ``counted``, ``duplicate`` or ``refused`` with its ``reason``.

        Raises:
            NoAnswerError: the aggregator is not there, or has had no room for ``give_up_s``.
        """
        about = self.describe()
        data, size = bytes(payload.data), about["chunk_bytes"]
        header = UpdateHeader(
            update_id=update_id,
            ue=ue,
            round=round_index,
            n_k=n_k,
            dtype=payload.dtype,
            exponent=payload.exponent,
            layout_digest=layout_of(about).digest,
            payload_sha256=hashlib.sha256(data).hexdigest(),
        )
        until_s = time.monotonic() + self.link.give_up_s
        while time.monotonic() < until_s:
            answer, _ = self.link.ask("offer", header=vars(header).copy())
            for index in answer.get("missing", ()):
                chunk = data[index * size : (index + 1) * size]
                answer, _ = self.link.ask("chunk", chunk, update_id=update_id, index=index)
                if answer["kind"] != "stored":
                    break
            if answer["kind"] in FINAL and answer.get("reason") not in _RETRIABLE:
                return answer
            self._sleep(0.05)
        raise NoAnswerError(f"{self.link.endpoint}: no room for {update_id}")


class CoreClient:
    """The core's side: rounds, mobility, waves.

    Args:
        endpoint: the aggregator's control address.
        timeout_s: see :class:`Link`.
        give_up_s: see :class:`Link`.
    """

    def __init__(self, endpoint: str, timeout_s: float = 1.0, give_up_s: float = 60.0) -> None:
        self.link = Link(endpoint, timeout_s, give_up_s)

    def close(self) -> None:
        """Close the channel."""
        self.link.close()

    def attach(self, ue: str, context: dict | None = None, chunks: bytes = b"") -> None:
        """A UE is served there from now on."""
        if context is None:
            self.link.ask("attach", ue=ue)
        else:
            self.link.ask("attach", chunks, ue=ue, context=context)

    def detach(self, ue: str, *, keep_chunks: bool) -> tuple[dict, bytes]:
        """A UE leaves; its hand-over context and chunks, for :meth:`attach` elsewhere."""
        header, chunks = self.link.ask("detach", ue=ue, keep_chunks=keep_chunks)
        return header["context"], chunks

    def begin_round(self, round_index: int, expected: list[str]) -> None:
        """Begin a round."""
        self.link.ask("begin_round", round=round_index, expected=expected)

    def status(self) -> dict[str, Any]:
        """Round, account, refusals."""
        return self.link.ask("status")[0]

    def next_wave(self) -> Wave | None:
        """The oldest wave that waits; it stays until :meth:`ship_wave`."""
        header, sums = self.link.ask("next_wave")
        return wave_of(header["wave"], sums) if header["kind"] == "wave" else None

    def ship_wave(self, wave: Wave) -> None:
        """Tell the aggregator that a wave is safe at the core."""
        self.link.ask("ship_wave", round=wave.round, index=wave.index)


def layout_of(description: dict[str, Any]) -> TensorLayout:
    """Tensors that an aggregator adds up."""
    return TensorLayout.of([(name, tuple(shape)) for name, shape in description["tensors"]])
