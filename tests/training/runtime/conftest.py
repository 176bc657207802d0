"""Small runs for the tests of the runtime."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ranloom.training.layout import regular_layout
from ranloom.training.runtime.chaos import SETTINGS, SMALL_SETUP, virtual_schedule
from ranloom.training.runtime.coordinator_process import CoordinatorConfig, CoordinatorProcess
from ranloom.training.runtime.pacing import Budget
from ranloom.training.runtime.peer_messages import COORDINATOR
from ranloom.training.runtime.setup import layer_costs
from ranloom.training.runtime.site import SiteSettings
from ranloom.training.runtime.site_process import SiteConfig, SiteProcess
from ranloom.training.runtime.transport import Identity, LinkLimits, keyring
from ranloom.training.runtime.virtual import FaultRates


@pytest.fixture
def virtual_config(tmp_path):
    """Makes a small run on virtual time: 4 layers on D x P sites, 6 steps of 6 micro-batches."""

    def make(seed, rates=None, setup=SMALL_SETUP, replicas=2, stages=2, reserve=0, **changes):
        folder = tmp_path / f"checkpoints-{seed}"
        folder.mkdir()
        settings = replace(SETTINGS, **changes)
        rates = rates or FaultRates()
        return virtual_schedule(seed, folder, rates, setup, settings, replicas, stages, reserve)

    return make


@pytest.fixture
def run(tmp_path):
    """Coordinator of a run with two sites, and a maker of sites."""
    pairs, admitted = keyring([COORDINATOR, "site-0", "site-1"])
    config = CoordinatorConfig(
        identity=Identity(COORDINATOR, pairs[COORDINATOR], admitted),
        bind="tcp://127.0.0.1:*",
        sites=2,
        setup=SMALL_SETUP,
        settings=replace(SETTINGS, micro_batch_limit=6, lease_s=5.0),
        layout=regular_layout((0, 2, 4), 1),
        costs=layer_costs(SMALL_SETUP),
        limits=LinkLimits(),
        folder=tmp_path,
        heartbeat_s=0.05,
        gather_s=0.0,
        stop_patience_s=1.0,
        give_up_s=30.0,
    )
    coordinator = CoordinatorProcess(config)
    opened = [coordinator]

    def site(number, setup=SMALL_SETUP, keys=None, admitted=admitted, budget=None):
        name = f"site-{number}"
        opened.append(
            SiteProcess(
                SiteConfig(
                    site=number,
                    identity=Identity(name, keys or pairs[name], admitted),
                    bind="tcp://127.0.0.1:*",
                    coordinator=(tmp_path / "coordinator.address").read_text(),
                    setup=setup,
                    settings=SiteSettings(
                        retry_s=0.2, grace_s=0.2, checkpoints=tmp_path, unmerged_limit=6
                    ),
                    limits=LinkLimits(),
                    budget=budget or Budget((1.0,)),
                    forward_flop=tuple(config.costs.forward_flop.tolist()),
                    backward_flop=tuple(config.costs.backward_flop.tolist()),
                    memory_bytes=1 << 30,
                    heartbeat_s=0.05,
                    report_s=0.02,
                    folder=tmp_path,
                    device="cpu",
                    give_up_s=30.0,
                )
            )
        )
        return opened[-1]

    yield coordinator, site, config, pairs, admitted
    for process in opened:
        process.close()
