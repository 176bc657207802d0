"""Tables of ``generate_traces``."""

from __future__ import annotations

from pipeline.stage import Column, Table

_SCENARIO = Column("scenario", "string", "name of the scenario")
_CONTROLLER = Column("controller", "string", "name of the controller")
_CELL = Column("cell", "int32", "cell of the scenario, from 0")
_UE = Column("ue", "int32", "UE of the cell, from 0")
RESERVATIONS = Table(
    "reservations.parquet",
    "Reservation over time: one row per change, the first at slot 0",
    (
        _SCENARIO,
        _CONTROLLER,
        _CELL,
        Column("slot", "int64", "effective slot, from the start of the scenario"),
        Column("sm", "int16", "SMs reserved from that slot on"),
        Column(
            "reason",
            "string",
            "what changed it: start, demand, ramp_up, fast_exit, ramp_down, safeguard, "
            "retransmission, plan, second_peak, deadline, credit",
        ),
        Column("passes", "int16", "PRB allocation passes of that slot"),
        Column("lut_mcs", "float64", "average MCS of the table query; 0: none was made"),
        Column("lut_prb", "int16", "PRBs of the table query; 0: none was made"),
    ),
)
SCENARIOS = Table(
    "scenarios.parquet",
    "Length and size of each scenario, needed to close its last interval",
    (
        _SCENARIO,
        _CELL,
        Column("slots", "int64", "slots simulated"),
        Column("ul_slots", "int64", "uplink slots among them"),
        Column("n_ue", "int32", "UEs"),
        Column("sm_max", "int16", "SMs of the device"),
        Column("slot_us", "int32", "length of a slot, us"),
    ),
)
UE_KPIS = Table(
    "ue_kpis.parquet",
    "Where every byte of a UE is at the end, and the figures of its packets",
    (
        _SCENARIO,
        _CONTROLLER,
        _CELL,
        _UE,
        Column("offered_bytes", "int64", "bytes that arrived"),
        Column("delivered_bytes", "int64", "bytes of delivered packets"),
        Column("queued_bytes", "int64", "bytes in the UE's buffer"),
        Column("in_flight_bytes", "int64", "bytes in HARQ or in reassembly"),
        Column("dropped_bytes", "int64", "bytes refused at the buffer limit"),
        Column("lost_bytes", "int64", "bytes of packets lost on the air"),
        Column("throughput_mbps", "float64", "delivered rate"),
        Column("delay_mean_ms", "float64", "mean packet delay, 0 without any"),
        Column("delay_p95_ms", "float64", "95th percentile of it"),
        Column("jitter_ms", "float64", "mean difference of successive delays"),
        Column("loss_pct", "float64", "packets dropped or lost"),
    ),
)
UE_RATES = Table(
    "ue_rates.parquet",
    "Uplink rate that the foreground (noctrl) leaves for a background upload",
    (
        _SCENARIO,
        _CELL,
        _UE,
        Column("second", "int32", "second of the scenario"),
        Column("capacity_mbps", "float64", "rate of this UE's upload if it were alone"),
        Column("served_mbps", "float64", "foreground rate delivered for this UE"),
    ),
)
CELLS = Table(
    "cells.parquet",
    "Each cell by hour; scenarios without hours have one row",
    (
        _SCENARIO,
        _CONTROLLER,
        _CELL,
        Column("hour", "int16", "hour of the day; 0 where there are none"),
        Column("mean_sm", "float64", "mean reservation over UL slots"),
        Column("spare_pct", "float64", "SMs not reserved, per cent"),
        Column("transitions", "int64", "changes of the reservation"),
        Column("prb_used_pct", "float64", "PRBs used of those of all UL slots"),
        Column("smu_pct", "float64", "SM time busy with decoding"),
        Column("offered_mbps", "float64", "offered rate"),
        Column("decode_starts", "int64", "decodes started"),
    ),
)
PERFORMANCE = Table(
    "performance.parquet",
    "Measurements of each run under their names in 3GPP TS 28.552",
    (
        _SCENARIO,
        _CONTROLLER,
        _CELL,
        Column("measurement", "string", "name in 28.552, or with the prefix X-RANLOOM"),
        Column("ue", "int32", "UE of the cell; -1: the whole cell"),
        Column("value", "float64", "value over the whole run"),
        Column("unit", "string", "unit in 28.552"),
    ),
)
OFFLINE = Table(
    "offline.parquet",
    "Reservations that no controller can beat: corners of mean reservation and transitions",
    (
        _SCENARIO,
        Column("delay_ms", "float64", "by how much later than noctrl work may be decoded"),
        Column("price_sm_slots", "float64", "of a transition, SM x UL slots"),
        Column("mean_sm", "float64", "mean reservation over UL slots"),
        Column("transitions", "int64", "changes of the reservation"),
        Column("cost_lower", "float64", "no reservation has less SM x UL slots + price"),
        Column("within", "bool", "the one with fewest transitions at the allowed mean"),
    ),
)
SHARED_GPU = Table(
    "shared_gpu.parquet",
    "Sites 0 to n of the macro scenario on one GPU",
    (
        _CONTROLLER,
        Column("sharing", "string", "summed: partitions side by side; pooled: one for all"),
        Column("cells", "int16", "cells on the GPU"),
        Column("mean_sm", "float64", "mean over UL slots"),
        Column("p999_sm", "float64", "99.9th percentile"),
        Column("peak_sm", "int32", "highest"),
        Column("transitions", "int64", "changes of the total"),
        Column("over_device_pct", "float64", "UL slots that ask for more than the device"),
    ),
)
DISTRIBUTIONS = Table(
    "distributions.parquet",
    "Distributions of the scenarios that are shown slot by slot, noctrl and weaver",
    (
        _SCENARIO,
        _CONTROLLER,
        Column("kind", "string", "delay, margin, prb_mcs or harq_round"),
        Column("ue", "int32", "UE of a delay; -1: the whole cell"),
        Column("x", "float64", "delay in ms; margin in us; PRBs; round, 0: given up"),
        Column("y", "float64", "MCS of prb_mcs, else 0"),
        Column("share", "float64", "delay: of packets that are later; else of all"),
    ),
)
TIMELINE = Table(
    "timeline.parquet",
    "Scenario 2 slot by slot, where noctrl changes most often (as Fig. 10)",
    (
        _SCENARIO,
        _CONTROLLER,
        _CELL,
        Column("ul_slot", "int64", "uplink slot number"),
        Column("slot", "int64", "absolute slot"),
        Column("demand_sm", "int16", "SMs by one table query of the slot's PRBs"),
        Column("demand_per_block_sm", "int16", "SMs summed over the slot's blocks"),
        Column("reserved_sm", "int16", "SMs reserved"),
        Column("n_prb", "int16", "PRBs granted, retransmissions included"),
        Column("mcs_mean", "float64", "PRB-weighted average MCS, 0 without PRBs"),
        Column("backlog_bytes", "int64", "reported and not scheduled before the slot"),
    ),
)
