"""The uplink cell: cost of a slot, of a controller, of a day, beside other simulators.

``python bench/mac.py`` prints a table and writes it into ``bench/results.json``, at the top level,
where the other benches have a group each. CPU time, best of several runs, compiled before. The
controller is timed slot by slot in one run with and without: both decide the same slot, in turn
first. Peers run in the same call if their environment exists (``bench/ran_peers/README.md``); a
peer without a figure has the reason in its place.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ranloom.gpu.card import load_card
from ranloom.gpu.latency import LatencyModel
from ranloom.lut.table import PROVENANCES, Cells, Lut
from ranloom.mac.config import CellConfig, PlantConfig
from ranloom.mac.controllers.decision import DECISION
from ranloom.mac.controllers.noctrl import NoCtrl, decide_noctrl
from ranloom.mac.controllers.registry import ControllerSpec
from ranloom.mac.controllers.weaver import WeaverParams, decide_weaver, weaver
from ranloom.mac.lut_calibration import full_buffers
from ranloom.mac.model import CellModel, cell_model
from ranloom.mac.proportional_fair import (
    add_backlogged,
    clear_request,
    slot_grants,
    slot_request,
)
from ranloom.mac.simulate import simulate
from ranloom.nr.bler import bler_curves
from ranloom.nr.segmentation import work_table
from ranloom.traffic import scenario as scenarios
from ranloom.traffic.channel import ar1
from ranloom.traffic.scenario import Source

ROOT = Path(__file__).resolve().parent.parent
LATENCY, BUDGET_US = LatencyModel(200.0, 2.332, 0.0084, 1.13), 800.0
PEERS = ROOT / ".venv-ran-peers/bin/python"
PEER_FIGURES = (
    "sionna_sys_ns_per_ue_slot",
    "sionna_sys_64_cells_ns_per_ue_slot",
    "aimm_ns_per_ue_slot",
)
S = 1_000_000
_libc = ctypes.CDLL(None)
_libc.clock_gettime.argtypes = (ctypes.c_int, ctypes.c_void_p)
_clock_gettime = _libc.clock_gettime


def default_cell() -> CellModel:
    """The cell of the default parameters, with the table of the latency model."""
    card = load_card(ROOT / "data/cards/dgx_spark.yaml")
    work = work_table(273)
    mcs, prb = (a.ravel() for a in np.meshgrid(range(29), range(1, 274), indexing="ij"))
    sm = LATENCY.min_sm(work[mcs, prb], card.levels, BUDGET_US, np.iinfo(np.int16).max)
    source = np.full(len(mcs), PROVENANCES.index("model"), np.int8)
    lut = Lut.from_cells(Cells(mcs, prb, sm, source), 29, 273, card.sm_count)
    curves = bler_curves(ROOT / "data/bler/table1.csv")
    return cell_model(CellConfig(), PlantConfig(), lut, card, curves)


def cpu_s(work: Callable[[], object], repeats: int) -> float:
    """Fewest CPU seconds of several runs."""
    best = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best


def full_buffer_ns(model: CellModel, n_ue: int, controller: str, repeats: int) -> float:
    """CPU nanoseconds per UE and UL slot, everything included."""
    duration_us = 60 * S
    slot_bytes = int(model.blocks.tbs_bytes[28, model.config.n_prb])
    arrivals = full_buffers(n_ue, duration_us, max(1, slot_bytes // 2 // n_ue))
    rng = np.random.default_rng(1)
    channel = ar1(np.linspace(12.0, 28.0, n_ue), 2.0, 2e5, duration_us, 10_000, rng)
    spec = ControllerSpec(controller)
    ul_slots = model.config.ul_slots_in(duration_us)
    return 1e9 * cpu_s(lambda: simulate(model, arrivals, channel, spec, 1), repeats) / (
        n_ue * ul_slots
    )  # fmt: skip


@njit(error_model="numpy")
def _now_ns(clock, buffer, address):
    clock(1, address)  # CLOCK_MONOTONIC
    return buffer[0] * 1_000_000_000 + buffer[1]


@njit(error_model="numpy")
def _alternate(
    live, plain, request, grants, other, decision, scheduler, tables, tbs, arrived, mcs, clock,
    buffer, address, spent,
):  # fmt: skip
    """Slots of a live scheduler; each is decided with and without the controller."""
    n_slots, n_ue = arrived.shape
    backlog = np.zeros(n_ue, np.int64)
    for j in range(n_slots):
        clear_request(request)
        for u in range(n_ue):
            backlog[u] += arrived[j, u]
            if backlog[u] > 0:
                add_backlogged(
                    request, u, backlog[u], mcs[j, u], 1.0 + u, scheduler.n_prb, scheduler, tbs
                )
        for turn in range(2):
            began = _now_ns(clock, buffer, address)
            if (turn + j) % 2 == 0:
                decide_weaver(live, request, scheduler, tables, tbs, grants, decision)
                spent[j, 1] = _now_ns(clock, buffer, address) - began
            else:
                decide_noctrl(plain, request, scheduler, tables, other, decision)
                spent[j, 0] = _now_ns(clock, buffer, address) - began
        began = _now_ns(clock, buffer, address)
        spent[j, 2] = _now_ns(clock, buffer, address) - began
        for i in range(request.head[0].n_candidates):
            if grants.rb[i] > 0:
                u = request.ue[i]
                backlog[u] -= min(backlog[u], tbs[request.mcs[i], grants.rb[i]])


def controller_ns(model: CellModel, n_ue: int, n_slots: int) -> NDArray[np.int64]:
    """[n_slots, 3] wall nanoseconds of a slot without control, with it, and of the clock alone."""
    rng = np.random.default_rng(2)
    bursts = (rng.random((n_slots, n_ue)) < 0.05) * rng.exponential(60_000, (n_slots, n_ue))
    mcs = np.clip(20 + np.cumsum(rng.integers(-1, 2, (n_slots, n_ue)), axis=0) % 9, 0, 28)
    live = weaver(
        WeaverParams(), n_ue, ul_slots_per_s=400.0, ul_share=0.2, sm_min=model.tables.sm_min,
        initial_mcs=9,
    )  # fmt: skip
    plain = NoCtrl(0, 0, np.array([model.tables.sm_min], np.int64))
    buffer = np.zeros(2, np.int64)
    spent = np.zeros((n_slots, 3), np.int64)
    arguments = (
        live, plain, slot_request(n_ue), slot_grants(n_ue), slot_grants(n_ue),
        np.zeros(1, DECISION), model.scheduler, model.tables, model.blocks.tbs_bytes,
    )  # fmt: skip
    for part in (slice(0, 10), slice(0, n_slots)):  # the first one compiles
        _alternate(
            *arguments, bursts[part].astype(np.int64), mcs[part].astype(np.int64), _clock_gettime,
            buffer, buffer.ctypes.data, spent[part],
        )  # fmt: skip
    return spent


def day(model: CellModel, source: Source, repeats: int) -> dict[str, float]:
    """A day of one cell at TRACTOR's own load: traffic drawn, then simulated under weaver."""
    began = time.process_time()
    scenario = scenarios.scenario_1(source, seed=1, duration_s=86_400.0)
    drawn_s = time.process_time() - began
    spec = ControllerSpec("weaver")

    def run() -> None:
        simulate(model, scenario.arrivals, scenario.channel, spec, 1)

    run_s = cpu_s(run, repeats)
    return {"day_of_a_cell_s": drawn_s + run_s, "day_of_a_cell_slot_loop_s": run_s}


def ten_minutes(model: CellModel, source: Source, repeats: int) -> float:
    """600 s of four UEs at a scaled load under weaver."""
    scenario = scenarios.scenario_1(source, seed=1, duration_s=600.0, load_factor=128)
    spec = ControllerSpec("weaver")
    return cpu_s(lambda: simulate(model, scenario.arrivals, scenario.channel, spec, 1), repeats)


def peers() -> dict[str, object]:
    """Figures of the peers; where there is none, why not."""
    if not PEERS.exists():
        reason = f"no {PEERS.relative_to(ROOT)}, see bench/ran_peers/README.md"
        return dict.fromkeys(PEER_FIGURES, reason)
    command = [str(PEERS), str(ROOT / "bench/ran_peers/peers.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return dict.fromkeys(PEER_FIGURES, done.stderr.strip().splitlines()[-1])
    found: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Run, print, and keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="timed runs")
    parser.add_argument("--slots", type=int, default=100_000, help="slots timed one by one")
    options = parser.parse_args()
    model = default_cell()
    source = Source("generator", ROOT / "data/traffic/tractor_like.yaml")
    results: dict[str, object] = {}
    full_buffer_ns(model, 4, "noctrl", 1)
    for n_ue in (4, 16):
        for controller in ("noctrl", "weaver", "weaver_plus"):
            name = f"ns_per_ue_ul_slot_{n_ue}" + (
                "" if controller == "noctrl" else f"_{controller}"
            )
            results[name] = full_buffer_ns(model, n_ue, controller, options.repeats)
    spent = controller_ns(model, 4, options.slots)
    clock = float(np.median(spent[:, 2]))
    for name, column in (("plain", 0), ("weaver", 1)):
        results[f"{name}_ns_p50"] = float(np.percentile(spent[:, column], 50)) - clock
        results[f"{name}_ns_p99"] = float(np.percentile(spent[:, column], 99)) - clock
    added = spent[:, 1] - spent[:, 0]
    results["controller_added_ns_p50"] = float(np.percentile(added, 50))
    results["controller_added_ns_p99"] = float(np.percentile(added, 99))
    results["ten_minutes_of_4_ues_s"] = ten_minutes(model, source, options.repeats)
    results |= day(model, source, 2)
    results |= peers()
    for name, value in results.items():
        print(f"{name:40s} {value if isinstance(value, str) else format(value, '.4g')}")
    path = ROOT / "bench/results.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(kept | results, indent=2) + "\n")


if __name__ == "__main__":
    main()
