"""Refinement and proof by CP-SAT (OR-Tools): the same problem, solved to optimality if it can.

Three solves in lexicographic order, each starting from a complete hint: the plan at hand,
then the previous solve. Deterministic: limits count work, not seconds, and the parallel
searches of the solver run interleaved in one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import process_time

import numpy as np
from ortools.sat.python import cp_model

from ranloom.errors import InputError
from ranloom.transport.bound import lower_bound
from ranloom.transport.demands import IntArray
from ranloom.transport.network import Network
from ranloom.transport.plan import PACKET, WINDOW, Plan
from ranloom.transport.state import PlanState

#: Clock of the model. Releases and lengths are rounded up to it, deadlines down.
_TICK_NS = 1_000
#: How often a solve looks at its limit of CPU time.
_LOOK_S = 0.05


@dataclass(frozen=True)
class Refined:
    """Result of :func:`refine`.

    Args:
        plan: the best plan found, never worse than the one given.
        proven: how many of (missed bytes, set-ups, circuit time) are proven optimal, in
            that order: 0 to 3.
        bound: lower bounds of the three, each given that the ones before it are kept.
    """

    plan: Plan
    proven: int
    bound: tuple[int, int, int]


class _Model:
    """Variables and constraints; times in ticks, rows as in the demands."""

    def __init__(
        self, state: PlanState, windows_per_pair: IntArray, packet: bool, windows: bool
    ) -> None:
        self.state = state
        self.model = cp_model.CpModel()
        demands = state.demands
        self.release = -(-demands.release_ns // _TICK_NS)
        self.deadline = demands.deadline_ns // _TICK_NS
        self.transmit = -(-state.rules.transmit_ns // _TICK_NS)
        self.setup = -(-state.rules.setup_ns // _TICK_NS)
        self.guard = -(-state.network.settings.guard_ns // _TICK_NS)
        self.now = -(-state.rules.now_ns // _TICK_NS)
        self.packet = {
            row: self.model.new_bool_var(f"p{row}")
            for row in range(len(demands))
            if packet and state.can_packet[row]
        }
        self.on: dict[tuple[int, int], cp_model.IntVar] = {}
        self.start: dict[tuple[int, int], cp_model.IntVar] = {}
        self.length: dict[tuple[int, int], cp_model.IntVar] = {}
        self.rides: dict[tuple[int, int], cp_model.IntVar] = {}
        self.way: dict[tuple[int, int, int], cp_model.IntVar] = {}
        self._on_node: dict[str, list[cp_model.IntervalVar]] = {}
        self._on_link: dict[int, list[cp_model.IntervalVar]] = {}
        if windows:
            for pair in range(len(state.network.pairs)):
                rows = np.flatnonzero(state.pair_of == pair)
                rows = rows[self.release[rows] + self.transmit[rows] <= self.deadline[rows]]
                for slot in range(min(int(windows_per_pair[pair]), len(rows))):
                    self._window(pair, slot, rows)
        self.missed = {}
        for row in range(len(demands)):
            options = [v for (r, _), v in self.rides.items() if r == row]
            options += [self.packet[row]] if row in self.packet else []
            self.missed[row] = self.model.new_bool_var(f"m{row}")
            self.model.add_exactly_one([*options, self.missed[row]])
        self._limits()
        self._demand_bounds()
        size = [int(b) for b in demands.bytes]
        self.objectives = (
            sum(size[row] * literal for row, literal in self.missed.items()),
            sum(self.on.values()),
            sum(self.length.values()),
        )

    def _window(self, pair: int, slot: int, rows: IntArray) -> None:
        model, key = self.model, (pair, slot)
        last = int(self.deadline[rows].max())
        most = int(self.setup + self.transmit[rows].sum())
        on = model.new_bool_var(f"on{key}")
        start = model.new_int_var(int(self.now), max(last, int(self.now)), f"s{key}")
        length = model.new_int_var(0, most, f"l{key}")
        end = model.new_int_var(int(self.now), max(last, int(self.now)) + most, f"e{key}")
        self.on[key], self.start[key], self.length[key] = on, start, length
        rides = {int(row): model.new_bool_var(f"w{row},{slot}") for row in rows}
        for row, literal in rides.items():
            self.rides[row, slot] = literal
            model.add_implication(literal, on)
            model.add(end <= int(self.deadline[row])).only_enforce_if(literal)
            behind = sum(
                int(self.transmit[k]) * rides[k]
                for k in rides
                if self.release[k] >= self.release[row]
            )
            model.add(end >= int(self.release[row]) + behind).only_enforce_if(literal)
        model.add_bool_or(*rides.values()).only_enforce_if(on)
        model.add(
            length
            == int(self.setup) * on
            + sum(int(self.transmit[row]) * literal for row, literal in rides.items())
        )
        model.add(end == start + length)
        if slot:
            before = (pair, slot - 1)
            model.add_implication(on, self.on[before])
            model.add(start >= self.start[before]).only_enforce_if(on)
        blocked = model.new_int_var(0, most + int(self.guard), f"g{key}")
        free = model.new_int_var(0, max(last, int(self.now)) + most + int(self.guard), f"f{key}")
        model.add(blocked == length + int(self.guard))
        interval = model.new_optional_interval_var(start, blocked, free, on, f"i{key}")
        source, destination = self.state.network.pairs[pair]
        for node in (source, destination):
            self._on_node.setdefault(node, []).append(interval)
        paths = self.state.network.paths[pair]
        for index, path in enumerate(paths):
            way = on if len(paths) == 1 else model.new_bool_var(f"y{key},{index}")
            self.way[pair, slot, index] = way
            there = model.new_optional_interval_var(start, blocked, free, way, f"i{key},{index}")
            for link in path.links:
                self._on_link.setdefault(link, []).append(there)
        if len(paths) > 1:
            model.add(sum(self.way[pair, slot, k] for k in range(len(paths))) == on)

    def _limits(self) -> None:
        network = self.state.network
        ports = dict(zip(network.nodes, network.ports.tolist(), strict=True))
        for node, intervals in self._on_node.items():
            if ports[node] == 1:
                self.model.add_no_overlap(intervals)
            elif len(intervals) > ports[node]:
                self.model.add_cumulative(intervals, [1] * len(intervals), ports[node])
        for link, intervals in self._on_link.items():
            # Where every window ends at one hub its ports limit the links too.
            fewest = min(int(p) for p in network.ports) if len(self._hubs()) > 1 else None
            hub_limit = ports[next(iter(self._hubs()))] if fewest is None else len(intervals)
            limit = int(network.wavelengths[link])
            if len(intervals) > limit and hub_limit > limit:
                self.model.add_cumulative(intervals, [1] * len(intervals), limit)

    def _hubs(self) -> set[str]:
        return {destination for _, destination in self.state.network.pairs}

    def _demand_bounds(self) -> None:
        for part in self.state.side.parts:
            for server in (cover.server for cover in part.covers):
                work = -(-server.work // _TICK_NS)
                release = self.release[server.rows]
                deadline = self.deadline[server.rows]
                for a in np.unique(release):
                    for d in np.unique(deadline[deadline > a]):
                        both = np.flatnonzero((release >= a) & (deadline <= d))
                        inside = [k for k in both if int(server.rows[k]) in self.packet]
                        if sum(int(work[k]) for k in inside) > d - a:
                            self.model.add(
                                sum(int(work[k]) * self.packet[int(server.rows[k])] for k in inside)
                                <= int(d - a)
                            )

    def hint(self, plan: Plan) -> None:
        """A complete hint from a plan of the same demands."""
        self.model.clear_hints()
        for row, literal in self.packet.items():
            self.model.add_hint(literal, bool(plan.mode[row] == PACKET))
        pair_of = self.state.pair_of
        by_pair: dict[int, list[int]] = {}
        for index in range(len(plan.windows)):
            rider = int(np.flatnonzero(plan.window_of == index)[0])
            by_pair.setdefault(int(pair_of[rider]), []).append(index)
        slot_of = {w: (p, k) for p, ws in by_pair.items() for k, w in enumerate(ws)}
        used = {slot: w for w, slot in slot_of.items()}
        for (row, slot), literal in self.rides.items():
            there = used.get((int(pair_of[row]), slot), -2)
            self.model.add_hint(literal, bool(plan.window_of[row] == there))
        for key, on in self.on.items():
            self.model.add_hint(on, key in used)
            window = plan.windows[used[key]] if key in used else None
            ticks = -(-window.start_ns // _TICK_NS) if window else int(self.now)
            self.model.add_hint(self.start[key], ticks)
        for row, literal in self.missed.items():
            self.model.add_hint(literal, bool(plan.mode[row] not in (PACKET, WINDOW)))
        for (pair, slot, index), way in self.way.items():
            if len(self.state.network.paths[pair]) > 1:
                w = used.get((pair, slot))
                nodes = self.state.network.paths[pair][index].nodes
                self.model.add_hint(way, w is not None and plan.windows[w].path == nodes)

    def plan(self, solver: cp_model.CpSolver, strategy: str) -> Plan | None:
        """The solver's answer placed in a fresh state; None where rounding makes it not fit."""
        state = self.state.emptied()
        packet = np.array([r for r, v in self.packet.items() if solver.boolean_value(v)], np.int64)
        jobs = []
        for key, on in self.on.items():
            if solver.boolean_value(on):
                rows = [
                    row
                    for (row, slot), literal in self.rides.items()
                    if slot == key[1]
                    and self.state.pair_of[row] == key[0]
                    and solver.boolean_value(literal)
                ]
                job = state.job_of(np.array(rows, dtype=np.int64))
                jobs.append((solver.value(self.start[key]) * _TICK_NS, key, job))
        jobs.sort(key=lambda item: item[:2])
        for start, _, job in jobs:
            if state.open_near(job, start) is None:
                return None
        state.to_packet(packet)
        for part in range(len(state.side.parts)):
            if not state.side.fits(part, state.mode == PACKET):
                return None
        return state.finished(strategy)


@contextmanager
def _stopped(solver: cp_model.CpSolver, until: float | None) -> Iterator[None]:
    """Stop a solve once the process has used that much CPU time."""
    over = threading.Event()

    def watch() -> None:
        # A stop before the search has begun is lost, so it is repeated.
        while until is not None and not over.wait(_LOOK_S):
            if process_time() >= until:
                solver.stop_search()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def refine(
    plan: Plan,
    network: Network,
    *,
    packet: bool = True,
    windows: bool = True,
    deterministic_time: float,
    seed: int,
    now_ns: int = 0,
    cpu_s: float | None = None,
) -> Refined:
    """Improve a plan by CP-SAT and say what it proves.

    Args:
        plan: a feasible plan, used as the hint.
        network: the network that it was made for.
        packet: whether demands may travel as packets.
        windows: whether windows may be lit.
        deterministic_time: limit of each of the three solves in the solver's own unit.
        seed: of the solver.
        now_ns: no window starts earlier.
        cpu_s: limit of all three solves in CPU seconds of this process, for benchmarks: results
            then depend on the machine, but not on what else runs there.

    Raises:
        InputError: a packet route with several binding links, which the model does not cover.
    """
    if any(len(binding) > 1 for binding in network.binding):
        raise InputError("refine", "several binding links", "one bottleneck per packet route")
    state = PlanState(plan.demands, network, now_ns=now_ns, packet=packet, windows=windows)
    used = np.bincount(
        [state.pair_of[np.flatnonzero(plan.window_of == w)[0]] for w in range(len(plan.windows))],
        minlength=len(network.pairs),
    )
    model = _Model(state, np.maximum(state.fewest + 1, used), packet, windows)
    least = lower_bound(plan, network, packet=packet, windows=windows, now_ns=now_ns)
    model.model.add(model.objectives[0] >= least.missed_bytes)
    until = None if cpu_s is None else process_time() + cpu_s
    best, proven, bounds = plan, 0, [0, 0, 0]
    for level, objective in enumerate(model.objectives):
        model.hint(best)
        model.model.minimize(objective)
        solver = cp_model.CpSolver()
        solver.parameters.random_seed = seed
        solver.parameters.num_workers = 8
        solver.parameters.max_deterministic_time = deterministic_time
        solver.parameters.interleave_search = until is None
        with _stopped(solver, until):
            status = solver.solve(model.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            break
        found = model.plan(solver, plan.strategy)
        if found is not None and found.objective < best.objective:
            best = found
        scale = _TICK_NS if level == 2 else 1
        bounds[level] = round(solver.best_objective_bound) * scale
        if status == cp_model.OPTIMAL and proven == level:
            proven = level + 1
        if level < 2:
            model.model.add(objective <= round(solver.objective_value))
    return Refined(best, proven, (bounds[0], bounds[1], bounds[2]))
