"""Stage outputs between sites: what a site retains for others, and what it waits for itself.

The consumer asks the producer (``Fetch``), again and again until it has the tensor, is told that
there is none, or is given another source. The producer answers at once if it has the output,
parks the question if it is going to make it, and says ``Missing`` otherwise - but only after a
grace period, because the ``Assign`` that tells it so may still be under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from ranloom.training.runtime.peer_messages import Fetch, Missing, Supply
from ranloom.training.tokens import Direction, TaskKey

Output = tuple[TaskKey, Direction]
Send = Callable[[int, object, dict[str, Tensor]], None]
"""Hands a message with tensors to another site."""


class Answer(Enum):
    """What a site can say about an output that it does not have.

    ``LATER``: it is queued or running, or may come with a version that this site has not reached.
    ``UNKNOWN``: nobody told the site to make it, yet. ``NEVER``: the question is outdated, and so
    is the task of the one who asks.
    """

    LATER = "later"
    UNKNOWN = "unknown"
    NEVER = "never"


@dataclass
class _Want:
    source: int
    model_version: int
    layout_epoch: int
    asked_at_s: float


@dataclass(frozen=True)
class _Question:
    asker: int
    fetch: Fetch
    since_s: float


class Exchange:
    """Outputs retained, inputs received and questions open in both directions.

    Args:
        send: way to other sites.
        retry_s: time after which an open question is asked again.
        grace_s: time for which a question about unknown work is parked.
    """

    def __init__(self, send: Send, retry_s: float, grace_s: float) -> None:
        self.outputs: dict[Output, Tensor] = {}
        self.inputs: dict[Output, Tensor] = {}
        self._send = send
        self._retry_s = retry_s
        self._grace_s = grace_s
        self._wants: dict[Output, _Want] = {}
        self._parked: list[_Question] = []

    def clear(self) -> None:
        """Forget everything."""
        self.outputs.clear()
        self.inputs.clear()
        self._wants.clear()
        self._parked.clear()

    def evict(self) -> None:
        """Free outputs and inputs; what is open stays open."""
        self.outputs.clear()
        self.inputs.clear()

    def want(
        self, output: Output, source: int, model_version: int, layout_epoch: int, now_s: float
    ) -> None:
        """Ask ``source`` for an output unless it is here or already asked for there."""
        if output in self.inputs:
            return
        want = self._wants.get(output)
        if want is not None and want.source == source and want.model_version == model_version:
            return
        self._wants[output] = _Want(source, model_version, layout_epoch, now_s)
        self._ask(output)

    def forget_input(self, output: Output) -> None:
        """Free an input, or stop waiting for it."""
        self.inputs.pop(output, None)
        self._wants.pop(output, None)

    def retain(self, output: Output, value: Tensor) -> None:
        """Keep an output and answer those who wait for it."""
        self.outputs[output] = value
        waiting = [q for q in self._parked if (q.fetch.key, q.fetch.direction) == output]
        self._parked = [q for q in self._parked if q not in waiting]
        for question in waiting:
            self._supply(question.asker, question.fetch)

    def release(self, released: Iterable[tuple[int, int]]) -> None:
        """Free outputs and inputs of these (step, micro-batch)."""
        gone = set(released)
        self._keep(lambda key: (key.step, key.micro_batch) not in gone)

    def release_steps(self, last_step: int) -> None:
        """Free outputs and inputs of all steps up to this one."""
        self._keep(lambda key: key.step > last_step)

    def _keep(self, wanted: Callable[[TaskKey], bool]) -> None:
        self.outputs = {place: v for place, v in self.outputs.items() if wanted(place[0])}
        self.inputs = {place: v for place, v in self.inputs.items() if wanted(place[0])}
        self._wants = {place: v for place, v in self._wants.items() if wanted(place[0])}

    def on_supply(self, message: Supply, value: Tensor) -> bool:
        """Take an input; False if nobody waits for it any more (late, or from an old source)."""
        output = (message.key, message.direction)
        want = self._wants.get(output)
        if want is None or want.model_version != message.model_version:
            return False
        del self._wants[output]
        self.inputs[output] = value
        return True

    def on_missing(self, sender: int, message: Missing) -> bool:
        """Whether the answer concerns an open question to that very producer."""
        want = self._wants.get((message.key, message.direction))
        if want is None or want.source != sender:
            return False
        if want.model_version != message.model_version:
            return False
        del self._wants[message.key, message.direction]
        return True

    def on_fetch(self, sender: int, fetch: Fetch, now_s: float) -> None:
        """Answer with the output, or park the question; ``settle`` decides about parked ones."""
        if (fetch.key, fetch.direction) in self.outputs:
            self._supply(sender, fetch)
            return
        same = any(q.asker == sender and q.fetch == fetch for q in self._parked)
        if not same:
            self._parked.append(_Question(sender, fetch, now_s))

    def settle(self, answer_to: Callable[[Fetch], Answer], now_s: float) -> None:
        """Ask again what is open too long; turn down parked questions that have no answer.

        Args:
            answer_to: what the site can say about an output that it does not have.
            now_s: time.
        """
        for output, want in self._wants.items():
            if now_s - want.asked_at_s >= self._retry_s:
                want.asked_at_s = now_s
                self._ask(output)
        still: list[_Question] = []
        for question in self._parked:
            answer = answer_to(question.fetch)
            young = now_s - question.since_s < self._grace_s
            if answer is Answer.LATER or (answer is Answer.UNKNOWN and young):
                still.append(question)
            elif answer is Answer.UNKNOWN:
                fetch = question.fetch
                fence = (fetch.model_version, fetch.layout_epoch)
                self._send(question.asker, Missing(fetch.key, fetch.direction, *fence), {})
        self._parked = still

    def _ask(self, output: Output) -> None:
        want = self._wants[output]
        key, direction = output
        self._send(want.source, Fetch(key, direction, want.model_version, want.layout_epoch), {})

    def _supply(self, asker: int, fetch: Fetch) -> None:
        value = self.outputs[fetch.key, fetch.direction]
        answer = Supply(fetch.key, fetch.direction, fetch.model_version, fetch.layout_epoch)
        self._send(asker, answer, {"value": value})
