"""Rolling re-planning: a plan that follows the clock and bends where reality differs.

The plan is carried out event by event. What has begun stays: a window is *committed* once its
set-up starts (or ``notice`` before), and a transfer that has sent its first packet stays on
the packet layer. Everything else may move when a release slips, a set-up fails or a fibre is
cut. The answer is never worse than going on as planned: going on is one of the candidates,
and another one is taken only where it comes before it in the order of the objective (missed
bytes, set-ups, light).

Cf. rolling-horizon control; scheduled paths that are re-optimised: RFC 8413, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import networkx as nx
import numpy as np

from ranloom.errors import InputError
from ranloom.transport.demands import BoolArray, Demands, IntArray
from ranloom.transport.local_search import improve
from ranloom.transport.network import Network, build_network
from ranloom.transport.occupancy import Seat
from ranloom.transport.packet import Segments, work_ns
from ranloom.transport.packet_side import PacketSide
from ranloom.transport.plan import MISSED, PACKET, WINDOW, Plan, Window
from ranloom.transport.planner import construct
from ranloom.transport.points import no_points
from ranloom.transport.reservation import Reservation
from ranloom.transport.state import PlanState
from ranloom.transport.topology import Topology
from ranloom.transport.windows import served

#: Later than anything happens.
NEVER_NS = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class ReplanRules:
    """How re-planning may act.

    Args:
        packet: whether demands may travel as packets.
        windows: whether windows may be lit.
        effort: moves that local search may try at each re-planning; 0 only keeps what fits.
        notice_ns: a window is committed so long before its start.
        reservations: optical use by others.
    """

    packet: bool = True
    windows: bool = True
    effort: int = 200
    notice_ns: int = 0
    reservations: tuple[Reservation, ...] = ()


@dataclass
class _Committed:
    """A window that stays: whose riders it has and whether light still comes.

    Args:
        window: as planned, or cut short at the moment of a fault.
        rows: its riders, in the order of service.
    """

    window: Window
    rows: IntArray


@dataclass(frozen=True)
class Choice:
    """What a re-planning decided about the transfers that are not under way in windows.

    Args:
        kept: objective of going on as planned: missed bytes, set-ups to come, light to come.
        chosen: objective of the plan that was taken; not above ``kept``.
        moved: windows of the old plan that are not in the new one at the same time and place.
    """

    kept: tuple[int, int, int]
    chosen: tuple[int, int, int]
    moved: int


class RollingPlan:
    """A plan under way. All times are ns on the plan's axis.

    Args:
        plan: plan of shaped transfers; its demands carry the releases expected by it.
        topology: the topology, from which fibres may be cut.
        network: the network of the plan.
        rules: how re-planning may act.
    """

    def __init__(
        self, plan: Plan, topology: Topology, network: Network, rules: ReplanRules
    ) -> None:
        demands = plan.demands
        n = len(demands)
        self.demands = demands
        self.topology = topology
        self.network = network
        self.rules = rules
        self.now_ns = 0
        self.release_ns: IntArray = demands.release_ns.copy()
        self.finish_ns: IntArray = np.full(n, -1, dtype=np.int64)
        self.choices: list[Choice] = []
        self._bits = demands.bytes * 8.0
        self._left_bits = self._bits.copy()
        self._committed: list[_Committed] = []
        self._sent: list[tuple[int, int, int, float]] = []
        # what is still to come: a plan of some rows
        self._rows: IntArray = np.arange(n)
        self._plan = plan

    # What the clock does

    def next_start_ns(self) -> int:
        """When the next window is committed; a far future without any."""
        starts = [w.start_ns - self.rules.notice_ns for w in self._plan.windows]
        return min(starts, default=NEVER_NS)

    def committed(self) -> tuple[Window, ...]:
        """Windows that were committed so far, in that order."""
        return tuple(held.window for held in self._committed)

    def upcoming(self) -> Plan:
        """The plan of what is still to come; its demands have only what is left to send."""
        return self._plan

    def reservations(self) -> tuple[Reservation, ...]:
        """Optical use that what is to come respects: that of others, and committed windows."""
        guard = self.network.settings.guard_ns
        live = [w for w in self.committed() if w.end_ns + guard > self.now_ns]
        mine = [Reservation.of_window(window, guard) for window in live]
        return (*self.rules.reservations, *mine)

    def advance(self, to_ns: int) -> None:
        """Follow the plan until then; windows whose time has come are committed.

        Raises:
            InputError: time runs backwards.
        """
        if to_ns < self.now_ns:
            raise InputError("to_ns", to_ns, f"allowed: {self.now_ns} or later")
        plan = self._plan
        self._send(plan.segments, to_ns)
        arrived = (plan.mode == PACKET) & (plan.finish_ns <= to_ns)
        late = (plan.mode == MISSED) & (plan.finish_ns >= 0) & (plan.finish_ns <= to_ns)
        done = arrived | late
        self.finish_ns[self._rows[done]] = plan.finish_ns[done]
        for index, window in enumerate(plan.windows):
            if window.start_ns - self.rules.notice_ns <= to_ns:
                riders = np.flatnonzero(plan.window_of == index)
                riders = riders[np.argsort(plan.demands.release_ns[riders], kind="stable")]
                self._committed.append(_Committed(window, self._rows[riders]))
                self.finish_ns[self._rows[riders]] = plan.finish_ns[riders]
                done[riders] = True
        if done.any():
            self._keep_only(~done)
        self.now_ns = to_ns

    def _send(self, segments: Segments, to_ns: int) -> None:
        """Packets between now and then leave."""
        start = np.maximum(segments.start_ns, self.now_ns)
        end = np.minimum(segments.end_ns, to_ns)
        for k in np.flatnonzero(end > start):
            row = int(self._rows[segments.row[k]])
            gbps = float(segments.gbps[k])
            self._sent.append((row, int(start[k]), int(end[k]), gbps))
            self._left_bits[row] -= gbps * float(end[k] - start[k])

    def _keep_only(self, left: BoolArray) -> None:
        """Drop rows of the upcoming plan that are done or on their way."""
        plan = self._plan
        position = np.cumsum(left) - 1
        riding = np.unique(plan.window_of[left & (plan.window_of >= 0)])
        number = np.full(len(plan.windows) + 1, -1, dtype=np.int64)
        number[riding] = np.arange(len(riding))
        stays = left[plan.segments.row]
        segments = Segments(
            position[plan.segments.row[stays]],
            plan.segments.start_ns[stays],
            plan.segments.end_ns[stays],
            plan.segments.gbps[stays],
        )
        self._rows = self._rows[left]
        self._plan = replace(
            plan,
            demands=plan.demands.take(left),
            mode=plan.mode[left],
            window_of=number[plan.window_of[left]],
            finish_ns=plan.finish_ns[left],
            windows=tuple(plan.windows[int(k)] for k in riding),
            segments=segments,
        )

    # What happens

    def learn(self, row: int, release_ns: int) -> None:
        """A release is known, or expected, at another time; :meth:`replan` acts on it."""
        self.release_ns[row] = release_ns
        for held in self._committed:
            if row in held.rows:
                self._ride(held)

    def fail(self, index: int) -> None:
        """The set-up of a committed window fails now: it goes dark and its riders wait again."""
        held = self._committed[index]
        lost = held.rows[self.finish_ns[held.rows] > self.now_ns]
        end = max(held.window.start_ns, min(held.window.end_ns, self.now_ns))
        riding = held.rows[~np.isin(held.rows, lost)]
        held.rows = riding
        carried = int(self.demands.bytes[riding].sum())
        held.window = replace(held.window, end_ns=end, bytes=carried)
        self._wait_again(lost)

    def cut(self, a: str, b: str) -> None:
        """Fibre ``a``-``b`` is cut now, in both directions: light and packets on it stop.

        Raises:
            InputError: no such fibre.
        """
        self.topology = self.topology.without_link(a, b)
        graph = self.topology.graph
        pairs = [pair for pair in self.network.pairs if nx.has_path(graph, *pair)]
        self.network = build_network(self.topology, pairs, self.network.settings)
        for index, held in enumerate(self._committed):
            hops = [set(hop) for hop in pairwise(held.window.path)]
            if held.window.end_ns > self.now_ns and {a, b} in hops:
                self.fail(index)

    def _ride(self, held: _Committed) -> None:
        """Serve a committed window's riders by their releases; the late ones wait again."""
        rows, window = held.rows, held.window
        sending = work_ns(self.demands.bytes[rows], self.network.settings.circuit_gbps)
        begun = self.finish_ns[rows] - sending < self.now_ns
        ready = int(self.finish_ns[rows[begun]].max(initial=window.start_ns + window.setup_ns))
        stays, finish = self._served(window, rows[~begun], ready)
        self.finish_ns[stays] = finish
        held.rows = np.concatenate((rows[begun], stays))
        held.window = replace(window, bytes=int(self.demands.bytes[held.rows].sum()))
        self._wait_again(rows[~np.isin(rows, held.rows)])

    def _served(self, window: Window, rows: IntArray, ready_ns: int) -> tuple[IntArray, IntArray]:
        return served(
            rows,
            max(ready_ns, self.now_ns),
            window.end_ns,
            self.demands.released(self.release_ns),
            self.network.settings.circuit_gbps,
        )

    def _wait_again(self, rows: IntArray) -> None:
        self.finish_ns[rows] = -1
        self._rows = np.concatenate((self._rows, rows))
        plan, count = self._plan, len(rows)
        self._plan = replace(
            plan,
            demands=self.demands.take(self._rows),
            mode=np.concatenate((plan.mode, np.full(count, MISSED, dtype=np.int8))),
            window_of=np.concatenate((plan.window_of, np.full(count, -1, dtype=np.int64))),
            finish_ns=np.concatenate((plan.finish_ns, np.full(count, -1, dtype=np.int64))),
        )

    # What is done about it

    def replan(self) -> Choice:
        """Plan anew what is not committed, with what is known now."""
        for held in self._committed:
            self._fill(held)
        before = self._plan
        rows, demands = self._rows, self._left()
        known = set(self.network.pairs)
        reachable = np.array([pair in known for pair in demands.pairs()], dtype=np.bool_)
        open_ = reachable & (demands.deadline_ns > self.now_ns)
        local = np.flatnonzero(open_)
        fresh = demands.take(local)
        begun = self._left_bits[rows[local]] < self._bits[rows[local]]
        state = PlanState(
            fresh,
            self.network,
            now_ns=self.now_ns + self.rules.notice_ns,
            packet=self.rules.packet,
            windows=self.rules.windows,
            reservations=self.reservations(),
            may_ride=~begun,
            windows_before=self._windows_by_pair(before),
        )
        position = np.full(len(rows), -1, dtype=np.int64)
        position[local] = np.arange(len(local))
        self._go_on(state, before, position)
        candidates = [state.finished(before.strategy)]
        if self.rules.effort and len(local):
            improve(state, self.rules.effort)
            candidates.append(state.finished(before.strategy))
            anew = state.emptied()
            construct(anew, self.rules.effort)
            improve(anew, self.rules.effort)
            candidates.append(anew.finished(before.strategy))
        weights = self.demands.bytes[rows[local]]
        costs = [(int(weights[c.mode == MISSED].sum()), c.setups, c.circuit_ns) for c in candidates]
        best = min(range(len(costs)), key=lambda k: costs[k])
        self._rows = rows[local]
        self._plan = candidates[best]
        given_up = int(self.demands.bytes[rows[~open_]].sum())
        choice = Choice(
            kept=(costs[0][0] + given_up, *costs[0][1:]),
            chosen=(costs[best][0] + given_up, *costs[best][1:]),
            moved=len(_places(before) - _places(self._plan)),
        )
        self.choices.append(choice)
        return choice

    def respread(self) -> None:
        """Send packets in the order of deadlines with the releases known; nothing else moves.

        Enough where demands are there earlier than planned.
        """
        plan, demands = self._plan, self._left()
        pair_of = self.network.pair_of(demands)
        side = PacketSide(demands, self.network, pair_of, no_points(len(demands)))
        packet = plan.mode == PACKET
        if all(side.fits(part, packet) for part in range(len(side.parts))):
            finish, segments = side.schedule(packet)
            finish = np.where(packet, finish, plan.finish_ns)
            self._plan = replace(plan, demands=demands, finish_ns=finish, segments=segments)

    def _fill(self, held: _Committed) -> None:
        """Let waiting rows ride behind a committed window's riders, in the room that is left."""
        window = held.window
        if window.end_ns <= self.now_ns:
            return
        plan = self._plan
        ends = (window.source, window.destination)
        idle = np.array([pair == ends for pair in plan.demands.pairs()], dtype=np.bool_)
        idle &= (plan.mode != PACKET) & (self._left_bits[self._rows] >= self._bits[self._rows])
        for row in self._rows[idle]:
            lit = window.start_ns + window.setup_ns
            ready = int(self.finish_ns[held.rows].max(initial=lit))
            stays, finish = self._served(window, np.array([row]), ready)
            self.finish_ns[stays] = finish
            held.rows = np.concatenate((held.rows, stays))
        held.window = replace(window, bytes=int(self.demands.bytes[held.rows].sum()))
        self._keep_only(~np.isin(self._rows, held.rows))

    def _windows_by_pair(self, plan: Plan) -> IntArray:
        number = {pair: k for k, pair in enumerate(self.network.pairs)}
        ends = [(window.source, window.destination) for window in plan.windows]
        count = np.zeros(len(number), dtype=np.int64)
        for pair in ends:
            if pair in number:
                count[number[pair]] += 1
        return count

    def _left(self) -> Demands:
        """The rows of the upcoming plan with what is left to send and the releases known."""
        known = self.demands.take(self._rows)
        # Rounded down: what was planned for the rest is then always enough for it.
        left = np.maximum(1, np.floor(self._left_bits[self._rows] / 8.0 + 1e-6)).astype(np.int64)
        release = np.maximum(self.release_ns[self._rows], self.now_ns)
        return replace(known, bytes=left, release_ns=release)

    def _go_on(self, state: PlanState, before: Plan, position: IntArray) -> None:
        """Windows stay where they are with the riders that make it, packets stay packets."""
        for index, window in enumerate(before.windows):
            rows = position[before.window_of == index]
            stays, _ = served(
                rows[rows >= 0],
                window.start_ns + window.setup_ns,
                window.end_ns,
                state.demands,
                self.network.settings.circuit_gbps,
            )
            if len(stays) == 0 or window.start_ns < state.rules.now_ns:
                continue
            ways = self.network.paths[int(state.pair_of[stays[0]])]
            path = next((k for k, way in enumerate(ways) if way.nodes == window.path), None)
            if path is None:
                continue
            job = state.job_of(stays)
            channel = window.wavelength if state.occupancy.explicit else -1
            state.open_at(job, Seat(path, channel, max(window.start_ns, job.first_start_ns)))
        packet = np.zeros(len(state.mode), dtype=np.bool_)
        mine = position[(before.mode == PACKET) & (position >= 0)]
        packet[mine] = state.can_packet[mine]
        for number, part in enumerate(state.side.parts):
            if not state.side.fits(number, packet):
                state.repack(number)
                continue
            state.mode[part.rows[packet[part.rows]]] = PACKET
            idle = part.rows[state.mode[part.rows] == MISSED]
            for row in idle[np.argsort(-state.demands.bytes[idle], kind="stable")]:
                if state.fits_with(np.array([row])):
                    state.to_packet(np.array([row]))

    # What became of it

    def result(self) -> Plan:
        """What has happened so far as a plan of all demands; what is not there is missed."""
        window_of = np.full(len(self.demands), -1, dtype=np.int64)
        for index, held in enumerate(self._committed):
            window_of[held.rows] = index
        finish = np.where(self.finish_ns <= self.now_ns, self.finish_ns, -1)
        window_of[finish < 0] = -1
        late = (finish < 0) | (finish > self.demands.deadline_ns)
        mode = np.where(late, MISSED, np.where(window_of >= 0, WINDOW, PACKET)).astype(np.int8)
        row, start, end, gbps = zip(*self._sent, strict=True) if self._sent else ((),) * 4
        return Plan(
            strategy=self._plan.strategy,
            demands=self.demands.released(self.release_ns),
            mode=mode,
            window_of=window_of,
            finish_ns=finish,
            windows=self.committed(),
            segments=Segments(
                np.array(row, dtype=np.int64),
                np.array(start, dtype=np.int64),
                np.array(end, dtype=np.int64),
                np.array(gbps, dtype=np.float64),
            ),
        )


def _places(plan: Plan) -> set[tuple[tuple[str, ...], int]]:
    """Path and end of each window."""
    return {(window.path, window.end_ns) for window in plan.windows}
