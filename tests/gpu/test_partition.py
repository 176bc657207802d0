"""Devices and partitions, on a stand-in for ``cuda.core``; its names against the real one."""

import dataclasses
import sys
from types import SimpleNamespace

import numba
import pytest

from ranloom.errors import InputError
from ranloom.gpu.partition import SIMULATOR, Device, card_of, find_device, partition
from tests.gpu import fake_cuda_core

SPARK = Device(0, "NVIDIA GB10", "12.1", 48)


@pytest.fixture
def gpu(monkeypatch):
    """One DGX Spark."""
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    for name, module in fake_cuda_core.modules().items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def streams(monkeypatch):
    """What numba is asked for: all SMs, or a stream of someone else."""
    calls = SimpleNamespace(stream=lambda: "whole device", external_stream=lambda handle: handle)
    monkeypatch.setattr(numba, "cuda", calls, raising=False)


def test_finds_the_device_and_its_card(gpu, root):
    assert find_device("auto") == find_device("0") == SPARK
    assert card_of(SPARK, None, root / "data" / "cards").name == "DGX Spark"
    with pytest.raises(InputError, match=r"device: '1' .* auto, or 0 to 0"):
        find_device("1")


def test_no_library_or_no_driver_is_one_line(gpu, monkeypatch):
    def no_driver():
        raise RuntimeError("no NVIDIA driver\nlong story")

    monkeypatch.setattr(fake_cuda_core.Device, "get_all_devices", no_driver)
    with pytest.raises(InputError, match=r"needed: an NVIDIA GPU.*\(no NVIDIA driver\)$"):
        find_device("auto")
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(InputError, match="pip install numba-cuda"):
        find_device("auto")


@pytest.mark.parametrize(
    ("device", "card", "message"),
    [
        (SPARK, "h200", "needed: the device of card H200"),
        (dataclasses.replace(SPARK, name="Quadro"), None, "needed: a device card for it"),
        (dataclasses.replace(SPARK, sm_count=40), "dgx_spark", "40 SMs.*DGX Spark: 48 SMs, 12.1"),
        (Device(0, "NVIDIA H200 MIG 1g.18gb", "9.0", 16), None, "needed by card H200: 132 SMs"),
    ],
)
def test_a_device_that_does_not_match_the_card_is_refused(root, device, card, message):
    cards = root / "data" / "cards"
    with pytest.raises(InputError, match=message):
        card_of(device, card and cards / f"{card}.yaml", cards)


def test_the_longest_name_is_meant(root):
    l40s = Device(0, "NVIDIA L40S", "8.9", 142)
    assert card_of(l40s, None, root / "data" / "cards").name == "L40S"


@pytest.mark.parametrize("sm", [8, 16, 24, 40])  # 24 is only granted with backfill
def test_a_partition_is_a_stream_of_a_green_context(gpu, streams, sm):
    with partition(SPARK, sm) as stream:
        assert [sm] == fake_cuda_core.OPEN
        assert stream == fake_cuda_core.Stream.handle
    assert fake_cuda_core.OPEN == []


def test_a_partition_is_given_back_after_an_error(gpu, streams):
    with pytest.raises(ZeroDivisionError), partition(SPARK, 8):
        raise ZeroDivisionError
    assert fake_cuda_core.OPEN == []


def test_all_sms_need_no_green_context(gpu, streams):
    with partition(SPARK, 48) as stream:
        assert stream == "whole device"
        assert fake_cuda_core.OPEN == []
    with partition(Device(0, SIMULATOR, "", 0), 8) as stream:
        assert stream == "whole device"


def test_what_the_driver_does_not_grant_is_one_line(gpu, streams, monkeypatch):
    with (
        pytest.raises(InputError, match=r"sm: 12 .*CONFIGURATION: bad count"),
        partition(SPARK, 12),
    ):
        pass
    # an older driver rounds up in silence
    rounded = [fake_cuda_core.SMResource(16)], fake_cuda_core.SMResource(32)
    monkeypatch.setattr(fake_cuda_core.SMResource, "split", lambda self, options: rounded)
    with pytest.raises(InputError, match=r"sm: 12 .* grants 16"), partition(SPARK, 12):
        pass


def test_the_stand_in_has_the_names_of_cuda_core():
    core = pytest.importorskip("cuda.core", reason="numba-cuda is not installed")
    core.SMResourceOptions(count=8, backfill=True)
    for cls, names in {
        core.Device: ("get_all_devices", "set_current", "create_context", "resources", "name",
                      "compute_capability"),
        core.Context: ("create_stream", "close"),
        core.SMResource: ("split", "sm_count"),
        core.Stream: ("handle", "close"),
    }.items():  # fmt: skip
        assert [name for name in names if not hasattr(cls, name)] == []
    assert [f.name for f in dataclasses.fields(core.ContextOptions)] == ["resources"]
