"""DVC as the project starts it: ``python -m pipeline.dvc_program [--parent PID] ARGUMENTS``."""

from __future__ import annotations

import runpy
import sys

from pipeline import environment, lifetime


def main(arguments: list[str]) -> None:
    """Run DVC in this process.

    Args:
        arguments: those of DVC; in front of them ``--parent`` and the id of the process that
            starts it, if DVC shall end with that one.
    """
    if arguments[:1] == ["--parent"]:
        lifetime.die_with_parent(int(arguments[1]))
        arguments = arguments[2:]
    environment.collect_rarely()
    sys.argv[:] = ["dvc", *arguments]
    runpy.run_module("dvc", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
