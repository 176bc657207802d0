"""Parameters of controllers and of their promise, shared by the stages that use them."""

from __future__ import annotations

from pydantic import Field

from pipeline.stage import StageParams


class LimitParams(StageParams):
    """What a setting has to meet against ``noctrl``."""

    transitions_ratio: float = Field(ge=1, le=1e7, description="times fewer transitions")
    mean_sm_pct: float = Field(ge=0, le=1e4, description="higher mean reservation, per cent")
    delay_p95_ms: float = Field(ge=0, le=1e9, description="later 95th percentile, ms")
    delay_p95_pct: float = Field(ge=0, le=1e4, description="or this share of it, per cent")
    throughput_pct: float = Field(ge=0, le=1e4, description="lower throughput, per cent")
    harq_met_pct: float = Field(
        ge=0, le=1e4, description="less feedback in time, percentage points"
    )
    decode_over_1ms_pct: float = Field(ge=0, le=1e4, description="more decodes above 1 ms, points")


class WeaverPlusTable(StageParams):
    """Meaning of each in ``ranloom.mac.controllers.weaver_plus.WeaverPlusParams``."""

    delay_target_ms: float = Field(ge=0, le=1e5, description="delay that asks for nothing, ms")
    delay_ceiling_ms: float = Field(ge=0, le=1e5, description="highest target, ms")
    percentile: float = Field(ge=1, le=99.9, description="of uncontrolled delays, per cent")
    delay_allowance_ms: float = Field(ge=0, le=1e5, description="later than uncontrolled, ms")
    memory_s: float = Field(gt=0, le=1e6, description="time constant of the percentile, s")
    sm_allowance: float = Field(ge=-1, le=10, description="higher mean reservation, as a share")
    credit_limit_sm_s: float = Field(ge=0, le=1e6, description="most credit kept, SM s")
    down_share: float = Field(ge=0, le=1, description="share of the delay a step down may use")
