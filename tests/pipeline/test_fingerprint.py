"""Fingerprints had live and from dvc.lock are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.fingerprint import (
    Entry,
    Pipeline,
    fingerprint,
    locked_entries,
    locked_outs,
    path_hash,
    pipeline_key,
)


def test_live_equals_locked(toy, tmp_path: Path) -> None:
    """Also for a folder, an absolute path outside the repository, and nested parameters."""
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "b.csv").write_text("1,2\n")
    (outside / "deep" / "a.csv").write_text("3\n")
    toy.set_param("make.source", str(outside))
    before = Pipeline(toy.root)
    key = before.key()
    make = before.live("make")
    toy.repro()
    locked = locked_entries(toy.root)
    after = Pipeline(toy.root)
    assert fingerprint(make) == fingerprint(locked["make"])
    assert make == locked["make"]
    assert {n: fingerprint(after.live(n)) for n in after.stages} == {
        n: fingerprint(e) for n, e in locked.items()
    }
    assert key == after.key() == pipeline_key(locked, after.outs)
    assert make.deps[str(outside)].endswith(".dir")
    assert set(locked_outs(toy.root, "make")) == {
        "outs/make/series.parquet",
        "outs/make/metrics.json",
    }
    (outside / "deep" / "a.csv").write_text("4\n")
    assert fingerprint(Pipeline(toy.root).live("make")) != fingerprint(make)


def test_missing_dependency_is_named(toy) -> None:
    toy.set_param("make.source", "nowhere")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Pipeline(toy.root).live("make")


def test_every_part_counts() -> None:
    base = Entry("run", {"a": "1"}, {"k": 1})
    others = [
        Entry("walk", {"a": "1"}, {"k": 1}),
        Entry("run", {"a": "2"}, {"k": 1}),
        Entry("run", {"b": "1"}, {"k": 1}),
        Entry("run", {"a": "1"}, {"k": 1.5}),
    ]
    prints = {fingerprint(e) for e in [base, *others]}
    assert len(prints) == 5


def test_key_ignores_outs_of_stages() -> None:
    def key(hash_of_out: str, hash_of_data: str) -> str:
        return pipeline_key(
            {"s": Entry("run", {"outs/a/x.parquet": hash_of_out, "data/y": hash_of_data}, {})},
            ["outs/a/x.parquet"],
        )

    assert key("1", "1") == key("2", "1")
    assert key("1", "1") != key("1", "2")


def test_hash_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"hello\r\n")
    assert path_hash(file) == "af5597c29467a96523a70787c319f4db"
