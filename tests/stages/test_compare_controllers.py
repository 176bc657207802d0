"""Stage compare_controllers: labels, loads, and faults that are found without running."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from ranloom.errors import InputError
from ranloom.mac.controllers.weaver import UNLIMITED_BYTES, WeaverParams
from ranloom.mac.controllers.weaver_plus import WeaverPlusParams
from stages.compare_controllers import STAGE, LoadParams, Params, spec_of


@pytest.fixture(scope="module")
def block(root: Path) -> dict[str, Any]:
    document = YAML(typ="safe").load((root / "params.yaml").read_text())
    keys = ("seed", "card", "n_prb", "scs_khz", "tdd_pattern", "cell", "plant")
    base = {key: document["base"][key] for key in keys}
    return {**document["compare_controllers"], "base": base}


def faults(root: Path, block: dict[str, Any], **change: Any) -> list[str]:
    assert STAGE.check is not None
    params = Params(**(block | change))
    found = STAGE.check(params, {"source": root / params.source_path})
    return [f"{fault.where}: {fault.value} {fault.allowed}" for fault in found]


def test_defaults_have_no_fault(root: Path, block: dict[str, Any]) -> None:
    assert faults(root, block) == []


def test_faults(root: Path, block: dict[str, Any]) -> None:
    assert "weaver2" in faults(root, block, controllers=["weaver2"])[0]
    twice = [block["loads"][0]] * 2
    assert "loads that differ" in faults(root, block, loads=twice)[0]
    far = block["sensitivity"] | {"load": 99}
    assert "sensitivity.load" in faults(root, block, sensitivity=far)[0]
    odd = block["sensitivity"] | {"weaver": {"stride": [1]}}
    assert "stride" in faults(root, block, sensitivity=odd)[0]
    low = block["sensitivity"] | {"weaver": {"patience": [0]}}
    assert "weaver.patience" in faults(root, block, sensitivity=low)[0]


def test_labels() -> None:
    weaver, plus = WeaverParams(patience=7), WeaverPlusParams()
    never = spec_of("weaver_never", weaver, plus)
    assert (never.name, never.weaver.patience) == ("weaver", 7)
    assert never.weaver.backlog_threshold_bytes == UNLIMITED_BYTES
    assert spec_of("const_8", weaver, plus).constant_sm == 8
    with pytest.raises(InputError, match="never_weaver"):
        spec_of("never_weaver", weaver, plus)


def test_names_of_loads() -> None:
    load = LoadParams(
        scenario="scenario_2", load_factor=1, uploaders=4, bsr_format="long", duration_s=60
    )
    assert load.name == "scenario_2 x1, 4 uploads, long BSR"
    assert not load.is_scaled
