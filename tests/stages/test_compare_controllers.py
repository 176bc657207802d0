"""Stage compare_controllers: labels, loads, and faults that are found without running."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from ranloom.mac.controllers.weaver import UNLIMITED_BYTES, WeaverParams
from ranloom.mac.controllers.weaver_plus import WeaverPlusParams
from stages.compare_controllers import STAGE, LoadParams, Params, spec_of


@pytest.fixture(scope="module")
def block(root: Path) -> dict[str, Any]:
    document = YAML(typ="safe", pure=True).load((root / "params.yaml").read_text())
    return {**document["compare_controllers"], "base": document["base"]}


def faults(root: Path, block: dict[str, Any], **change: Any) -> list[str]:
    assert STAGE.check is not None
    params = Params(**(block | change))
    paths = {
        "source": root / params.source_path,
        "card": root / params.base.card,
        "bler": root / params.base.bler_path,
    }
    found = STAGE.check(params, paths)
    return [f"{fault.where}: {fault.value} {fault.allowed}" for fault in found]


def test_defaults_have_no_fault(root: Path, block: dict[str, Any]) -> None:
    assert faults(root, block) == []


def test_faults(root: Path, block: dict[str, Any]) -> None:
    assert "weaver2" in faults(root, block, controllers=["weaver2"])[0]
    # a reservation that the device does not have
    (level,) = faults(root, block, controllers=["const_12"])
    assert level == (
        "params.yaml: compare_controllers.controllers: const_12: 12 "
        "allowed on DGX Spark: 8, 16, 24, 32, ... 48 SMs"
    )
    twice = [block["loads"][0]] * 2
    assert "loads that differ" in faults(root, block, loads=twice)[0]
    far = block["sensitivity"] | {"load": 99}
    assert "sensitivity.load" in faults(root, block, sensitivity=far)[0]
    odd = block["sensitivity"] | {"weaver": {"stride": [1]}}
    assert "stride" in faults(root, block, sensitivity=odd)[0]
    low = block["sensitivity"] | {"weaver": {"patience": [0]}}
    assert "weaver.patience" in faults(root, block, sensitivity=low)[0]


def test_error_rates_of_another_mcs_table_are_refused(
    root: Path, block: dict[str, Any], tmp_path: Path
) -> None:
    def with_table(path: str, mcs_table: int) -> list[str]:
        base = block["base"] | {"bler_path": path, "mcs_table": mcs_table}
        return faults(root, block, base=base)

    assert with_table("data/bler/decoder_table1.csv", 1) == []
    assert with_table("data/bler/table2.csv", 2) == []
    (line,) = with_table("data/bler/table2.csv", 1)
    assert "table2.csv: [(28, 24), (28, 100), (28, 500)] needed: MCS 0 to 28" in line
    text = (root / "data/bler/table1.csv").read_text()
    broken = tmp_path / "mine.csv"
    broken.write_text(text.replace("0,24,-6.5472,1.53347", "0,24,-6.5472,-1.5"))
    (line,) = with_table(str(broken), 1)
    assert f"{broken} (data row 1): (-6.5472, -1.5) allowed: finite SNR, sigma above 0" in line


def test_labels() -> None:
    weaver, plus = WeaverParams(patience=7), WeaverPlusParams()
    never = spec_of("weaver_never", weaver, plus)
    assert (never.name, never.weaver.patience) == ("weaver", 7)
    assert never.weaver.backlog_threshold_bytes == UNLIMITED_BYTES
    assert spec_of("const_8", weaver, plus).constant_sm == 8


def test_names_of_loads() -> None:
    load = LoadParams(
        scenario="scenario_2", load_factor=1, uploaders=4, bsr_format="long", duration_s=60
    )
    assert load.name == "scenario_2 x1, 4 uploads, long BSR"
    assert not load.is_scaled
