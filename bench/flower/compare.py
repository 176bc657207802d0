"""Our aggregation beside Flower's, same updates, same process, CPU seconds.

50 updates of 20 MB in float32, then in float64. Flower does not look for NaN and infinity in
updates; ``checked_*`` are our figures with that check. ``*_of_stream_pct``: bytes that adding the
updates moves a second, relative to those of ``a += b`` in the same dtype and run.

Runs in the environment of ``requirements.txt`` (``make bench-flower``), never in the main one.
Results go into ``bench/results.json`` under ``aggregation_flower``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.server.strategy.aggregate import aggregate, aggregate_inplace
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from numpy.typing import NDArray

from bench.aggregation import (
    UPDATES,
    bounds,
    cpu_s,
    make_updates,
    moved_bytes,
    ours,
    show,
    store,
    stream_add_gbytes_per_s,
)
from ranloom.federated.payload import Payload

_UPDATE_BYTES = 20_000_000


def flower_records(
    vectors: list[NDArray], weights: list[int], cuts: list[tuple[int, int]]
) -> list[RecordDict]:
    """What Flower's clients would have sent."""
    return [
        RecordDict(
            {
                "arrays": ArrayRecord(
                    {f"t{i:03d}": Array(v[a:b].copy()) for i, (a, b) in enumerate(cuts)}
                ),
                "metrics": MetricRecord({"num-examples": n}),
            }
        )
        for v, n in zip(vectors, weights, strict=True)
    ]


def beside(kind: type, wire: str, arithmetics: tuple[str, ...]) -> dict[str, float]:
    """Updates of one dtype through Flower's current function and ours.

    Args:
        kind: NumPy's type of the updates.
        wire: our name of it.
        arithmetics: of our sums; the first one has the dtype of the updates.
    """
    elements = _UPDATE_BYTES // np.dtype(kind).itemsize
    singles, weights = make_updates(UPDATES, elements)
    vectors = [v.astype(kind) for v in singles]
    records = flower_records(vectors, weights, bounds(elements))
    payloads = [Payload(wire, v.size, v.tobytes()) for v in vectors]
    name = np.dtype(kind).name
    stream = stream_add_gbytes_per_s(vectors, kind)
    figures = {f"{name}.stream_add_gbytes_per_s": stream}

    theirs = aggregate_arrayrecords(records, "num-examples")
    flat = np.concatenate([theirs[key].numpy().ravel() for key in sorted(theirs)])
    exact = ours(payloads, weights, "float64")
    rms = float(np.sqrt(np.mean(exact**2)))
    figures[f"{name}.flower_max_rel_error"] = float(np.max(np.abs(flat - exact))) / rms
    flower_s = cpu_s(lambda: aggregate_arrayrecords(records, "num-examples"))
    figures[f"{name}.flower_s"] = flower_s
    for arithmetic in arithmetics:
        off = ours(payloads, weights, arithmetic) - exact
        figures[f"{name}.ours_{arithmetic}_max_rel_error"] = float(np.max(np.abs(off))) / rms
        for stem, checked in (("ours", False), ("checked", True)):
            key = f"{name}.{stem}_{arithmetic}"
            seconds = cpu_s(lambda a=arithmetic, c=checked: ours(payloads, weights, a, checked=c))
            figures[f"{key}_s"] = seconds
            figures[f"{key}_times_faster"] = flower_s / seconds
            if arithmetic == arithmetics[0]:
                moved = UPDATES * moved_bytes(payloads[0], arithmetic, checked=checked)
                figures[f"{key}_of_stream_pct"] = 100.0 * moved / seconds / 1e9 / stream
    return figures


def older() -> dict[str, float]:
    """Flower's two earlier functions, float32."""
    vectors, weights = make_updates()
    cuts = bounds()
    status = Status(Code.OK, "")
    replies = [
        (None, FitRes(status, ndarrays_to_parameters([v[a:b] for a, b in cuts]), n, {}))
        for v, n in zip(vectors, weights, strict=True)
    ]
    legacy = [([v[a:b] for a, b in cuts], n) for v, n in zip(vectors, weights, strict=True)]
    return {
        "float32.flower_aggregate_inplace_s": cpu_s(lambda: aggregate_inplace(replies), 3),
        "float32.flower_aggregate_s": cpu_s(lambda: aggregate(legacy), 2),
    }


def main() -> None:
    """Run."""
    figures = beside(np.float32, "fp32", ("float32", "float64", "fixed64"))
    figures |= beside(np.float64, "fp64", ("float64", "fixed64")) | older()
    store("aggregation_flower", figures)
    show(figures)


if __name__ == "__main__":
    main()
