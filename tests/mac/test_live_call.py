"""The example of docs/traces.md: a controller called once per slot from outside the simulator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ranloom.mac.model import CellModel


def test_the_documented_call(root: Path, model: CellModel) -> None:
    text = (root / "docs/traces.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (code,) = [block for block in blocks if "def live" in block]
    names: dict[str, Any] = {}
    exec(code, names)
    small, large = [(0, 4_000, 28, 1.0)], [(0, 140_000, 28, 2.0), (1, 20_000, 20, 1.0)]
    answers = list(names["live"](model, [[], small, large, []]))
    assert [sm for sm, _, _ in answers] == [8, 8, 24, 24]
    assert answers[2][1] == "ramp_up"
    assert answers[1][2][0] > 0
    assert answers[2][2][0] > 0
