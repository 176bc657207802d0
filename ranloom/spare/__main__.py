"""Command line: ``python -m ranloom.spare bench | publish | watch``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from ranloom.errors import InputError
from ranloom.gpu.card import load_card
from ranloom.gpu.partition import card_of, find_device
from ranloom.spare.budget import rescale
from ranloom.spare.capacity import CapacityReport, CapacityWindow
from ranloom.spare.channel import MAX_SLICES, BudgetPublisher, BudgetView
from ranloom.spare.channel_zmq import ZmqPublisher, ZmqSubscriber
from ranloom.spare.coexistence import ChainBuffers, chain_buffers, measure_profile, run_beside
from ranloom.spare.executor import SlotExecutor, TrainingDevice
from ranloom.spare.gemm import Gemm, TileModel, Tiling
from ranloom.spare.green_contexts import CudaError, chosen_budgets
from ranloom.spare.live import play, read_reservations, watch
from ranloom.spare.synthetic import TraceStatistics, synthetic_trace
from ranloom.spare.tile_profile import TileProfile, modelled_profile
from ranloom.spare.virtual_device import VirtualDevice

app = typer.Typer(
    add_completion=False, help="Training beside the RAN.", pretty_exceptions_enable=False
)

TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
VIRTUAL_REBIND_US = 10.0  # WEAVER Table 1
GATE_POLL_US = 1.0


@app.command()
def bench(
    device: Annotated[str, typer.Option(help="cuda, cuda:NUMBER, or virtual")] = "virtual",
    card: Annotated[Path | None, typer.Option(help="device card, else by name")] = None,
    cards: Annotated[Path, typer.Option(help="folder of cards")] = Path("data/cards"),
    traced: Annotated[Path, typer.Option(help="card that the SM counts below are of")] = Path(
        "data/cards/dgx_spark.yaml"
    ),
    variant: Annotated[str, typer.Option(help="streams or persistent")] = "streams",
    seconds: Annotated[float, typer.Option(help="length of the run")] = 2.0,
    slot_us: Annotated[float, typer.Option(help="slot duration")] = 500.0,
    mean_sm: Annotated[float, typer.Option(help="mean reservation")] = 14.2,
    changes_per_s: Annotated[float, typer.Option(help="changes of the reservation")] = 20.0,
    quiet_sm: Annotated[int, typer.Option(help="level between excursions")] = 8,
    peak_sm: Annotated[int, typer.Option(help="highest level")] = 24,
    m: Annotated[int, typer.Option(help="rows of a product")] = 20480,
    n: Annotated[int, typer.Option(help="columns and reduction of a product")] = 1024,
    tile_m: Annotated[int, typer.Option(help="rows of a tile")] = 128,
    tile_n: Annotated[int, typer.Option(help="columns of a tile")] = 128,
    tile_k: Annotated[int, typer.Option(help="reduction of a tile")] = 1024,
    dtype: Annotated[str, typer.Option(help="float16, bfloat16 or float32")] = "float16",
    efficiency: Annotated[float, typer.Option(help="modelled share of the tensor peak")] = 0.6,
    bandwidth_share: Annotated[float, typer.Option(help="left to training")] = 0.5,
    jitter_sigma: Annotated[float, typer.Option(help="virtual: sd of log times")] = 0.1,
    decode_us: Annotated[float, typer.Option(help="SMs held by the synthetic RAN")] = 300.0,
    decode_bytes: Annotated[int, typer.Option(help="copied before a decode")] = 1 << 20,
    ahead: Annotated[int, typer.Option(help="waves launched before looking again")] = 1,
    contexts: Annotated[int, typer.Option(help="partitions, at most 16")] = 16,
    repetitions: Annotated[int, typer.Option(help="waves profiled a budget")] = 50,
    seed: Annotated[int, typer.Option(help="of trace, jitter and matrices")] = 1,
    out: Annotated[Path | None, typer.Option(help="JSON file for the result")] = None,
) -> None:
    """Run a chain of products beside a synthetic RAN and measure what both get.

    On ``cuda`` the times are those of the GPU. On ``virtual`` tiles take modelled time and are
    not computed: that shows what the same loop decides, and measures nothing.
    """
    kind, _, number = device.partition(":")
    if kind not in ("cuda", "virtual"):
        raise InputError("device", device, "allowed: cuda, cuda:NUMBER, virtual")
    if variant not in ("streams", "persistent"):
        raise InputError("variant", variant, "allowed: streams, persistent")
    if dtype not in TYPES:
        raise InputError("dtype", dtype, f"allowed: {', '.join(TYPES)}")
    if variant == "persistent" and dtype != "float32":
        raise InputError("dtype", dtype, "allowed with persistent: float32")
    if not 0.0 < seconds <= 3600.0:
        raise InputError("seconds", seconds, "allowed: above 0, up to 3600")
    shares = {"efficiency": efficiency, "bandwidth_share": bandwidth_share}
    for name, share in shares.items():
        if not 0.0 < share <= 1.0:
            raise InputError(name, share, "allowed: above 0, up to 1")
    if not 0.0 <= jitter_sigma <= 2.0:
        raise InputError("jitter_sigma", jitter_sigma, "allowed: 0 to 2")
    found = find_device(number or "auto") if kind == "cuda" else None
    if found is not None:
        own = card_of(found, card, cards)
    else:
        own = load_card(card or cards / "l40s.yaml")
    budgets = chosen_budgets(own, contexts)
    gemm, tiling = Gemm(m, n, n), Tiling(tile_m, tile_n, tile_k)
    model = TileModel(own, efficiency, bandwidth_share, TYPES[dtype].itemsize, 1.0)
    wanted = TraceStatistics(
        mean_sm=mean_sm,
        transitions=round(changes_per_s * seconds),
        quiet_sm=quiet_sm,
        peak_sm=peak_sm,
        period_us=10 * slot_us,
        burst_transitions=0,
        burst_us=0.0,
        burst_share=0.0,
    )
    trace_card = load_card(traced)
    drawn = synthetic_trace(wanted, duration_s=seconds, slot_us=slot_us, card=trace_card, seed=seed)
    trace = rescale(drawn, trace_card.sm_count, own)
    result: dict[str, Any] = {"card": own.name, "variant": variant}
    target: TrainingDevice
    decode: Callable[[int, int], None]
    if found is None:
        result["device"] = "virtual: modelled times, no measurement"
        target, decode = _virtual(jitter_sigma, slot_us, seed), lambda _slot, _sm: None
        shape = torch.empty(2, m, n, device="meta"), torch.empty(1, n, n, device="meta")
        source = ChainBuffers(*shape).source(tiling)
        profile = modelled_profile([gemm], budgets, model, tiling)
    else:
        from ranloom.spare.gpu import open_gpu  # numba decides on import whether it simulates

        result["device"] = found.name
        buffers = chain_buffers(gemm, TYPES[dtype], torch.device("cuda", found.index), seed)
        persistent = variant == "persistent"
        gpu = open_gpu(
            found, budgets, buffers, persistent, decode_us=decode_us, decode_bytes=decode_bytes
        )
        target, decode = gpu.device, gpu.ran.decode
        source = buffers.source(tiling)
        profile = measure_profile(
            target, source, budgets, model, repetitions=repetitions, percentile=95.0
        )
        result["context_mb"] = [split.training_bytes / 1e6 for split in gpu.splits]
    executor = SlotExecutor(
        target, profile, model.bytes_per_us, slot_us, source, GATE_POLL_US, ahead
    )
    done = run_beside(
        trace, executor, target, budgets, own.sm_count, decodes=_uplink, decode=decode
    )
    target.release()
    result |= asdict(done) | {"wave_us": _waves(profile)}
    text = json.dumps(result, indent=2)
    typer.echo(text)
    if out is not None:
        out.write_text(text + "\n")


@app.command()
def publish(
    address: Annotated[str, typer.Option(help="tcp://127.0.0.1:PORT or ipc://PATH")],
    reservations: Annotated[Path, typer.Option(help="table of generate_traces")] = Path(
        "outs/generate_traces/reservations.parquet"
    ),
    scenario: Annotated[str, typer.Option(help="scenario of the trace")] = "scenario_1_scaled",
    controller: Annotated[str, typer.Option(help="controller of the trace")] = "weaver",
    cell: Annotated[int, typer.Option(help="cell of the trace")] = 0,
    card: Annotated[Path, typer.Option(help="device card")] = Path("data/cards/dgx_spark.yaml"),
    slot_us: Annotated[float, typer.Option(help="slot duration")] = 500.0,
    lead_slots: Annotated[int, typer.Option(help="announced so long before, K2")] = 4,
    repeat_s: Annotated[float, typer.Option(help="longest silence")] = 0.1,
) -> None:
    """Publish the spare budget of a trace in real time."""
    if not slot_us > 0.0 or not repeat_s > 0.0:
        raise InputError("slot_us, repeat_s", (slot_us, repeat_s), "allowed: above 0")
    if not 0 <= lead_slots <= MAX_SLICES - 2:
        raise InputError("lead_slots", lead_slots, f"allowed: 0 to {MAX_SLICES - 2}")
    device = load_card(card)
    trace = read_reservations(reservations, scenario, controller, cell, slot_us, device)
    publisher = ZmqPublisher(
        BudgetPublisher(f"cell-{cell}", time.time_ns(), device), address, repeat_s
    )
    play(trace, publisher, lead_slots=lead_slots, clock=time.monotonic, sleep=time.sleep)
    publisher.close()


@app.command("watch")
def watch_budget(
    address: Annotated[str, typer.Option(help="address of the publisher")],
    card: Annotated[Path, typer.Option(help="device card")] = Path("data/cards/dgx_spark.yaml"),
    slot_us: Annotated[float, typer.Option(help="slot duration")] = 500.0,
    lease_s: Annotated[float, typer.Option(help="how long a message is trusted")] = 0.5,
    window_s: Annotated[float, typer.Option(help="window of capacity reports")] = 1.0,
    seconds: Annotated[float, typer.Option(help="when to stop")] = 10.0,
) -> None:
    """Follow a budget: a line of JSON a change, and one a capacity report."""
    if not slot_us > 0.0 or not window_s * 1e6 >= slot_us:
        raise InputError("slot_us, window_s", (slot_us, window_s), "allowed: a window of slots")
    subscriber = ZmqSubscriber(BudgetView(lease_s, load_card(card).sm_count), address)
    slots = round(window_s * 1e6 / slot_us)
    for event in watch(
        subscriber,
        CapacityWindow(address, slots),
        slot_us=slot_us,
        report_slots=slots,
        slots=round(seconds * 1e6 / slot_us),
        clock=time.monotonic,
    ):
        found = (
            asdict(event)
            if isinstance(event, CapacityReport)
            else dict(zip(("slot", "sm"), event, strict=True))
        )
        typer.echo(json.dumps(found))
    seen = {"missed": subscriber.view.missed, "refused": dict(subscriber.view.refused)}
    typer.echo(json.dumps(seen))
    subscriber.close()


def _virtual(jitter_sigma: float, slot_us: float, seed: int) -> VirtualDevice:
    rng = np.random.default_rng(seed)
    return VirtualDevice(
        rebind_us=VIRTUAL_REBIND_US,
        factor=lambda: float(min(2.0, np.exp(jitter_sigma * rng.standard_normal()))),
        copy_us=0.0,
        slot_us=slot_us,
        compute=False,
    )


def _uplink(slot: int) -> bool:
    return slot % 10 >= 8  # the two uplink slots of DDDDDDDSUU


def _waves(profile: TileProfile) -> dict[str, float]:
    return {str(sm): float(us) for sm, us in zip(profile.levels, profile.wave_us[0], strict=True)}


def main() -> None:
    """Entry point: bad input is one line and exit code 2."""
    try:
        app(standalone_mode=True)
    except InputError as error:
        typer.echo(str(error), err=True)
        raise SystemExit(2) from None
    except CudaError as error:
        typer.echo(str(error), err=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
