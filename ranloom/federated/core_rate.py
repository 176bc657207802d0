"""How fast this machine's core takes updates in."""

from __future__ import annotations

import hashlib
import math
import time

import numpy as np

from ranloom.federated.aggregator import Aggregator
from ranloom.federated.aggregator_config import AggregatorConfig
from ranloom.federated.cutoff import CutOff
from ranloom.federated.layout import TensorLayout
from ranloom.federated.payload import encode
from ranloom.federated.update import Counted, UpdateHeader


def measure_core_gbytes_per_s(dtype: str, elements: int = 4_000_000, repeats: int = 3) -> float:
    """Payload bytes per CPU second that an aggregator stages, hashes, checks and adds, in GB/s.

    Args:
        dtype: wire format of the updates.
        elements: values in an update.
        repeats: updates; the fastest counts.
    """
    layout = TensorLayout.of([("flat", (elements,))])
    payload = encode(np.random.default_rng(0).standard_normal(elements), dtype)
    data, size = bytes(payload.data), 1 << 20
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    names = [f"ue{number}" for number in range(repeats)]
    machine = Aggregator(
        AggregatorConfig(
            gnb="gnb",
            layout=layout,
            arithmetic="float64",
            fraction_bits=40,
            chunk_bytes=size,
            staging_bytes=len(data),
            stall_s=1.0,
            cut_off=CutOff("fixed", 0.0, 1.0, 1.0, 0.0),
            wave_max_s=1.0,
            late="carry_over",
            alpha=0.0,
            max_staleness=1,
        )
    )
    for name in names:
        machine.attach(name, 0.0)
    machine.begin_round(0, 0.0, set(names))
    best_s = math.inf
    for name in names:
        digest = hashlib.sha256(data).hexdigest()
        header = UpdateHeader(name, name, 0, 1, dtype, payload.exponent, layout.digest, digest)
        machine.offer(header, 0.0)
        began_s = time.process_time()
        for index, chunk in enumerate(chunks):
            answer = machine.chunk(name, index, chunk, 0.0)
        best_s = min(best_s, time.process_time() - began_s)
        assert isinstance(answer, Counted)
    return len(data) / best_s / 1e9
