"""The command line of the stages package: ``python -m stages <stage or command>``.

DVC starts a process for each stage, so whatever a command needs is imported by that command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from pipeline import environment, lifetime
from pipeline.registry import Registry, discover, discover_for

USAGE = """\
usage: python -m stages COMMAND

  <stage>      run one stage in place, from the outputs of the stages before it
  list         the stages in order
  check        validate parameters, user files and declarations; one line a fault
  render       write dvc.yaml and the generated pages from the declarations
  ast-commit   commit to DVC, without a re-run, edits that touched only comments, docstrings
               and formatting"""


def main(
    arguments: Sequence[str], root: Path, package: ModuleType, input_error: type[Exception]
) -> int:
    """Run a stage or a command.

    Args:
        arguments: command line without the program's name.
        root: root of the workspace.
        package: package that holds the stage modules.
        input_error: what the library raises on bad input.

    Returns:
        Exit code; 2 for unusable input.
    """
    if "DVC_STAGE" in os.environ:  # started by hand, a stage may outlive the shell
        lifetime.die_with_parent()
    environment.apply()
    environment.single_threaded()
    environment.collect_rarely()
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    name, *rest = arguments
    if rest:
        return _usage(f"{name} takes no arguments")
    own = discover_for(package, name)
    if own is not None:
        return _run_stage(root, own, name, input_error)
    registry = discover(package)
    commands: dict[str, Callable[[], int]] = {
        "list": lambda: _list(registry),
        "check": lambda: _check(root, registry, input_error),
        "render": lambda: _render(root, registry),
        "ast-commit": lambda: _ast_commit(root, registry),
    }
    if name not in commands:
        return _usage(f"there is no stage or command {name!r}; stages: {', '.join(registry)}")
    return commands[name]()


def _run_stage(root: Path, registry: Registry, name: str, input_error: type[Exception]) -> int:
    from pipeline import runner

    lifetime.exit_on_terminate()
    try:
        return runner.run(root, registry, name, input_error)
    except KeyboardInterrupt:
        print(f"{name}: interrupted, the previous outputs are unchanged", file=sys.stderr)
        return 130


def _list(registry: Registry) -> int:
    for stage in registry.values():
        print(f"{stage.name:20} {stage.title}")
    return 0


def _check(root: Path, registry: Registry, input_error: type[Exception]) -> int:
    from pipeline import check, runner

    faults = check.check(root, registry, input_error)
    if faults:
        return runner.refuse(faults)
    print(f"{len(registry)} stages checked: parameters, files and declarations are in order")
    return 0


def _render(root: Path, registry: Registry) -> int:
    from pipeline import render, runner

    if declared := registry.faults():
        return runner.refuse(declared)
    for path in render.write(root, registry):
        print(f"wrote {path.relative_to(root)}")
    return 0


def _ast_commit(root: Path, registry: Registry) -> int:
    from pipeline import ast_commit, runner

    if declared := registry.faults():
        return runner.refuse(declared)
    return ast_commit.main(root, registry)


def _usage(problem: str) -> int:
    print(problem, file=sys.stderr)
    return 2
