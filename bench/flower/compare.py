"""Our aggregation beside Flower's, same updates, same process, CPU seconds.

Flower does not look for NaN and infinity in updates; ``checked_*`` are our figures with that check.

Runs in the environment of ``requirements.txt`` (see README.md here), never in the main one.
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

from bench.aggregation import bounds, cpu_s, make_updates, ours, show, store
from ranloom.federated.payload import Payload

_ARITHMETICS = ("float32", "float64", "fixed64")


def double_precision() -> dict[str, float]:
    """The same in float64 on both sides: updates and sums. Every second update, for memory."""
    vectors, weights = make_updates(25)
    doubles = [v.astype(np.float64) for v in vectors]
    records = [
        RecordDict(
            {
                "arrays": ArrayRecord(
                    {f"t{i:03d}": Array(v[a:b].copy()) for i, (a, b) in enumerate(bounds())}
                ),
                "metrics": MetricRecord({"num-examples": n}),
            }
        )
        for v, n in zip(doubles, weights, strict=True)
    ]
    payloads = [Payload("fp64", v.size, v.tobytes()) for v in doubles]
    figures = {
        "flower_float64_s": cpu_s(lambda: aggregate_arrayrecords(records, "num-examples")),
        **{
            f"{name}_fp64_float64_s": cpu_s(
                lambda c=c: ours(payloads, weights, "float64", checked=c)
            )
            for name, c in (("ours", False), ("checked", True))
        },
    }
    for name in ("ours", "checked"):
        figures[f"{name}_fp64_float64_times_faster"] = (
            figures["flower_float64_s"] / figures[f"{name}_fp64_float64_s"]
        )
    return figures


def single_precision() -> dict[str, float]:
    """Updates of float32 through Flower's three functions and ours."""
    vectors, weights = make_updates()
    cuts = bounds()
    payloads = [Payload("fp32", v.size, v.tobytes()) for v in vectors]
    records = [
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
    status = Status(Code.OK, "")
    replies = [
        (None, FitRes(status, ndarrays_to_parameters([v[a:b] for a, b in cuts]), n, {}))
        for v, n in zip(vectors, weights, strict=True)
    ]
    legacy = [([v[a:b] for a, b in cuts], n) for v, n in zip(vectors, weights, strict=True)]

    theirs = aggregate_arrayrecords(records, "num-examples")
    flat = np.concatenate([theirs[key].numpy().ravel() for key in sorted(theirs)])
    mine = ours(payloads, weights, "float32")
    exact = ours(payloads, weights, "float64")
    rms = float(np.sqrt(np.mean(exact**2)))

    figures = {
        "flower_aggregate_arrayrecords_s": cpu_s(
            lambda: aggregate_arrayrecords(records, "num-examples")
        ),
        "flower_aggregate_inplace_s": cpu_s(lambda: aggregate_inplace(replies), 3),
        "flower_aggregate_s": cpu_s(lambda: aggregate(legacy), 2),
        **{
            f"{name}_{arithmetic}_s": cpu_s(
                lambda a=arithmetic, c=checked: ours(payloads, weights, a, checked=c)
            )
            for name, checked in (("ours", False), ("checked", True))
            for arithmetic in _ARITHMETICS
        },
        "flower_max_rel_error": float(np.max(np.abs(flat - exact))) / rms,
        "ours_float32_max_rel_error": float(np.max(np.abs(mine - exact))) / rms,
    }
    flower_s = figures["flower_aggregate_arrayrecords_s"]
    for name in ("ours", "checked"):
        for arithmetic in _ARITHMETICS:
            figures[f"{name}_{arithmetic}_times_faster"] = (
                flower_s / figures[f"{name}_{arithmetic}_s"]
            )
    return figures


def main() -> None:
    """Run."""
    figures = single_precision() | double_precision()
    store("aggregation_flower", figures)
    show(figures)


if __name__ == "__main__":
    main()
