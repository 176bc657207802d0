"""Aggregation of LoRA updates: our streaming sums against NumPy, and against the memory bus.

``python bench/aggregation.py`` prints a table and writes it into ``bench/results.json`` under
``aggregation``. CPU seconds, best of several; the updates are distinct and do not fit the cache.
``bench/flower/compare.py`` runs the same updates through Flower, in an environment of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ranloom.federated.accumulator import Accumulator
from ranloom.federated.aggregator import Aggregator
from ranloom.federated.aggregator_config import AggregatorConfig
from ranloom.federated.cutoff import CutOff
from ranloom.federated.layout import TensorLayout
from ranloom.federated.payload import Payload, encode, peak_magnitude
from ranloom.federated.update import Counted, UpdateHeader

ROOT = Path(__file__).resolve().parent.parent
UPDATES, ELEMENTS, TENSORS = 50, 5_000_000, 128


def cpu_s(work: Callable[[], object], repeats: int = 5) -> float:
    """Fewest CPU seconds of several runs, after one to warm up."""
    work()
    best = math.inf
    for _ in range(repeats):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best


def make_updates(
    count: int = UPDATES, elements: int = ELEMENTS
) -> tuple[list[NDArray[np.float32]], list[int]]:
    """Distinct float32 updates and their sample counts."""
    rng = np.random.default_rng(7)
    vectors = [rng.standard_normal(elements, dtype=np.float32) for _ in range(count)]
    return vectors, [int(n) for n in rng.integers(50, 500, count)]


def bounds(elements: int = ELEMENTS, tensors: int = TENSORS) -> list[tuple[int, int]]:
    """Where each tensor lies in the flat vector."""
    edges = [i * elements // tensors for i in range(tensors + 1)]
    return list(itertools.pairwise(edges))


def ours(
    payloads: list[Payload], weights: list[int], arithmetic: str, *, checked: bool = True
) -> NDArray[np.float64]:
    """Streaming average; ``checked``: with the search for non-finite values in every update.

    Flower and NumPy do not search, so the like-for-like figure is the unchecked one.
    """
    total = Accumulator(payloads[0].elements, arithmetic)
    for payload, weight in zip(payloads, weights, strict=True):
        total.add(payload, float(weight), peak_magnitude(payload) if checked else 0.0)
    if arithmetic == "float32":
        return np.divide(total.total, np.float32(sum(weights)), out=total.total)
    return total.average(float(sum(weights)))


def naive_numpy(vectors: list[NDArray[np.float32]], weights: list[int]) -> NDArray[np.float32]:
    """The obvious loop: a weighted copy of each update, added in place."""
    total = np.zeros_like(vectors[0])
    for vector, weight in zip(vectors, weights, strict=True):
        total += vector * np.float32(weight)
    return total / np.float32(sum(weights))


def stacked_numpy(vectors: list[NDArray[np.float32]], weights: list[int]) -> NDArray[np.float32]:
    """One call, all updates in memory twice."""
    return np.average(np.stack(vectors), axis=0, weights=np.array(weights, np.float32))


def stream_add_gbytes_per_s(vectors: list[NDArray[np.float32]], dtype: type) -> float:
    """Memory traffic of ``a += b`` over vectors that do not fit the cache."""
    others = [v.astype(dtype) for v in vectors[:12]]
    total = np.zeros_like(others[0])

    def run() -> None:
        for other in others:
            np.add(total, other, out=total)

    return 3 * total.nbytes * len(others) / cpu_s(run) / 1e9


def moved_bytes(payload: Payload, arithmetic: str, *, checked: bool) -> int:
    """Bytes read and written when one update is added; the check reads it once more."""
    total = (4 if arithmetic == "float32" else 8) * payload.elements
    return (2 if checked else 1) * len(payload.data) + 2 * total


def state_machine(elements: int) -> tuple[Aggregator, Callable[[str, Payload, bytes, str], None]]:
    """An aggregator, and a function that sends it one update in chunks of 1 MiB."""
    layout = TensorLayout.of([("flat", (elements,))])
    config = AggregatorConfig(
        gnb="gnb",
        layout=layout,
        arithmetic="float64",
        fraction_bits=40,
        chunk_bytes=1 << 20,
        staging_bytes=8 * elements,
        stall_s=1e9,
        cut_off=CutOff("fixed", 0.0, 1e9, 1.0, 0.0),
        wave_max_s=1e9,
        late="carry_over",
        alpha=0.0,
        max_staleness=1,
    )
    machine = Aggregator(config)

    def send(ue: str, payload: Payload, data: bytes, digest: str) -> None:
        machine.attach(ue, 0.0)
        header = UpdateHeader(ue, ue, 0, 1, payload.dtype, payload.exponent, layout.digest, digest)
        machine.offer(header, 0.0)
        answer = None
        for index, at in enumerate(range(0, len(data), 1 << 20)):
            answer = machine.chunk(ue, index, data[at : at + (1 << 20)], 0.0)
        assert isinstance(answer, Counted)

    machine.attach("nobody", 0.0)
    machine.begin_round(0, 0.0, {"nobody"})
    return machine, send


def peak_memory_mb(count: int, elements: int) -> float:
    """Peak resident memory of a process that aggregates ``count`` updates, MB."""
    command = [sys.executable, __file__, "--memory", str(count), str(elements)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def memory_run(count: int, elements: int) -> None:
    """Aggregate and print the process's peak."""
    payload = encode(np.random.default_rng(0).standard_normal(elements), "fp32")
    data = bytes(payload.data)
    digest = hashlib.sha256(data).hexdigest()
    _, send = state_machine(elements)
    for number in range(count):
        send(f"ue{number}", payload, data, digest)
    # getrusage would report the parent's peak if that was higher; VmHWM begins anew with exec
    status = Path("/proc/self/status").read_text(encoding="ascii")
    print(int(status.split("VmHWM:")[1].split()[0]) / 1024)


def table() -> dict[str, float]:
    """All figures."""
    vectors, weights = make_updates()
    payloads = {"fp32": [Payload("fp32", v.size, v.tobytes()) for v in vectors]}
    for dtype in ("fp16", "int8"):
        payloads[dtype] = [encode(v, dtype) for v in vectors]
    figures = {
        "naive_numpy_float32_s": cpu_s(lambda: naive_numpy(vectors, weights)),
        "stacked_numpy_float32_s": cpu_s(lambda: stacked_numpy(vectors, weights), 2),
    }
    streams = {
        "float32": stream_add_gbytes_per_s(vectors, np.float32),
        "float64": stream_add_gbytes_per_s(vectors, np.float64),
        "fixed64": stream_add_gbytes_per_s(vectors, np.int64),
    }
    for arithmetic, stream in streams.items():
        figures[f"stream_add_{arithmetic}_gbytes_per_s"] = stream
        for dtype, some in payloads.items():
            for checked in (False, True):
                stem = f"{'checked' if checked else 'ours'}_{dtype}_{arithmetic}"
                seconds = cpu_s(
                    lambda a=arithmetic, s=some, c=checked: ours(s, weights, a, checked=c)
                )
                figures[f"{stem}_s"] = seconds
                if dtype == "fp32":
                    moved = moved_bytes(some[0], arithmetic, checked=checked) * len(some)
                    figures[f"{stem}_of_stream_pct"] = 100.0 * moved / seconds / 1e9 / stream
    exact = ours(payloads["fp32"], weights, "float64")
    rms = float(np.sqrt(np.mean(exact**2)))
    for arithmetic in ("float32", "fixed64"):
        off = ours(payloads["fp32"], weights, arithmetic) - exact
        figures[f"ours_fp32_{arithmetic}_max_rel_error"] = float(np.max(np.abs(off))) / rms
    off = naive_numpy(vectors, weights) - exact
    figures["naive_numpy_float32_max_rel_error"] = float(np.max(np.abs(off))) / rms

    payload = payloads["fp32"][0]
    data = bytes(payload.data)
    digest = hashlib.sha256(data).hexdigest()
    _, send = state_machine(ELEMENTS)
    ues = iter(range(10**6))
    figures["state_machine_20mb_update_s"] = cpu_s(
        lambda: send(f"ue{next(ues)}", payload, data, digest)
    )
    figures["of_which_sha256_s"] = cpu_s(lambda: hashlib.sha256(data).digest())
    for count in (10, 1000):
        figures[f"peak_memory_{count}_updates_mb"] = peak_memory_mb(count, 1_000_000)
    return figures


def store(name: str, figures: dict[str, float]) -> None:
    """Put figures under ``name`` into ``bench/results.json``."""
    path = ROOT / "bench" / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    results[name] = figures
    path.write_text(json.dumps(results, indent=2) + "\n")


def show(figures: dict[str, float]) -> None:
    """Print figures in two columns."""
    for name, value in figures.items():
        print(f"{name:48s} {value:12.4g}")


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", nargs=2, type=int, metavar=("COUNT", "ELEMENTS"))
    arguments = parser.parse_args()
    if arguments.memory:
        memory_run(*arguments.memory)
        return
    figures = table()
    store("aggregation", figures)
    show(figures)


if __name__ == "__main__":
    main()
