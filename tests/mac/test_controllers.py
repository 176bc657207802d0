"""What holds for every registered controller, and the plans of the oracles."""

from __future__ import annotations

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.mac.controllers.decision import REASONS
from ranloom.mac.controllers.registry import ControllerSpec, check_name, registered_names
from ranloom.mac.controllers.yinyangran import peak_plan, switching_plan
from ranloom.mac.experiment import run_controllers
from ranloom.mac.model import CellModel
from ranloom.mac.simulate import CellRun, simulate
from ranloom.traffic.channel import ar1
from ranloom.traffic.scenario import Scenario
from tests.mac.conftest import S, bursts

NAMES = registered_names(8)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    arrivals = bursts(3, 6 * S, seed=1, bytes_each=90_000, every_us=250_000)
    channel = ar1([24.0, 21.0, 18.0], 2.0, 2e5, 6 * S, 10_000, np.random.default_rng(2))
    return Scenario("test", 0, arrivals, channel)


@pytest.fixture(scope="module")
def runs(model: CellModel, scenario: Scenario) -> dict[str, CellRun]:
    specs = [ControllerSpec(name) for name in NAMES]
    return run_controllers(model, scenario, specs, 5, trace=(0, 2400))


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_run(
    model: CellModel, scenario: Scenario, runs: dict[str, CellRun], name: str
) -> None:
    again = run_controllers(model, scenario, [ControllerSpec(name)], 5)[name]
    first = runs[name]
    for field in ("ul_index", "slot", "sm", "reason", "passes", "lut_mcs", "lut_prb"):
        np.testing.assert_array_equal(
            getattr(first.changes, field), getattr(again.changes, field), field
        )
    np.testing.assert_array_equal(first.packet_delay_us, again.packet_delay_us)
    assert first.counters == again.counters
    other = run_controllers(model, scenario, [ControllerSpec(name)], 6)[name]
    assert (other.packet_delay_us != first.packet_delay_us).any()


@pytest.mark.parametrize("name", NAMES)
def test_reservation(model: CellModel, runs: dict[str, CellRun], name: str) -> None:
    run = runs[name]
    changes = run.changes
    assert changes.slot[0] == 0
    assert (np.diff(changes.slot) > 0).all()
    assert (np.diff(changes.sm) != 0).all()
    assert np.isin(changes.sm, model.tables.levels).all()
    assert np.isin(changes.slot[1:] % 10, [8, 9]).all()
    assert ((changes.reason >= 0) & (changes.reason < len(REASONS))).all()
    reserved = run.trace[:, 2]
    assert reserved.mean() == pytest.approx(run.mean_sm)
    assert np.count_nonzero(np.diff(reserved)) == changes.transitions


@pytest.mark.parametrize("name", NAMES)
def test_every_byte_is_somewhere(runs: dict[str, CellRun], name: str) -> None:
    run = runs[name]
    assert run.ledger.error_bytes == 0
    assert run.ledger.offered.sum() == run.packet_bytes.sum()
    delivered = run.packet_delay_us >= 0
    assert run.ledger.delivered.sum() == run.packet_bytes[delivered].sum()
    assert delivered.mean() > 0.5


def test_noctrl_reserves_its_demand(model: CellModel, runs: dict[str, CellRun]) -> None:
    run = runs["noctrl"]
    np.testing.assert_array_equal(run.trace[:, 0], run.trace[:, 2])
    used = run.trace[:, 3] > 0
    mcs = np.ceil(run.trace[used, 4] / run.trace[used, 3] - 1e-9).astype(int)
    expected = model.tables.min_sm[mcs, run.trace[used, 3]]
    np.testing.assert_array_equal(run.trace[used, 2], expected)
    assert (run.trace[~used, 2] == 8).all()


def test_noctrl_variants(model: CellModel, scenario: Scenario, runs: dict[str, CellRun]) -> None:
    held = simulate(
        model, scenario.arrivals, scenario.channel, ControllerSpec("noctrl", hold_empty=True), 5
    )
    assert held.changes.transitions <= runs["noctrl"].changes.transitions
    assert held.mean_sm > runs["noctrl"].mean_sm
    summed = simulate(
        model, scenario.arrivals, scenario.channel, ControllerSpec("noctrl", demand="per_block"), 5
    )
    assert summed.mean_sm >= runs["noctrl"].mean_sm


def test_the_constant(model: CellModel, scenario: Scenario, runs: dict[str, CellRun]) -> None:
    run = runs["const_8"]
    assert run.changes.transitions == 0
    assert run.mean_sm == 8.0
    used = run.trace[:, 3] > 0
    assert (run.trace[used, 0] == 8).all()  # its grants fit 8 SMs
    loose = simulate(
        model, scenario.arrivals, scenario.channel,
        ControllerSpec("const_8", constant_capped=False), 5,
    )  # fmt: skip
    assert loose.counters["long_decodes"] > 0
    assert run.counters["long_decodes"] == 0


def test_the_oracle_covers_each_second(runs: dict[str, CellRun]) -> None:
    demand = runs["noctrl"].trace[:, 0].reshape(6, 400)
    for name in ("yinyangran", "yinyangran_0.3s"):
        reserved = runs[name].trace[:, 2].reshape(6, 400)
        assert (reserved >= demand.max(axis=1)[:, None]).all()
    exact = runs["yinyangran"].trace[:, 2].reshape(6, 400)
    np.testing.assert_array_equal(exact, np.repeat(demand.max(axis=1)[:, None], 400, axis=1))
    assert runs["yinyangran_0.3s"].mean_sm >= runs["yinyangran"].mean_sm


def test_an_oracle_needs_its_reference(model: CellModel, scenario: Scenario) -> None:
    with pytest.raises(InputError, match="yinyangran needs a run of noctrl before it"):
        simulate(model, scenario.arrivals, scenario.channel, ControllerSpec("yinyangran"), 5)


def test_plans_of_the_oracles() -> None:
    peaks, first = np.array([8, 24, 24, 16, 8, 16]), 400 * np.arange(6)
    index, sm = peak_plan(peaks, first)
    assert index.tolist() == [0, 400, 1200, 1600, 2000]
    assert sm.tolist() == [8, 24, 16, 8, 16]
    index, sm = switching_plan(peaks, first, 120)
    # up: 120 UL slots early; down: the larger one is held until the second begins
    assert index.tolist() == [0, 280, 1200, 1600, 1880]
    assert sm.tolist() == [8, 24, 16, 8, 16]


@pytest.mark.parametrize("name", ["weaver2", "const_", "const_0", "const_8x", ""])
def test_unknown_names(name: str) -> None:
    with pytest.raises(InputError, match="allowed: noctrl, weaver"):
        check_name(name)


def test_a_constant_that_the_device_cannot_reserve(model: CellModel, scenario: Scenario) -> None:
    with pytest.raises(InputError, match=r"'const_12' is not usable; allowed SM counts: \[8, 16"):
        simulate(model, scenario.arrivals, scenario.channel, ControllerSpec("const_12"), 5)
