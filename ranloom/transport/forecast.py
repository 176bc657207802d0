"""What planning on a forecast costs against knowing the releases beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from ranloom.transport.demands import NS_PER_S
from ranloom.transport.plan import Plan


@dataclass(frozen=True)
class Regret:
    """An executed plan minus the oracle's, in the order of the objective.

    The oracle plans by the same heuristic on the releases that occur, so a regret can be
    negative where the forecast happened to lead the heuristic to the better plan.

    Args:
        missed_pct: missed bytes, in percent of all bytes.
        setups: windows.
        circuit_seconds: light held.
        last_finish_s: arrival of the last transfer.
    """

    missed_pct: float
    setups: int
    circuit_seconds: float
    last_finish_s: float


def regret(executed: Plan, oracle: Plan) -> Regret:
    """Regret of a plan that was carried out on the releases that the oracle knew."""
    offered = int(executed.demands.bytes.sum())
    last = executed.finish_ns.max(initial=0) - oracle.finish_ns.max(initial=0)
    return Regret(
        missed_pct=100.0 * (executed.missed_bytes - oracle.missed_bytes) / max(1, offered),
        setups=executed.setups - oracle.setups,
        circuit_seconds=(executed.circuit_ns - oracle.circuit_ns) / NS_PER_S,
        last_finish_s=float(last) / NS_PER_S,
    )
