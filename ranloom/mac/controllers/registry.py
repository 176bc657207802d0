"""Controllers by name: ``noctrl``, ``const_<n>``, ``yinyangran``, ``weaver``, ...

An oracle (``yinyangran``) plans from the demand of an uncontrolled run of the same cell, so it
needs that run first; the others are online.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ranloom.errors import InputError
from ranloom.mac.controllers.weaver import WeaverParams
from ranloom.mac.controllers.weaver_plus import WeaverPlusParams

ONLINE = ("noctrl", "weaver", "weaver_plus")
ORACLES = ("yinyangran", "yinyangran_0.3s")
_CONSTANT = re.compile(r"const_([1-9][0-9]{0,3})")


@dataclass(frozen=True)
class ControllerSpec:
    """A controller and its parameters.

    Args:
        name: registered name; ``const_<n>`` for a constant of n SMs.
        weaver: parameters of ``weaver``.
        weaver_plus: parameters of ``weaver_plus``.
        demand: definition of a slot's demand (``slot_total`` or ``per_block``), used by
            ``noctrl`` and by the oracles that plan from it.
        hold_empty: whether ``noctrl`` keeps its reservation in empty slots.
        constant_capped: whether the scheduler under ``const_<n>`` grants at most what n SMs
            decode in time.
    """

    name: str
    weaver: WeaverParams = field(default_factory=WeaverParams)
    weaver_plus: WeaverPlusParams = field(default_factory=WeaverPlusParams)
    demand: str = "slot_total"
    hold_empty: bool = False
    constant_capped: bool = True

    @property
    def constant_sm(self) -> int | None:
        """SMs of a ``const_<n>``, else ``None``."""
        match = _CONSTANT.fullmatch(self.name)
        return int(match.group(1)) if match else None

    @property
    def needs_demand(self) -> bool:
        """Whether it plans from an uncontrolled run."""
        return self.name in ORACLES


def check_name(name: str, where: str = "controllers") -> None:
    """Refuse an unknown controller.

    Raises:
        InputError: the name is not registered.
    """
    if name not in (*ONLINE, *ORACLES) and not _CONSTANT.fullmatch(name):
        known = ", ".join((*ONLINE, *ORACLES, "const_<n>"))
        raise InputError(where, name, f"allowed: {known}")


def registered_names(sm_min: int) -> tuple[str, ...]:
    """One name of each registered controller, for tests over all of them."""
    return (*ONLINE, *ORACLES, f"const_{sm_min}")
