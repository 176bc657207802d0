"""Names in print, of controllers, training systems and transport strategies."""

from __future__ import annotations

NAMES = {
    "noctrl": "NoCtrl",
    "weaver": "WEAVER",
    "weaver_plus": "WEAVER+",
    "yinyangran": "YinYangRAN",
    "const_8": "const 8",
    "const_16": "const 16",
    "weaver_never": "WEAVER, infinite threshold",
    "weaver_circuits": "WEAVER, windows",
    "confidant": "Confidant",
    "confidant_star": "Confidant*",
    "asteroid": "Asteroid",
    "dtfm": "DTFM",
    "static": "static PP+DP",
    "diloco": "DiLoCo",
    "aggregate_selective": "aggregate, selective windows",
    "aggregate_packet": "aggregate, packet",
    "aggregate_always_window": "aggregate, always windows",
    "per_ue_packet": "per UE, packet",
    "per_ue_static_circuits": "per UE, static circuits",
    "both_workloads": "both workloads",
}
"""Name in print."""


def title(name: str) -> str:
    """Name in print."""
    return NAMES.get(name, name.replace("_", " "))
