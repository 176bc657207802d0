"""``dvc repro`` over the rendered pipeline: what re-runs, what does not, what is lost: nothing."""

from __future__ import annotations

import json
import shutil

from pipeline.fingerprint import locked_entries


def test_a_parameter_re_runs_exactly_what_depends_on_it(built) -> None:
    built.set("total.factor", 3)
    built.edit("params.yaml", "  seed: 7", "  other: 1\n  seed: 7")
    assert built.reproduced() == ["total"]
    built.set("base.seed", 8)
    assert built.reproduced() == ["draw", "total"]


def test_code_outside_the_frame_re_runs_nothing(built) -> None:
    for file in ("pipeline/cli.py", "pipeline/runner.py", "pipeline/tracking.py"):
        (built.root / file).write_text((built.root / file).read_text() + "\nEXTRA = 1\n")
    assert built.reproduced() == []
    built.edit("ranloom/constants.py", "2.0", "4.0")
    assert built.reproduced() == ["total"]


def test_a_users_file_outside_the_repository(built, tmp_path) -> None:
    """The path is a parameter, the content a dependency."""
    outside = tmp_path / "mine.txt"
    outside.write_text("1\n2\n")
    built.set("draw.source_path", str(outside))
    assert built.reproduced("draw") == ["draw"]
    assert built.reproduced("draw") == []
    outside.write_text("1\n3\n")
    assert built.reproduced("draw") == ["draw"]
    assert str(outside) in locked_entries(built.root)["draw"].deps


def test_a_users_folder(built, tmp_path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.txt").write_text("1\n")
    built.set("draw.source_path", str(folder))
    assert built.reproduced("draw") == ["draw"]
    (folder / "b.txt").write_text("2\n")
    assert built.reproduced("draw") == ["draw"]
    shutil.rmtree(folder)
    (line,) = built.stages("check", code=2).stderr.splitlines()
    assert line == (
        f"params.yaml: draw.source_path: '{folder}' is not usable; "
        "an existing file or folder is expected"
    )


def test_bad_parameters_cost_no_result(built) -> None:
    """DVC removes outs before a command starts, unless they persist."""
    before = built.outs()
    lock = (built.root / "dvc.lock").read_bytes()
    built.set("draw.rows", -1)
    done = built.dvc("repro", code=255)
    assert "params.yaml: draw.rows: -1 is not usable" in done.stderr
    assert "Traceback" not in done.stderr
    assert built.outs() == before
    assert (built.root / "dvc.lock").read_bytes() == lock
    assert "outs/draw/metrics.json" in built.run("git", "ls-files").stdout


def test_a_clone_without_the_cache_is_rebuilt(built, tmp_path) -> None:
    """Also a stage whose metrics are all in git: it has a cached out."""
    built.run("git", "clone", "-q", str(built.root), str(tmp_path / "clone"))
    clone = type(built)(tmp_path / "clone")
    assert {"draw/metrics.json", "total/metrics.json"} == set(clone.outs())
    metrics = clone.outs()
    assert clone.reproduced() == ["draw", "total"]
    assert {k: clone.outs()[k] for k in metrics} == metrics
    assert clone.run("git", "status", "--porcelain", "outs", "dvc.yaml").stdout == ""


def test_push_and_pull(built, tmp_path) -> None:
    """Outputs come back from a remote without running anything."""
    built.dvc("remote", "add", "--default", "store", str(tmp_path / "remote"))
    built.dvc("push")
    before = built.outs()
    shutil.rmtree(built.root / ".dvc" / "cache")
    shutil.rmtree(built.root / "outs")
    built.run("git", "checkout", "-q", "--", "outs")
    built.dvc("pull")
    assert built.outs() == before
    assert built.reproduced() == []


def test_experiments_set_parameters(built) -> None:
    built.dvc("exp", "run", "--quiet", "-S", "total.factor=5")
    assert locked_entries(built.root)["total"].params["total"]["factor"] == 5
    assert '"factor"' not in built.dvc("metrics", "show").stdout


def test_an_experiment_with_an_unknown_key_changes_nothing(built) -> None:
    """DVC refuses it before anything of ours runs; what it proposes instead, `check` refuses."""
    before = built.outs()
    done = built.dvc("exp", "run", "-S", "total.facter=5", code=255)
    assert "Could not override 'total.facter'" in done.stderr  # README quotes it
    assert built.run("git", "status", "--porcelain").stdout == ""
    for key, right in (("base.sed", "seed"), ("total.facter", "factor")):
        built.dvc("exp", "run", "--quiet", "-S", f"+{key}=5", code=None)
        (line,) = built.stages("check", code=2).stderr.splitlines()
        assert line == f"params.yaml: {key}: unknown key; did you mean {right!r}?"
        built.run("git", "checkout", "-q", "params.yaml")
    assert built.outs() == before


def test_plots_and_metrics_are_known_to_dvc(built) -> None:
    shown = built.dvc("metrics", "show").stdout
    assert "outs/total/measured/metrics.json" in shown
    assert "outs/draw/metrics.json" in shown
    (plot,) = json.loads(built.dvc("plots", "show", "--json").stdout)["data"]["draw: values"]
    assert [row["row"] for row in plot["content"]["data"]["values"]] == ["0", "1", "2", "3", "4"]


def test_what_a_stage_refuses_while_running_ends_the_command_with_2(built) -> None:
    """``check`` sees only the shape of a file; DVC turns the 2 into a 255."""
    before = built.outs()
    built.edit("stages/draw.py", "    check=check,\n", "")
    (built.root / "data" / "in.txt").write_text("1\nx\n")
    done = built.ranloom("run", code=2)
    assert done.stderr.splitlines()[-1] == "in.txt: row 2: 'x' is not usable; a number is expected"
    assert built.outs() == before
