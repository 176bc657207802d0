"""Search through all reachable states of a model, breadth first or depth first."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ranloom.training.model_check.model import Model, Scope, State
from ranloom.training.model_check.parts import ModelViolationError


class TooManyStatesError(RuntimeError):
    """The search was given up."""


@dataclass(frozen=True)
class Searched:
    """What a search found.

    Args:
        states: states reached.
        steps: steps between them.
        ends: states in which the run was finished.
        depth: steps from the start to the farthest state.
        cores: states of the coordinator core among them.
        sites: states of site processes among them.
        violation: what must not be; empty if nothing was found.
        path: the way there, the shortest one if the search was breadth first.
    """

    states: int
    steps: int
    ends: int
    depth: int
    cores: int
    sites: int
    violation: str
    path: tuple[str, ...]


def search(scope: Scope, limit: int = 1 << 62, depth_first: bool = False) -> Searched:
    """Visit every state that a run can come to, until one must not be.

    Args:
        scope: what may happen.
        limit: states after which the search is given up.
        depth_first: reach ends of runs early; a violation is then found sooner, by a longer way.

    Raises:
        TooManyStatesError: there are more states.
    """
    model = Model(scope)
    first = model.start()
    came_from: dict[State, State | None] = {first: None}
    frontier: deque[tuple[State, int]] = deque([(first, 0)])
    steps = ends = depth = 0
    violation = ""
    path: tuple[str, ...] = ()
    while frontier and not violation:
        state, at = frontier.pop() if depth_first else frontier.popleft()
        depth = max(depth, at)
        try:
            ends += model.check(state)
            for _, after in model.next(state):
                steps += 1
                if after not in came_from:
                    came_from[after] = state
                    frontier.append((after, at + 1))
        except (AssertionError, ValueError, KeyError, IndexError) as error:
            violation = f"{type(error).__name__}: {error}"
            path = _path(model, came_from, state)
        if len(came_from) > limit:
            raise TooManyStatesError(f"more than {limit} states")
    return Searched(
        len(came_from),
        steps,
        ends,
        depth,
        len(model.cores),
        len(model.sites),
        violation,
        path,
    )


def _path(model: Model, came_from: dict[State, State | None], last: State) -> tuple[str, ...]:
    """Names of the steps to a state."""
    names: list[str] = []
    state, before = last, came_from[last]
    while before is not None:
        try:
            names.append(next(name for name, after in model.next(before) if after == state))
        except ModelViolationError:
            names.append("?")
        state, before = before, came_from[before]
    return tuple(reversed(names))
