"""Entry points: ``python -m stages <stage or command>`` and ``ranloom``."""

from __future__ import annotations

import sys
from pathlib import Path

import stages
from pipeline import commands
from ranloom.errors import InputError


def main() -> int:
    """Run a stage or a command in the current folder, the root of a workspace."""
    return commands.main(sys.argv[1:], Path.cwd(), stages, InputError)


def ranloom() -> None:
    """The ``ranloom`` command, which works from any folder."""
    from pipeline import cli

    cli.main(Path(__file__).resolve().parent.parent, stages, InputError)


if __name__ == "__main__":
    sys.exit(main())
