"""Training over several hosts, and times of layers.

``python -m ranloom.training {keys, coordinator, site, export, profile}``.
"""

from __future__ import annotations

import os
from datetime import date
from itertools import product
from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors.torch import save_file

from ranloom.errors import InputError
from ranloom.gpu.card import load_card
from ranloom.lut.cpu import cpu_name
from ranloom.training.checkpoint import load_checkpoint, load_stages, with_opt_names
from ranloom.training.layer_profile import LayerProfile, card_profile, write_profile
from ranloom.training.layer_timing import DEEP, SHALLOW, Repetitions, measure_layers
from ranloom.training.model_shapes import model_shape
from ranloom.training.opt_model import ModelConfig
from ranloom.training.runtime.coordinator_process import CoordinatorConfig, run_coordinator
from ranloom.training.runtime.event_log import LogWriteError
from ranloom.training.runtime.pacing import Budget
from ranloom.training.runtime.peer_messages import COORDINATOR, site_name
from ranloom.training.runtime.progress import StepBar
from ranloom.training.runtime.run_file import read_identity, read_run_file, write_keys
from ranloom.training.runtime.setup import layer_costs
from ranloom.training.runtime.site import SiteSettings
from ranloom.training.runtime.site_process import SiteConfig, run_site
from ranloom.training.runtime.spare_feed import SpareFeed
from ranloom.training.runtime.transport import LinkLimits

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)

RunArgument = Annotated[Path, typer.Argument(help="run file, the same on every host")]
FolderOption = Annotated[Path, typer.Option(help="where this process keeps its files")]
KeysOption = Annotated[Path | None, typer.Option(help="folder with the keys of this process")]
TrustedOption = Annotated[bool, typer.Option("--trusted", help="plain links: they are trusted")]


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="new folder for the keys")],
    sites: Annotated[int, typer.Option(min=1, help="number of sites")],
) -> None:
    """Make a key pair for the coordinator and for each site."""
    if folder.exists():
        raise InputError(str(folder), "exists", "allowed: a new folder")
    write_keys(folder, sites)


@app.command()
def coordinator(
    run: RunArgument,
    folder: FolderOption,
    bind: Annotated[str, typer.Option(help="address to listen at")] = "tcp://127.0.0.1:7000",
    replica: Annotated[
        Path | None, typer.Option(help="second file for the log, on storage of another host")
    ] = None,
    keys: KeysOption = None,
    trusted: TrustedOption = False,
) -> None:
    """Coordinate a run; started again on the same folder it goes on where it was."""
    described = read_run_file(run)
    identity = read_identity(_key_folder(keys, trusted), COORDINATOR)
    folder.mkdir(parents=True, exist_ok=True)
    settings = described.settings
    config = CoordinatorConfig(
        identity=identity,
        bind=bind,
        sites=described.sites,
        setup=described.setup,
        settings=settings,
        layout=described.layout,
        costs=layer_costs(described.setup),
        limits=LinkLimits(),
        folder=folder,
        heartbeat_s=described.heartbeat_s,
        gather_s=settings.control_interval_s / 100.0,
        stop_patience_s=10.0,
        give_up_s=described.give_up_s,
        log_replica=replica,
    )
    whole_steps = settings.micro_batch_limit // settings.step_micro_batches
    with StepBar(whole_steps if whole_steps > 0 else settings.max_steps) as bar:
        run_coordinator(config, bar)


@app.command()
def site(
    run: RunArgument,
    folder: FolderOption,
    number: Annotated[int, typer.Option(min=0, help="number of the site")],
    coordinator: Annotated[str, typer.Option(help="address of the coordinator")],
    tflops: Annotated[
        list[float] | None, typer.Option(help="usable compute, once for each interval")
    ] = None,
    interval_s: Annotated[float, typer.Option(help="length of an interval")] = 1.0,
    budget_from: Annotated[
        str | None, typer.Option(help="spare-budget channel to follow instead of --tflops")
    ] = None,
    tflops_per_sm: Annotated[float, typer.Option(help="usable compute of a spare SM")] = 0.0,
    card: Annotated[Path, typer.Option(help="device card of the channel")] = Path(
        "data/cards/dgx_spark.yaml"
    ),
    slot_us: Annotated[float, typer.Option(help="slot duration of the channel")] = 500.0,
    lease_s: Annotated[float, typer.Option(help="how long its messages are trusted")] = 0.5,
    window_s: Annotated[float, typer.Option(help="window of the capacity reports")] = 1.0,
    bind: Annotated[str, typer.Option(help="address to listen at")] = "tcp://127.0.0.1:*",
    device: Annotated[str, typer.Option(help="torch device")] = "cpu",
    memory_gib: Annotated[float, typer.Option(help="memory for training state")] = 4.0,
    keys: KeysOption = None,
    trusted: TrustedOption = False,
) -> None:
    """Run one site until the coordinator ends the run."""
    described = read_run_file(run)
    if number >= described.sites:
        raise InputError("--number", number, f"allowed: 0 to {described.sites - 1}")
    budget: Budget | SpareFeed
    if (tflops is None) == (budget_from is None):
        raise InputError("--tflops", tflops, "allowed: either this or --budget-from")
    if budget_from is not None:
        sm_count = load_card(card).sm_count
        budget = SpareFeed(budget_from, sm_count, tflops_per_sm, slot_us, lease_s, window_s)
    else:
        budget = Budget(tuple(tflops or ()), interval_s)
    identity = read_identity(_key_folder(keys, trusted), site_name(number))
    folder.mkdir(parents=True, exist_ok=True)
    described.checkpoints.mkdir(parents=True, exist_ok=True)
    costs = layer_costs(described.setup)
    torch.set_num_threads(1)
    run_site(
        SiteConfig(
            site=number,
            identity=identity,
            bind=bind,
            coordinator=coordinator,
            setup=described.setup,
            settings=SiteSettings(
                retry_s=1.0,
                grace_s=0.5,
                checkpoints=described.checkpoints,
                unmerged_limit=described.settings.window,
            ),
            limits=LinkLimits(),
            budget=budget,
            forward_flop=tuple(costs.forward_flop.tolist()),
            backward_flop=tuple(costs.backward_flop.tolist()),
            memory_bytes=int(memory_gib * 2**30),
            heartbeat_s=described.heartbeat_s,
            report_s=described.settings.control_interval_s / 4.0,
            folder=folder,
            device=device,
            give_up_s=described.give_up_s,
        )
    )


@app.command()
def export(
    checkpoints: Annotated[Path, typer.Argument(help="folder of the checkpoints")],
    target: Annotated[Path, typer.Argument(help="safetensors file to write")],
    version: Annotated[int, typer.Option(help="model version; the newest if not given")] = -1,
) -> None:
    """Write a checkpoint as one file with the names of Hugging Face's OPT."""
    parts = sorted(checkpoints.glob("version-*-layers-*.safetensors"))
    if not parts:
        raise InputError(str(checkpoints), "empty", "allowed: a folder with checkpoints")
    stored = [load_checkpoint(part) for part in parts]
    newest = max(part.version for part in stored)
    whole = load_stages(checkpoints, stored[0].model, newest if version < 0 else version)
    if not isinstance(whole.model, ModelConfig):
        raise InputError(str(checkpoints), "a list of layers", "allowed: checkpoints of a decoder")
    save_file(with_opt_names(whole.weights), target)


@app.command()
def profile(
    out: Annotated[Path, typer.Option(help="layer profile to write (CSV)")],
    model: Annotated[list[str], typer.Option(help="opt-125m, ...; may stand several times")],
    micro_batch: Annotated[list[int], typer.Option(min=1, help="samples; several times")],
    sequence: Annotated[list[int], typer.Option(min=1, help="tokens of a sample; several times")],
    card: Annotated[
        Path | None, typer.Option(help="device card: times by its rate instead of measured ones")
    ] = None,
    efficiency: Annotated[float, typer.Option(help="share of the card's tensor peak")] = 0.6,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float64")] = "float32",
    repetitions: Annotated[int, typer.Option(min=1, help="runs of a stage, median")] = 20,
    warm_up: Annotated[int, typer.Option(min=0, help="runs before those")] = 5,
) -> None:
    """Write the times of a model's layers: measured on this processor, or by a device card."""
    if out.is_dir():
        raise InputError("--out", str(out), "needed: the name of a file")
    shapes = [model_shape(name) for name in model]
    if card is not None:
        if not 0.0 < efficiency <= 1.0:
            raise InputError("--efficiency", efficiency, "allowed: above 0, up to 1")
        device = load_card(card)
        tflops = device.fp16_tensor_tflops * efficiency
        how = {
            "device": device.name,
            "times": f"operations at {efficiency:g} of the {device.fp16_tensor_tflops:g} TFLOPS "
            "of its card; nothing was measured",
        }
        write_profile(out, card_profile(shapes, micro_batch, sequence, tflops, how))
        return
    times = {}
    for shape in shapes:
        for samples, length in product(micro_batch, sequence):
            runs = Repetitions(warm_up, repetitions)
            for layer, found in measure_layers(shape, samples, length, dtype, runs).items():
                times[shape.name, layer, samples, length] = found
                typer.echo(
                    f"{shape.name}  {samples} x {length}  {layer:9s}  "
                    f"forward {1e3 * found[0]:9.2f} ms  backward {1e3 * found[1]:9.2f} ms"
                )
    how = {
        "device": f"{cpu_name()}, one thread, {dtype}",
        "times": f"process time, median of {repetitions} runs after {warm_up}; "
        f"{SHALLOW} and {DEEP} blocks, one block before the head",
        "load": f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the end",
        "taken": date.today().isoformat(),
    }
    write_profile(out, LayerProfile(times, "measured", how))


def _key_folder(keys: Path | None, trusted: bool) -> Path | None:
    if (keys is None) == (not trusted):
        raise InputError("--keys", keys, "allowed: a folder of keys, or --trusted without")
    return keys


def main() -> None:
    """Run the command line; a fault is one line, with exit code 2 for bad input, else 1."""
    try:
        app()
    except InputError as error:
        typer.echo(str(error), err=True)
        raise SystemExit(2) from None
    except (LogWriteError, TimeoutError) as error:
        typer.echo(str(error), err=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
