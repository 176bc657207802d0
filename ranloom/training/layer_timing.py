"""Times of single layers on the processor, by truncated-depth runs.

Stages with a few blocks are timed instead of the whole model: the difference between two depths is
the time of a block, what is left of the ends the embedding and the head. Process time on one
thread: other processes of the machine do not count, though they do slow down its caches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from ranloom.errors import InputError
from ranloom.training.layer_profile import Times
from ranloom.training.model_shapes import ModelShape
from ranloom.training.opt_model import DTYPES, MicroBatch, ModelConfig, OptStage

Done = TypeVar("Done")

SHALLOW, DEEP = 1, 3
"""Blocks of the two depths."""


@dataclass(frozen=True)
class Repetitions:
    """How often a stage runs.

    Args:
        warm_up: runs before those that count.
        measured: runs whose median counts.
    """

    warm_up: int = 5
    measured: int = 20


def measure_layers(
    shape: ModelShape, samples: int, sequence: int, dtype: str, repetitions: Repetitions
) -> dict[str, Times]:
    """Forward and backward times of embedding, block and head.

    The stages timed are the embedding before one block and before three, and one block before the
    head. A backward pass has kept activations and gives the gradient of its input, too.

    Args:
        shape: of the model.
        samples: samples of a micro-batch.
        sequence: tokens of a sample.
        dtype: of parameters and activations.
        repetitions: runs of each stage.

    Returns:
        By layer. An embedding that is lost in the scatter of the blocks counts as 0.

    Raises:
        InputError: a value out of range, or times that scatter more than a block takes.
    """
    _check(shape, sequence, dtype)
    model = ModelConfig(
        layers=DEEP + 1,
        width=shape.width,
        heads=shape.heads,
        ffn_width=4 * shape.width,
        vocabulary=shape.vocabulary,
        positions=shape.positions,
        dtype=dtype,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        shallow, deep, last = (
            _stage_times(model, first, end, samples, sequence, repetitions)
            for first, end in ((0, SHALLOW), (0, DEEP), (DEEP, DEEP + 1))
        )
    finally:
        torch.set_num_threads(threads)
    block = tuple((b - a) / (DEEP - SHALLOW) for a, b in zip(shallow, deep, strict=True))
    head = tuple(b - a for a, b in zip(block, last, strict=True))
    if min(*block, *head) <= 0.0:
        shown = f"block {min(block):.3g} s, head {min(head):.3g} s"
        raise InputError(f"{shape.name}, {samples} x {sequence}", shown, "needed: more runs")
    embedding = tuple(max(a - SHALLOW * b, 0.0) for a, b in zip(shallow, block, strict=True))
    names = ("embedding", "block", "head")
    return {
        name: (forward_s, backward_s)
        for name, (forward_s, backward_s) in zip(names, (embedding, block, head), strict=True)
    }


def _check(shape: ModelShape, sequence: int, dtype: str) -> None:
    if not 2 <= sequence <= shape.positions:
        raise InputError("sequence", sequence, f"allowed: 2 to {shape.positions}")
    if dtype not in DTYPES:
        raise InputError("dtype", dtype, f"allowed: {', '.join(DTYPES)}")


def _stage_times(
    model: ModelConfig, first: int, end: int, samples: int, sequence: int, runs: Repetitions
) -> Times:
    """Median process time of the forward and of the backward pass of a stage."""
    stage = OptStage(model, first, end, seed=0)
    tokens = torch.arange(samples * sequence).remainder(model.vocabulary).view(samples, sequence)
    batch = MicroBatch(0, tuple(range(samples)), tokens, torch.full((samples,), sequence))
    shape = (samples, sequence, model.width)
    entered = None if first == 0 else torch.ones(shape, dtype=model.torch_dtype).requires_grad_()
    wanted = [*stage.parameters(), *([] if entered is None else [entered])]
    forward_s, backward_s = [], []
    for run in range(runs.warm_up + runs.measured):
        output, took_s = _timed(partial(stage, entered, batch))
        backward = partial(torch.autograd.grad, output, wanted, torch.ones_like(output))
        _, back_s = _timed(backward)
        if run >= runs.warm_up:
            forward_s.append(took_s)
            backward_s.append(back_s)
    return statistics.median(forward_s), statistics.median(backward_s)


def _timed(work: Callable[[], Done]) -> tuple[Done, float]:
    begin_s = time.process_time()
    done = work()
    return done, time.process_time() - begin_s
