"""Configuration of the simulated cell and of the plant behind it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ranloom.errors import InputError
from ranloom.mac.bsr import BSR_FORMATS
from ranloom.nr.numerology import TddPattern, slot_us

ALLOCATIONS = ("greedy_first", "shared")
LINK_ADAPTATIONS = ("olla", "oai_bler")
RLC_MODES = ("um", "am")
OVERLAPS = ("serial", "shared", "summed")
DEMANDS = ("slot_total", "per_block")
ROUNDINGS = ("ceil", "nearest", "floor")


@dataclass(frozen=True)
class CellConfig:
    """One uplink cell. The defaults are the WEAVER testbed (paper, App. D.1.1) run by OAI.

    Args:
        n_prb: carrier width.
        scs_khz: subcarrier spacing.
        tdd_pattern: letters D, S, U.
        k2_slots: slots between an uplink grant and its PUSCH (38.214 clause 6.1.2.1).
        n_layers: spatial layers of every UE.
        mcs_table: 38.214 MCS table (1 to 3).
        max_mcs: highest MCS that the scheduler uses.
        initial_mcs: MCS of a UE that has not been measured yet.
        allocation: ``greedy_first`` gives the first UE in proportional-fair order all that it
            asks for; ``shared`` splits the carrier among the UEs first.
        min_rb: smallest grant.
        max_ue_per_slot: most UEs in one slot; 0 means ``max(1, n_prb // 24)`` as OAI does.
        link_adaptation: ``olla`` or ``oai_bler``, see :mod:`~ranloom.mac.link_adaptation`.
        bler_target: first-transmission error rate that the outer loop aims at.
        olla_step_db: decrease of the outer loop's offset per error.
        harq_processes: HARQ processes of a UE.
        harq_rounds: transmissions of a block before it is given up.
        rlc_mode: ``um`` loses such a block, ``am`` sends it again.
        am_status_ms: time until an AM sender learns of the loss.
        am_max_retx: RLC retransmissions before an AM range counts as lost.
        bsr_format: ``short`` or ``long``.
        bsr_period_ms: periodicBSR-Timer.
        bsr_retx_ms: retxBSR-Timer.
        sr_period_slots: period of scheduling request occasions, a multiple of the TDD period.
        inactivity_frames: frames without a grant after which a UE gets a small one; 0 for never.
        buffer_limit_bytes: a packet that would pass it is dropped at the UE; 0 for no limit.
        power_limit_rb: widest grant of each UE that its power headroom allows; empty for no limit.

    Raises:
        InputError: a value is out of range or does not fit the others.
    """

    n_prb: int = 106
    scs_khz: int = 30
    tdd_pattern: str = "DDDDDDDSUU"
    k2_slots: int = 6
    n_layers: int = 1
    mcs_table: int = 1
    max_mcs: int = 28
    initial_mcs: int = 9
    allocation: str = "greedy_first"
    min_rb: int = 5
    max_ue_per_slot: int = 0
    link_adaptation: str = "olla"
    bler_target: float = 0.01
    olla_step_db: float = 0.5
    harq_processes: int = 16
    harq_rounds: int = 4
    rlc_mode: str = "um"
    am_status_ms: float = 20.0
    am_max_retx: int = 8
    bsr_format: str = "short"
    bsr_period_ms: float = 10.0
    bsr_retx_ms: float = 80.0
    sr_period_slots: int = 10
    inactivity_frames: int = 10
    buffer_limit_bytes: int = 0
    power_limit_rb: tuple[int, ...] = ()
    tdd: TddPattern = field(init=False, repr=False, compare=False)
    slot_us: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tdd", TddPattern(self.tdd_pattern))
        slot = slot_us(self.scs_khz)
        if slot != int(slot):
            raise InputError("scs_khz", self.scs_khz, "allowed: 15, 30, 60 or 120")
        object.__setattr__(self, "slot_us", int(slot))
        for name, low, high in (
            ("n_prb", 5, 275),
            ("k2_slots", 1, 32),
            ("n_layers", 1, 4),
            ("max_mcs", 0, 28),
            ("initial_mcs", 0, self.max_mcs),
            ("min_rb", 1, self.n_prb),
            ("max_ue_per_slot", 0, 1024),
            ("harq_processes", 1, 32),
            ("harq_rounds", 1, 32),
            ("am_max_retx", 0, 255),
            ("inactivity_frames", 0, 10_000),
            ("buffer_limit_bytes", 0, 1 << 40),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(f"cell.{name}", value, f"allowed: {low} to {high}")
        for name, choices in (
            ("allocation", ALLOCATIONS),
            ("link_adaptation", LINK_ADAPTATIONS),
            ("rlc_mode", RLC_MODES),
            ("bsr_format", tuple(BSR_FORMATS)),
        ):
            if getattr(self, name) not in choices:
                raise InputError(f"cell.{name}", getattr(self, name), f"allowed: {choices}")
        if not 0.0 < self.bler_target < 1.0:
            raise InputError("cell.bler_target", self.bler_target, "allowed: between 0 and 1")
        for name in ("olla_step_db", "bsr_period_ms", "bsr_retx_ms", "am_status_ms"):
            if not 0.0 < getattr(self, name) < 1e6:
                raise InputError(f"cell.{name}", getattr(self, name), "allowed: above 0")
        if self.sr_period_slots < 1 or self.sr_period_slots % self.tdd.period_slots:
            allowed = f"allowed: a multiple of the TDD period of {self.tdd.period_slots} slots"
            raise InputError("cell.sr_period_slots", self.sr_period_slots, allowed)
        if any(not self.min_rb <= rb <= self.n_prb for rb in self.power_limit_rb):
            allowed = f"allowed: {self.min_rb} to {self.n_prb} for each UE"
            raise InputError("cell.power_limit_rb", self.power_limit_rb, allowed)

    @property
    def blocks_per_slot(self) -> int:
        """Most UEs in one slot."""
        return self.max_ue_per_slot or max(1, self.n_prb // 24)

    def ul_slots_in(self, duration_us: int) -> int:
        """Uplink slots that end within a duration."""
        slots = duration_us // self.slot_us
        whole, rest = divmod(slots, self.tdd.period_slots)
        return whole * len(self.tdd.ul_slots) + sum(offset < rest for offset in self.tdd.ul_slots)

    def slot_of(self, ul_index: int) -> int:
        """Absolute slot of uplink slot number ``ul_index``."""
        whole, rest = divmod(ul_index, len(self.tdd.ul_slots))
        return whole * self.tdd.period_slots + self.tdd.ul_slots[rest]


@dataclass(frozen=True)
class PlantConfig:
    """The GPU that decodes what the cell received; it never reads a controller's lookup table.

    ``T = a + k W / s + b W`` is the 99th percentile of a decode of W work units (code blocks x
    lifting size) on s SMs (:mod:`ranloom.gpu.latency`); a lognormal tail of that percentile and
    an optional stall make the single decode.

    Args:
        a_us: part that depends on nothing.
        k_us_sm: us x SM per work unit.
        b_us: us per work unit that SMs do not shorten.
        tail_sigma: standard deviation of the logarithm of the tail.
        stall_probability: share of decodes that the host delays.
        stall_mean_us: mean of such a delay (exponential).
        overlap: adjacent decodes queue (``serial``), split the SMs (``shared``) or have their own
            reservation each (``summed``).
        grace_slots: slots after the end of the UL slot until HARQ feedback counts as overdue.
    """

    a_us: float = 200.0
    k_us_sm: float = 2.332
    b_us: float = 0.0084
    tail_sigma: float = 0.054
    stall_probability: float = 0.0
    stall_mean_us: float = 500.0
    overlap: str = "serial"
    grace_slots: int = 3

    def __post_init__(self) -> None:
        for name in ("a_us", "k_us_sm", "b_us", "tail_sigma", "stall_mean_us"):
            if not 0.0 <= getattr(self, name) < 1e6:
                raise InputError(f"plant.{name}", getattr(self, name), "allowed: 0 or more")
        if not 0.0 <= self.stall_probability <= 1.0:
            raise InputError("plant.stall_probability", self.stall_probability, "allowed: 0 to 1")
        if self.overlap not in OVERLAPS:
            raise InputError("plant.overlap", self.overlap, f"allowed: {OVERLAPS}")
        if not 0 <= self.grace_slots <= 1000:
            raise InputError("plant.grace_slots", self.grace_slots, "allowed: 0 to 1000")
