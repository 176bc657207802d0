"""Small federated jobs for the tests."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import numpy as np

from ranloom.federated.aggregator import Aggregator
from ranloom.federated.aggregator_config import AggregatorConfig
from ranloom.federated.cutoff import CutOff
from ranloom.federated.layout import TensorLayout
from ranloom.federated.payload import Payload, encode
from ranloom.federated.update import UpdateHeader

LAYOUT = TensorLayout.of([("lora_A", (4, 16)), ("lora_B", (16, 4))])
WAIT = CutOff("fixed", 0.0, math.inf, 1.0, 0.0)
CONFIG = AggregatorConfig(
    gnb="gnb_00",
    layout=LAYOUT,
    arithmetic="float64",
    fraction_bits=40,
    chunk_bytes=100,
    staging_bytes=100_000,
    stall_s=1e6,
    cut_off=replace(WAIT, max_s=100.0),
    wave_max_s=1e6,
    late="carry_over",
    alpha=0.5,
    max_staleness=3,
)


def values_of(ue: str, round_index: int, elements: int = LAYOUT.elements) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(f"{ue}/{round_index}".encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(elements) * 1e-3


def update(ue: str, round_index: int = 0, n_k: int = 10, dtype: str = "fp32", layout=LAYOUT):
    payload = encode(values_of(ue, round_index, layout.elements), dtype)
    return header_of(ue, round_index, n_k, payload, layout), payload


def header_of(ue: str, round_index: int, n_k: int, payload: Payload, layout=LAYOUT):
    return UpdateHeader(
        update_id=f"job/{round_index}/{ue}",
        ue=ue,
        round=round_index,
        n_k=n_k,
        dtype=payload.dtype,
        exponent=payload.exponent,
        layout_digest=layout.digest,
        payload_sha256=hashlib.sha256(payload.data).hexdigest(),
    )


def chunks_of(payload: Payload, config: AggregatorConfig = CONFIG) -> list[bytes]:
    data, size = bytes(payload.data), config.chunk_bytes
    return [data[at : at + size] for at in range(0, len(data), size)]


def send(machine: Aggregator, header: UpdateHeader, payload: Payload, now_s: float):
    answer = machine.offer(header, now_s)
    for index, data in enumerate(chunks_of(payload, machine.config)):
        answer = machine.chunk(header.update_id, index, data, now_s)
    return answer


def started(*ues: str, **changes) -> Aggregator:
    machine = Aggregator(replace(CONFIG, **changes))
    for ue in ues:
        machine.attach(ue, 0.0)
    machine.begin_round(0, 0.0, set(ues))
    return machine
