"""Counting from journals: each way in which samples can go wrong shows."""

from __future__ import annotations

import pytest

from ranloom.errors import InputError
from ranloom.training.runtime.audit import audit
from ranloom.training.runtime.journal import Journal, read_journal


def installed(version=0, source="seed", checkpoint=-1):
    return {
        "what": "installed",
        "model_version": version,
        "weights_from": source,
        "checkpoint_version": checkpoint,
    }


def step_records(site, stage, step, numbers, version, before=None, layers=(0, 2), name=None):
    """One site merges, contributes alone, reduces and applies."""
    who = {"site": site, "incarnation": 1, "step": step, "stage": stage}
    name = name or f"{step}/{stage}"
    records = [
        {"what": "merged", **who, "micro_batch": n, "samples": [2 * n, 2 * n + 1], "again": False}
        for n in numbers
    ]
    records.append(
        {"what": "contributed", **who, "reduction": name, "micro_batches": list(numbers)}
    )
    records.append({"what": "reduced", **who, "reduction": name, "parts": [[site, 1]]})
    records.append(
        {
            "what": "applied",
            **who,
            "reduction": name,
            "digest": f"d{name}",
            "from_version": version - 1 if before is None else before,
            "model_version": version,
            "first_layer": layers[0],
            "end_layer": layers[1],
        }
    )
    return records


def two_stages(step, numbers, version, other=None):
    return step_records(0, 0, step, numbers, version, layers=(0, 1)) + step_records(
        1, 1, step, numbers if other is None else other, version, layers=(1, 2)
    )


def test_a_clean_run():
    records = [installed(), *two_stages(0, [0, 1], 1), *two_stages(1, [2], 2)]
    found = audit([records], final_version=2, layers=2)
    assert found.faults == []
    assert found.micro_batches == {0: [0, 1], 1: [2]}
    assert found.lost_and_doubled(dict.fromkeys(range(6), 1)) == (0, 0)
    assert found.lost_and_doubled(dict.fromkeys(range(8), 1)) == (2, 0)


def test_a_doubled_sample_is_counted():
    records = [installed(), *two_stages(0, [0, 1], 1), *two_stages(1, [1], 2)]
    assert audit([records], 2, 2).lost_and_doubled(dict.fromkeys(range(4), 1)) == (0, 2)


def test_stages_with_different_samples_are_a_fault():
    found = audit([[installed(), *two_stages(0, [0, 1], 1, other=[0])]], 1, 2)
    assert any("different samples" in fault for fault in found.faults)


def test_a_stage_that_was_not_updated_is_a_fault():
    records = [installed(), *step_records(0, 0, 0, [0], 1, layers=(0, 1))]
    assert any("layers [1] not updated" in fault for fault in audit([records], 1, 2).faults)


def test_copies_with_other_bytes_are_a_fault():
    one = step_records(0, 0, 0, [0], 1)
    other = [r | {"site": 2, "digest": "other"} for r in one if r["what"] == "applied"]
    found = audit([[installed(), *one], other], 1, 2)
    assert any("copies of stage 0 differ" in fault for fault in found.faults)


def test_missing_evidence_is_a_fault():
    whole = [installed(), *step_records(0, 0, 0, [0], 1)]
    for what in ("contributed", "reduced", "installed"):
        found = audit([[r for r in whole if r["what"] != what]], 1, 2)
        assert found.faults, what
    assert audit([whole], 5, 2).faults
    twice = [*whole[:1], whole[1], *whole[1:]]
    assert any("twice" in fault for fault in audit([twice], 1, 2).faults)


def test_steps_that_were_rolled_back_do_not_count():
    records = [
        installed(),
        *step_records(0, 0, 0, [0], 1),
        *step_records(0, 0, 1, [1], 2),
        installed(3, "checkpoint", 1),
        *step_records(0, 0, 2, [1, 2], 4),
    ]
    found = audit([records], final_version=4, layers=2)
    assert found.faults == []
    assert found.steps == [0, 2]
    assert found.lost_and_doubled(dict.fromkeys(range(6), 1)) == (0, 0)


def test_a_journal_survives_a_cut_line(tmp_path):
    path = tmp_path / "site.jsonl"
    journal = Journal(path)
    journal.write("merged", micro_batch=1)
    with path.open("a") as file:
        file.write('{"what": "contrib')
    assert read_journal(path) == [{"what": "merged", "micro_batch": 1}]
    journal.close()
    path.write_text('{"what": "mer\n{"what": "merged"}\n')
    with pytest.raises(InputError, match=r"site\.jsonl:1"):
        read_journal(path)
