"""Words for what the controller tables name by parameter or limit."""

from dataclasses import fields, replace

from ranloom.mac.bar import Limits, judge
from ranloom.mac.controllers.weaver import WeaverParams
from ranloom.mac.kpis import CellKpis
from ranloom.report.sections import promise


def test_every_limit_and_every_parameter_has_words():
    fair = CellKpis(**{f.name: 1 for f in fields(CellKpis)})
    worst = replace(
        fair, transitions=9, mean_sm=9, delay_p95_ms=99, throughput_mbps=0, harq_met_pct=0,
        decode_over_1ms_pct=9,
    )  # fmt: skip
    assert set(judge(worst, fair, Limits()).missed) == set(promise._LIMITS)
    assert {f.name for f in fields(WeaverParams)} == set(promise._SETTINGS)


def test_names_in_print():
    assert promise.load_name("scenario_2 x1, 4 uploads") == "scenario 2, load x1, 4 uploads"
    assert promise._setting("patience_unit=ul_slots") == "patience counted in: uplink slots"
    assert promise._setting("delay_threshold_ms=[20.0]") == "delay threshold, ms: 20.0"
    assert promise._setting("noctrl") == "NoCtrl"
