"""How fast a site works: its spare budget turns the work of a task into time.

A real accelerator shares its multiprocessors with the base station. Here a site computes on a CPU
core, and the spare budget decides how long a task *takes*: work / budget, or the time of the
computation itself where that is longer. Between its computation and the end of its time a task
is in execution and the process is free to serve others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ranloom.errors import InputError


@dataclass(frozen=True)
class BudgetCut:
    """A share of the budget for some steps.

    Args:
        first_step: first step concerned.
        end_step: one past the last.
        factor: share of the budget that is left.
    """

    first_step: int
    end_step: int
    factor: float

    def __post_init__(self) -> None:
        if not 0 <= self.first_step < self.end_step:
            raise InputError(
                "cut.steps", [self.first_step, self.end_step], "allowed: a rising range from 0"
            )
        if not self.factor > 0.0:
            raise InputError("cut.factor", self.factor, "allowed: above 0")


@dataclass(frozen=True)
class Budget:
    """Spare compute of a site over a run.

    Args:
        tflops: usable compute in 1e12 floating-point operations a second; one value, or the
            values of consecutive intervals, repeated from the start when they end.
        interval_s: length of an interval.
        cuts: steps in which less is left.
    """

    tflops: tuple[float, ...]
    interval_s: float = 1.0
    cuts: tuple[BudgetCut, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.tflops or any(not value >= 0.0 for value in self.tflops):
            raise InputError("budget.tflops", self.tflops, "allowed: values from 0 on")
        if not self.interval_s > 0.0:
            raise InputError("budget.interval_s", self.interval_s, "allowed: above 0")

    def at(self, elapsed_s: float, step: int) -> float:
        """Usable compute at a time of the run, in the given step [1e12 operations a second]."""
        tflops = self.tflops[int(elapsed_s / self.interval_s) % len(self.tflops)]
        for cut in self.cuts:
            if cut.first_step <= step < cut.end_step:
                tflops *= cut.factor
        return tflops


class PacedTask:
    """Progress of one task under a budget that may change meanwhile.

    Args:
        flop: its work.
        now_s: when it starts.
    """

    def __init__(self, flop: float, now_s: float) -> None:
        self.started_s = now_s
        self._left_flop = flop
        self._seen_s = now_s

    def advance(self, now_s: float, tflops: float) -> None:
        """Work off what the budget allowed since the last call."""
        self._left_flop -= (now_s - self._seen_s) * tflops * 1e12
        self._seen_s = now_s

    @property
    def done(self) -> bool:
        """Whether all of its work is worked off."""
        return self._left_flop <= 0.0

    def remaining_s(self, tflops: float) -> float:
        """Time until it is done if the budget stays as it is."""
        if self.done:
            return 0.0
        return self._left_flop / (tflops * 1e12) if tflops > 0.0 else float("inf")
