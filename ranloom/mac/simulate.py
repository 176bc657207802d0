"""Run a cell: traffic and channel in, reservations and deliveries out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.mac.bsr import bsr_levels
from ranloom.mac.cell import run_cell
from ranloom.mac.config import DEMANDS, CellConfig
from ranloom.mac.controllers.decision import DECISION, PLAN, SECOND_PEAK, START
from ranloom.mac.controllers.dispatch import (
    KIND_NOCTRL,
    KIND_PLANNED,
    KIND_WEAVER,
    KIND_WEAVER_PLUS,
    Controllers,
)
from ranloom.mac.controllers.noctrl import NoCtrl
from ranloom.mac.controllers.planned import Planned, planned
from ranloom.mac.controllers.registry import ControllerSpec, check_name
from ranloom.mac.controllers.weaver import weaver
from ranloom.mac.controllers.weaver_plus import weaver_plus
from ranloom.mac.controllers.yinyangran import peak_plan, switching_plan
from ranloom.mac.gnb import gnb_state
from ranloom.mac.harq import decode_queue, harq_state
from ranloom.mac.ledger import ByteLedger, byte_ledger
from ranloom.mac.link_adaptation import link_state
from ranloom.mac.model import CellModel
from ranloom.mac.plant import plant_state
from ranloom.mac.proportional_fair import slot_grants, slot_request
from ranloom.mac.recorder import (
    CHANGE_COLUMNS,
    COUNTERS,
    SECOND_COLUMNS,
    TRACE_COLUMNS,
    UE_SECOND_COLUMNS,
    Recorder,
)
from ranloom.mac.rlc import admit_all, packets, rlc_state
from ranloom.traffic.arrivals import Arrivals
from ranloom.traffic.channel import SinrTrace

_CHANGES_PER_CHUNK = 1 << 16
SWITCHING_S = 0.3  # a repartition under MPS (paper, Table 1)


@dataclass(frozen=True, eq=False)
class Changes:
    """Reservation over time: one element per change, the first at UL slot 0.

    Attributes:
        ul_index: int64[n], UL slot from which it holds.
        slot: int64[n], the same as an absolute slot.
        sm: int64[n].
        reason: int64[n], index into ``controllers.decision.REASONS``.
        passes: int64[n], allocation passes of that slot.
        lut_mcs: float64[n], average MCS of the table query behind it, 0 where none was made.
        lut_prb: int64[n], PRBs of that query.
    """

    ul_index: NDArray[np.int64]
    slot: NDArray[np.int64]
    sm: NDArray[np.int64]
    reason: NDArray[np.int64]
    passes: NDArray[np.int64]
    lut_mcs: NDArray[np.float64]
    lut_prb: NDArray[np.int64]

    @property
    def transitions(self) -> int:
        """Changes of the reservation from one UL slot to the next."""
        return len(self.sm) - 1


@dataclass(frozen=True, eq=False)
class CellRun:
    """Result of a run.

    Attributes:
        controller: name of the controller.
        config: the cell.
        sm_max: SMs of the device.
        duration_us: simulated time.
        ul_slots: uplink slots in it.
        changes: the reservation.
        ledger: where every byte is.
        packet_ue: int64[n], UE of each packet.
        packet_time_us: int64[n], arrival.
        packet_bytes: int64[n].
        packet_delay_us: float64[n], see :mod:`ranloom.mac.rlc`; packets that have not been
            delivered hold a negative code.
        counters: one record, fields of ``cell.COUNTERS``.
        passes: int64[n], scheduled slots by number of allocation passes.
        seconds: int64[n_seconds, 4], columns ``SECOND_COLUMNS``.
        ue_seconds: int64[n_seconds, n_ue, 8], columns ``UE_SECOND_COLUMNS``.
        trace_from: first UL slot of the trace.
        trace: int64[n, 7], columns ``TRACE_COLUMNS``, empty unless asked for.
    """

    controller: str
    config: CellConfig
    sm_max: int
    duration_us: int
    ul_slots: int
    changes: Changes
    ledger: ByteLedger
    packet_ue: NDArray[np.int64]
    packet_time_us: NDArray[np.int64]
    packet_bytes: NDArray[np.int64]
    packet_delay_us: NDArray[np.float64]
    counters: NDArray
    passes: NDArray[np.int64]
    seconds: NDArray[np.int64]
    ue_seconds: NDArray[np.int64]
    trace_from: int
    trace: NDArray[np.int64]

    @property
    def mean_sm(self) -> float:
        """Mean reservation over the uplink slots."""
        held = np.diff(self.changes.ul_index, append=self.ul_slots)
        return float((held * self.changes.sm).sum() / self.ul_slots)


def _first_ul_index_of_seconds(config: CellConfig, n_seconds: int) -> NDArray[np.int64]:
    return np.array([config.ul_slots_in(k * 1_000_000) for k in range(n_seconds)], np.int64)


def _oracle_plan(spec: ControllerSpec, reference: CellRun) -> Planned:
    peaks = np.maximum(reference.seconds[:, SECOND_COLUMNS.index("demand_peak_sm")], 0)
    config = reference.config
    first = _first_ul_index_of_seconds(config, len(peaks))
    if spec.name == "yinyangran":
        index, sm = peak_plan(peaks, first)
    else:
        lead = config.ul_slots_in(round(SWITCHING_S * 1_000_000))
        index, sm = switching_plan(peaks, first, lead)
    return planned(index, sm, SECOND_PEAK, capped=False)


def _controllers(
    spec: ControllerSpec, model: CellModel, n_ue: int, reference: CellRun | None
) -> Controllers:
    check_name(spec.name, "controller")
    config, tables = model.config, model.tables
    if spec.demand not in DEMANDS:
        raise InputError("demand", spec.demand, f"allowed: {DEMANDS}")
    kind = KIND_NOCTRL
    plan = planned([0], [tables.sm_min], START, capped=True)
    if spec.constant_sm is not None:
        kind = KIND_PLANNED
        if spec.constant_sm > tables.sm_max or tables.level[spec.constant_sm] != spec.constant_sm:
            levels = sorted(set(tables.level.tolist()))
            raise InputError("controller", spec.name, f"allowed SM counts: {levels}")
        plan = planned([0], [spec.constant_sm], PLAN, capped=spec.constant_capped)
    elif spec.needs_demand:
        kind = KIND_PLANNED
        if reference is None or reference.controller != "noctrl":
            raise InputError("reference", None, f"{spec.name} needs a run of noctrl before it")
        plan = _oracle_plan(spec, reference)
    elif spec.name == "weaver":
        kind = KIND_WEAVER
    elif spec.name == "weaver_plus":
        kind = KIND_WEAVER_PLUS
    slots_per_s = 1_000_000 / config.slot_us
    ul_share = len(config.tdd.ul_slots) / config.tdd.period_slots
    return Controllers(
        kind,
        NoCtrl(
            DEMANDS.index(spec.demand),
            int(spec.hold_empty),
            np.array([tables.sm_min], np.int64),
        ),
        plan,
        weaver(
            spec.weaver,
            n_ue,
            ul_slots_per_s=slots_per_s * ul_share,
            ul_share=ul_share,
            sm_min=tables.sm_min,
            initial_mcs=config.initial_mcs,
        ),
        weaver_plus(
            spec.weaver_plus,
            model.blocks.tbs_bytes,
            ul_slots_per_s=slots_per_s * ul_share,
            open_bytes=int(bsr_levels(config.bsr_format)[-2]),
            sm_min=tables.sm_min,
            initial_mcs=config.initial_mcs,
        ),
    )


def _changes(rows: NDArray[np.float64], config: CellConfig) -> Changes:
    if len(rows) > 1 and rows[1, 0] == 0:
        rows = rows[1:]  # decided in the first UL slot: it was so from the start
    by_name = {name: rows[:, i] for i, name in enumerate(CHANGE_COLUMNS)}
    ul_index = by_name["ul_index"].astype(np.int64)
    per_period = len(config.tdd.ul_slots)
    offsets = np.array(config.tdd.ul_slots, np.int64)
    slot = ul_index // per_period * config.tdd.period_slots + offsets[ul_index % per_period]
    slot[0] = 0  # the first reservation holds from the start
    return Changes(
        ul_index,
        slot,
        by_name["sm"].astype(np.int64),
        by_name["reason"].astype(np.int64),
        by_name["passes"].astype(np.int64),
        by_name["lut_mcs"],
        by_name["lut_prb"].astype(np.int64),
    )


def _plan_rows(plan: Planned, ul_slots: int) -> NDArray[np.float64]:
    keep = plan.ul_index < ul_slots
    keep[1:] &= np.diff(plan.sm) != 0
    rows = np.zeros((int(keep.sum()), len(CHANGE_COLUMNS)))
    rows[:, 0] = plan.ul_index[keep]
    rows[:, 1] = plan.sm[keep]
    rows[:, 2] = plan.reason[keep]
    rows[:, 3] = 1
    return rows


def _trace_plan(plan: Planned, recorder: Recorder) -> None:
    """The plan's reservation also in slots that the loop skipped."""
    slots = recorder.trace_from + np.arange(len(recorder.trace))
    in_force = np.searchsorted(plan.ul_index, slots, side="right") - 1
    recorder.trace[:, TRACE_COLUMNS.index("reserved_sm")] = plan.sm[in_force]


def simulate(
    model: CellModel,
    arrivals: Arrivals,
    channel: SinrTrace,
    spec: ControllerSpec,
    seed: int,
    *,
    reference: CellRun | None = None,
    trace: tuple[int, int] = (0, 0),
) -> CellRun:
    """Simulate one cell under one controller.

    Two runs that differ in the controller alone meet the same arrivals, channel, block errors
    and decode tails.

    Args:
        model: the cell.
        arrivals: packets of its UEs; their duration is the simulated time.
        channel: SINR of these UEs; held after its last sample.
        spec: controller.
        seed: root of the run's random numbers, at least 0.
        reference: run of ``noctrl`` on the same cell and traffic, for oracles.
        trace: first UL slot and number of UL slots to record one by one.

    Raises:
        InputError: arrivals and channel differ in UEs, an unknown controller, an oracle without
            its reference, or less than one UL slot.
        AssertionError: a byte is unaccounted for.
    """
    n_ue = arrivals.n_ue
    config = model.config
    if channel.n_ue != n_ue:
        raise InputError("channel", channel.n_ue, f"needed: the {n_ue} UEs of the traffic")
    if seed < 0:
        raise InputError("seed", seed, "allowed: 0 or more")
    ul_slots = config.ul_slots_in(arrivals.duration_us)
    if ul_slots < 1:
        raise InputError("duration_us", arrivals.duration_us, "needed: at least one UL slot")
    controllers = _controllers(spec, model, n_ue, reference)
    packet = packets(arrivals.time_us, arrivals.ue, arrivals.size_bytes, n_ue)
    rlc = rlc_state(n_ue)
    harq = harq_state(n_ue, config.harq_processes)
    start_sm = int(controllers.planned.sm[0]) if controllers.kind == KIND_PLANNED else (
        model.tables.sm_min
    )  # fmt: skip
    n_seconds = -(-arrivals.duration_us // 1_000_000)
    recorder = Recorder(
        np.zeros(1, COUNTERS),
        np.zeros(spec.weaver.max_iterations + 1, np.int64),
        np.zeros((min(ul_slots, _CHANGES_PER_CHUNK) + 1, len(CHANGE_COLUMNS))),
        np.zeros(1, np.int64),
        np.array([start_sm], np.int64),
        np.zeros((n_seconds, len(SECOND_COLUMNS)), np.int64),
        np.zeros((n_seconds, n_ue, len(UE_SECOND_COLUMNS)), np.int64),
        trace[0],
        np.zeros((max(0, min(trace[1], ul_slots - trace[0])), len(TRACE_COLUMNS)), np.int64),
    )
    recorder.seconds[:, SECOND_COLUMNS.index("demand_peak_sm")] = model.tables.sm_min
    first_row = np.zeros((1, len(CHANGE_COLUMNS)))
    first_row[0, 1:3] = start_sm, START
    rows = [first_row]
    gnb, link = gnb_state(n_ue), link_state(n_ue, config.initial_mcs)
    queue, plant_memory = decode_queue(n_ue, config.harq_processes), plant_state()
    request, grants = slot_request(n_ue), slot_grants(n_ue)
    decision, chosen = np.zeros(1, DECISION), np.full(n_ue, -1, np.int64)
    at = 0
    while at < ul_slots:
        at = run_cell(
            at,
            ul_slots,
            model.rules(n_ue, seed),
            model.scheduler,
            model.link_rules,
            model.plant,
            model.tables,
            model.blocks,
            channel.sinr_db,
            channel.period_us,
            controllers,
            gnb,
            link,
            harq,
            queue,
            packet,
            rlc,
            plant_memory,
            request,
            grants,
            decision,
            chosen,
            recorder,
        )
        rows.append(recorder.changes[: recorder.n_changes[0]].copy())
        recorder.n_changes[0] = 0
    if controllers.kind == KIND_PLANNED:
        rows = [_plan_rows(controllers.planned, ul_slots)]
        _trace_plan(controllers.planned, recorder)
    admit_all(packet, config.buffer_limit_bytes, rlc)  # those after the last UL slot stay queued
    ledger = byte_ledger(packet, rlc, harq)
    assert ledger.error_bytes == 0, f"{spec.name}: {ledger.error_bytes} bytes unaccounted for"
    return CellRun(
        spec.name,
        config,
        model.tables.sm_max,
        arrivals.duration_us,
        ul_slots,
        _changes(np.concatenate(rows), config),
        ledger,
        packet.ue,
        packet.time_us,
        packet.size_bytes,
        packet.delay_us,
        recorder.counters[0],
        recorder.passes,
        recorder.seconds,
        recorder.ue_seconds,
        trace[0],
        recorder.trace,
    )
