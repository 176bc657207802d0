"""The path for GPUs with fakes in place of driver, streams and events. No time here is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ranloom.errors import InputError
from ranloom.gpu.card import Card, load_card
from ranloom.spare.budget import from_changes
from ranloom.spare.coexistence import chain_buffers, measure_profile, run_beside
from ranloom.spare.cuda_device import CopyGate, CudaDevice, StreamLane
from ranloom.spare.executor import SlotExecutor
from ranloom.spare.gemm import Gemm, TileModel, Tiling
from ranloom.spare.green_contexts import (
    CudaError,
    budget_for,
    chosen_budgets,
    create_contexts,
)
from ranloom.spare.ran_load import RanLoad


class FakeGpu:
    """Streams that take a set time for each piece of work; each look of the host costs 1 us."""

    def __init__(self) -> None:
        self.now = 0.0
        self.current: FakeStream | None = None
        self.overlaps = 0

    def clock_us(self) -> float:
        self.now += 1.0
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 1e6 * seconds

    @contextmanager
    def use(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def event(self) -> FakeEvent:
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu, self.at = gpu, float("inf")

    def record(self, stream: FakeStream) -> None:
        self.at = stream.work(self.gpu.now)

    def query(self) -> bool:
        self.gpu.now += 1.0
        return self.gpu.now >= self.at


class FakeStream:
    """Work since the last event takes ``takes_us`` and starts when the stream is free."""

    def __init__(self, takes_us: Callable[[], float]) -> None:
        self.takes_us, self.free_at = takes_us, 0.0
        self.waited: list[FakeEvent] = []

    def work(self, now: float) -> float:
        self.free_at = max(self.free_at, now) + self.takes_us()
        return self.free_at

    def wait_event(self, event: FakeEvent) -> None:
        self.waited.append(event)
        self.free_at = max(self.free_at, event.at)


@pytest.fixture(scope="module")
def card(root: Path) -> Card:
    return load_card(root / "data/cards/dgx_spark.yaml")


def test_whole_run_with_fakes(card: Card) -> None:
    """Profile, gate, partitions, synthetic RAN, and the product that comes out is the right one."""
    gpu, gate = FakeGpu(), CopyGate()
    budgets = np.array([16, 32, 48])
    streams = {sm: FakeStream(lambda: 60.0) for sm in budgets.tolist()}
    lanes = {sm: StreamLane(stream, gpu.use, gpu.event) for sm, stream in streams.items()}
    device = CudaDevice(lanes, gate, gpu.clock_us, gpu.sleep)
    assert device.in_order
    gemm, tiling = Gemm(64, 48, 48), Tiling(16, 16, 16)
    buffers = chain_buffers(gemm, torch.float64, torch.device("cpu"), 5)
    source = buffers.source(tiling)
    model = TileModel(card, 0.5, 0.5, 8, 0.0)
    profile = measure_profile(device, source, budgets, model, repetitions=4, percentile=95.0)
    assert (profile.wave_us >= 60.0).all()
    assert (profile.wave_us < 80.0).all()
    decoded: list[int] = []
    copies = {sm: FakeStream(lambda: 40.0) for sm in (0, 16, 32, 48)}
    samples, on_device = torch.ones(8), torch.zeros(8)
    ran = RanLoad(
        copies, lambda stream: decoded.append(1), samples, on_device, gpu.use, gpu.event, gate
    )
    start = buffers.entries[0].clone()
    executor = SlotExecutor(device, profile, 1e9, 500.0, buffers.source(tiling), poll_us=1.0)
    trace = from_changes(np.array([0, 4, 9, 14]), np.array([16, 32, 48, 10]), 20, 500.0, sm_max=48)
    done = run_beside(
        trace, executor, device, budgets, 48, decodes=lambda s: s % 2 == 1, decode=ran.decode
    )
    device.close()
    assert done.slots == 20
    assert done.decode_starts == len(decoded) == 10
    assert torch.equal(on_device, samples)
    assert done.rebinds == 3
    assert done.gated_us > 7 * 35.0  # seven decode slots with a budget wait for their copy
    assert executor.report.tiles > 100
    expected = start
    products = executor.report.tiles // tiling.count(gemm)
    for _ in range(products):
        expected = expected @ buffers.weight[0]
    torch.testing.assert_close(buffers.entries[products % 2], expected)


def test_rebind_keeps_order_and_late_tiles_are_violations(card: Card) -> None:
    gpu = FakeGpu()
    slow = FakeStream(lambda: 900.0)
    streams = {16: FakeStream(lambda: 10.0), 32: slow}
    device = CudaDevice(
        {sm: StreamLane(stream, gpu.use, gpu.event) for sm, stream in streams.items()},
        CopyGate(),
        gpu.clock_us,
        gpu.sleep,
    )
    gemm, tiling = Gemm(64, 48, 48), Tiling(16, 16, 48)
    source = chain_buffers(gemm, torch.float32, torch.device("cpu"), 5).source(tiling)
    device.bind(32)
    device.launch(source(), 4, 0.0)
    assert not device.idle()
    device.bind(16)
    (event,) = streams[16].waited
    assert event.at == slow.free_at
    assert not device.wait_idle(gpu.now + 50.0)
    assert device.wait_idle(float("inf"))
    # The executor sees the same at a decode start that takes SMs back.
    model = TileModel(card, 0.5, 0.5, 4, 0.0)
    quick = measure_profile(device, source, np.array([16]), model, repetitions=2, percentile=95.0)
    profile = type(quick)(
        tiling, quick.gemms, np.array([16, 32]), np.full((1, 2), 100.0), np.zeros((1, 2))
    )
    executor = SlotExecutor(device, profile, 1e9, 500.0, source, poll_us=1.0)
    at = gpu.now + 100.0
    executor.run_slot(0, at, 32, decodes=False)
    executor.run_slot(1, at + 500.0, 16, decodes=False)
    (lasted_us,) = executor.report.violation_us
    assert lasted_us == pytest.approx(400.0, abs=40.0)


def test_misuse_is_named() -> None:
    gate = CopyGate()
    device = CudaDevice({8: StreamLane(None, FakeGpu().use, FakeGpu().event)}, gate)
    product = chain_buffers(Gemm(2, 2, 2), torch.float32, torch.device("cpu"), 1).source(
        Tiling(2, 2, 2)
    )()
    with pytest.raises(InputError, match="none bound"):
        device.launch(product, 1, 0.0)
    with pytest.raises(InputError, match="partitions: SM budget: 16"):
        device.bind(16)
    assert not gate.resident(0)
    done = FakeEvent(FakeGpu())
    gate.signal(4, done)
    assert not gate.resident(4)
    done.at = 0.0
    assert gate.resident(4)
    assert not gate.resident(5)
    with pytest.raises(InputError, match="from slot 4 on"):
        gate.signal(3, done)


class FakeDriver:
    """Green contexts of a device whose partitions are rounded up to a step."""

    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def __init__(self, sm_count: int, step: int, fails: str = "") -> None:
        self.sm_count, self.step, self.fails = sm_count, step, fails
        self.free = 48_000_000_000
        self.made: list[set[int]] = []

    def resource(self, sms: set[int]) -> SimpleNamespace:
        return SimpleNamespace(sm=SimpleNamespace(smCount=len(sms)), sms=sms)

    def __getattribute__(self, name: str):
        if name.startswith("cu") and name == object.__getattribute__(self, "fails"):
            return lambda *_: (2,)
        return object.__getattribute__(self, name)

    def cuDeviceGet(self, index):  # noqa: N802
        return 0, index

    def cuDeviceGetDevResource(self, device, kind):  # noqa: N802
        return 0, self.resource(set(range(self.sm_count)))

    def cuDevSmResourceSplitByCount(self, groups, whole, flags, least):  # noqa: N802
        size = -(-least // self.step) * self.step
        order = sorted(whole.sms)
        return 0, [self.resource(set(order[:size]))], 1, self.resource(set(order[size:]))

    def cuDevResourceGenerateDesc(self, resources, count):  # noqa: N802
        assert len(resources) == count == 1
        return 0, resources[0].sms

    def cuGreenCtxCreate(self, description, device, flags):  # noqa: N802
        self.free -= 20_000_000
        self.made.append(description)
        return 0, len(self.made)

    def cuGreenCtxStreamCreate(self, context, flags, priority):  # noqa: N802
        return 0, 1000 + context

    def cuMemGetInfo(self):  # noqa: N802
        return 0, self.free, 48_000_000_000


def test_contexts_are_disjoint_and_accounted(root: Path) -> None:
    l40s = load_card(root / "data/cards/l40s.yaml")
    budgets = chosen_budgets(l40s)
    assert budgets.size == 16
    assert budgets[-1] == 142
    assert np.isin(budgets, l40s.levels).all()
    driver = FakeDriver(142, 2)
    splits = create_contexts(driver, 0, budgets)
    assert [s.sm for s in splits] == budgets.tolist()
    assert [s.sm + s.ran_sm for s in splits] == [142] * 16
    assert splits[-1].ran_stream == 0
    assert all(s.training_bytes == 20_000_000 for s in splits)  # not the RAN's part
    made = iter(driver.made)
    for split in splits:
        training = next(made)
        assert len(training) == split.sm
        if split.ran_sm:
            assert not training & next(made)
    handles = {s.training_stream for s in splits} | {s.ran_stream for s in splits}
    assert len(handles) == 32


@pytest.mark.parametrize(
    ("sm_count", "count", "expected"),
    [(48, 16, [8, 16, 24, 32, 40, 48]), (48, 3, [16, 32, 48]), (48, 1, [48])],
)
def test_budgets_are_spread(card: Card, sm_count: int, count: int, expected: list[int]) -> None:
    assert chosen_budgets(card, count).tolist() == expected


def test_budget_is_never_more_than_free() -> None:
    budgets = np.array([8, 24, 48])
    assert [budget_for(free, budgets) for free in (0, 7, 8, 23, 24, 47, 48, 60)] == [
        0, 0, 8, 8, 24, 24, 48, 48,
    ]  # fmt: skip


def test_driver_faults_are_named(card: Card) -> None:
    with pytest.raises(InputError, match="the driver makes it 20 SMs"):
        create_contexts(FakeDriver(48, 20), 0, np.array([16]))
    with pytest.raises(CudaError, match="cuGreenCtxCreate failed with CUDA error 2"):
        create_contexts(FakeDriver(48, 8, fails="cuGreenCtxCreate"), 0, card.levels)
    with pytest.raises(InputError, match="green contexts: 17"):
        chosen_budgets(card, 17)
