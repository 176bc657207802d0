"""Exhaustive check of the protocol: ``python -m ranloom.training.model_check``.

Searches every interleaving of a run of two samples on two stages and three sites with the faults
named, then puts known bugs in, one at a time, and expects to find each. Prints the number of
states; exit code 1 if a state must not be, or if a bug was not found.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from ranloom.training.model_check.bugs import BUGS
from ranloom.training.model_check.scope import Scope
from ranloom.training.model_check.search import Searched, search

SHORT = (
    Scope(),
    Scope(instant_tasks=False, cuts=1),
    Scope(tied=True, deaths=1),
    Scope(deaths=1),
    Scope(crashes=1),
    Scope(cuts=1, deaths=1),
    Scope(deaths=1, step_micro_batches=1),
    Scope(moves=1, deaths=1),
    Scope(moves=1, deaths=1, step_micro_batches=1),
    Scope(moves=1, deaths=1, crashes=1, micro_batches=1, step_micro_batches=1),
    # A change of layout takes three steps until it is committed.
    Scope(moves=1, micro_batches=3, step_micro_batches=1),
    Scope(moves=1, crashes=1, micro_batches=3, step_micro_batches=1),
    Scope(moves=1, crashes=1),
    # Everything at once: more than a million states.
    Scope(deaths=1, moves=1, crashes=1),
)
"""Minutes on one core."""

LONG = (Scope(deaths=1, returns=1),)
"""Longer."""


def main(
    whole: Annotated[bool, typer.Option(help="a dead site that comes back, too")] = False,
    limit: Annotated[int, typer.Option(min=1, help="states of a search")] = 100_000_000,
) -> None:
    """Search, and show that the search finds bugs."""
    failed = False
    for scope in (*SHORT, *(LONG if whole else ())):
        began_s = time.process_time()
        found = search(scope, limit)
        failed |= bool(found.violation)
        typer.echo(f"{_shown(scope)}: {_counts(found)}, {time.process_time() - began_s:.0f} s")
        if found.violation:
            typer.echo("\n".join("  " + step for step in (*found.path, found.violation)))
    for name, bug in BUGS.items():
        with bug.present():
            found = search(bug.scope, limit, depth_first=True)
        failed |= not found.violation
        what = f"found after {found.states} states" if found.violation else "NOT FOUND"
        typer.echo(f"bug {name} ({bug.tells}): {what}: {found.violation[:120]}")
    if failed:
        raise typer.Exit(1)


def _shown(scope: Scope) -> str:
    first = Scope(micro_batches=0, step_micro_batches=0, instant_tasks=True)
    changed = (f"{k}={v}" for k, v in asdict(scope).items() if v != getattr(first, k))
    return " ".join(changed)


def _counts(found: Searched) -> str:
    state = "violated" if found.violation else "sound"
    return (
        f"{state}, {found.states} states, {found.steps} steps, {found.ends} ends, "
        f"depth {found.depth}, {found.cores} cores, {found.sites} sites"
    )


if __name__ == "__main__":
    typer.run(main)
