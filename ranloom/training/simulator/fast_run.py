"""A run on the fast path: the coordinator's policies between and within compiled steps.

Quotas, queue, deadlines, rerouting, the trigger of rebalancing and the change of layout are the
classes and functions that the coordinator core is made of; ``fast_step`` only executes. What it
leaves out: lost sites, evictions, speculation, and what a copy's followers add to the totals.

With rerouting, 11 of a thousand random small runs still differ from the event path, by up to 10 %
in the end of the third step; why is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ranloom.errors import InputError
from ranloom.training.air import AirInputs, plan_interval
from ranloom.training.costs import LayerCosts, layer_sum
from ranloom.training.layout import Layout, holder_arrays
from ranloom.training.layout_keeper import LayoutKeeper
from ranloom.training.ledger import Fate, StepLedger
from ranloom.training.links import Links
from ranloom.training.membership import Members
from ranloom.training.messages import CopyDone, Note, NoteKind, Prepared
from ranloom.training.mlr import DeferralTrigger
from ranloom.training.quotas import DebtQuotas
from ranloom.training.sample_queue import MicroBatchQueue
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.simulator import fast_air, fast_reduce, fast_state, fast_step
from ranloom.training.simulator.capacity import Capacity
from ranloom.training.simulator.network import CircuitWindow
from ranloom.training.timing import NominalStep

_UNLIMITED = 1 << 30
_INCARNATION = 1


@dataclass(frozen=True)
class FastWorld:
    """What surrounds the coordinator on the fast path.

    Args:
        activation: links that carry activations.
        sync: links that carry sums and layers.
        windows: circuits beside ``sync``.
        chunks: parts in which sums stream.
        memory_bytes: of each site.
        budget_period_s: how often sites report.
        task_overhead_s: time that a task costs beside its work.
        forward_first: forward before backward tasks.
        unmerged_limit: gradients that a site holds before their micro-batches are complete.
        hidden_share: share of the pipeline's time behind which sums are exchanged already.
    """

    activation: Links
    sync: Links
    windows: tuple[CircuitWindow, ...] = ()
    chunks: int = 1
    memory_bytes: int = 1 << 62
    budget_period_s: float = 1.0
    task_overhead_s: float = 0.0
    forward_first: bool = False
    unmerged_limit: int = _UNLIMITED
    hidden_share: float = 0.0


@dataclass(frozen=True, slots=True)
class FastStep:
    """One closed step.

    Args:
        step: its number.
        start_s: its opening.
        end_s: its sum is reduced.
        samples: samples merged.
        reroutes: keys that got another owner.
        deferred: micro-batches that had to wait.
        moved: whether a new layout was committed right before it.
    """

    step: int
    start_s: float
    end_s: float
    samples: int
    reroutes: int
    deferred: int
    moved: bool


@dataclass
class FastRecord:
    """What came of a run.

    Args:
        steps: closed steps.
        completions_s: when each micro-batch was complete, step by step.
        replans: steps after which MLR fired.
        prepares_s: durations of PREPARE.
        copies_s: durations of COPY.
        events: tasks and transfers that ended.
        busy_s: time at work by site [S].
    """

    steps: list[FastStep] = field(default_factory=list)
    completions_s: list[np.ndarray] = field(default_factory=list)
    replans: list[int] = field(default_factory=list)
    prepares_s: list[float] = field(default_factory=list)
    copies_s: list[float] = field(default_factory=list)
    events: int = 0
    busy_s: np.ndarray = field(default_factory=lambda: np.zeros(0))


class _Observed(StepLedger):
    """The coordinator's view of a step at a control interval."""

    def look(self, step: fast_state.Step) -> None:
        """Bring the fates to what is known now."""
        self.fate[:] = step.rows["fate"]
        self._waiting = int(np.count_nonzero(self.fate == Fate.WAITING))


class FastRun:
    """A run of the coordinator's policies over compiled steps.

    Args:
        settings: of the coordinator; ``speculate`` has no effect.
        world: what surrounds it.
        layout: to start with.
        costs: of the layers.
        tflops: usable compute by site and second [S, K].

    Raises:
        InputError: a trace that cannot be used, a layout that does not fit the costs or the sites,
            or a link without bandwidth.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        world: FastWorld,
        layout: Layout,
        costs: LayerCosts,
        tflops: np.ndarray,
    ) -> None:
        tflops = Capacity(tflops, 1.0).tflops
        sites = len(tflops)
        if max(layout.sites()) >= sites:
            raise InputError("layout.sites", max(layout.sites()), f"allowed: below {sites}")
        _check_links(world.activation, sites)
        _check_links(world.sync, sites)
        self.settings = settings
        self.record = FastRecord(busy_s=np.zeros(sites))
        self.now_s = 0.0
        self.opened_s = 0.0
        self._world = world
        self._costs = costs
        self._members = Members(np.inf, settings.error_weight, settings.margin_errors)
        self._hub_s = world.activation.coordinator_latency_s[:sites]
        for site in range(sites):
            self._members.join(site, world.memory_bytes, float(tflops[site, 0]), 0.0)
        self.keeper = LayoutKeeper(settings, layout, costs, self._members)
        self._queue = MicroBatchQueue(settings.micro_batch_limit)
        self._trigger = DeferralTrigger(
            settings.mlr_threshold, settings.mlr_weight, settings.mlr_patience_steps
        )
        self._nominal = NominalStep(0.0, settings.error_weight)
        self._quotas = DebtQuotas(np.ones(1), settings.debt_gain, settings.max_debt_samples)
        self._tflops = np.ascontiguousarray(tflops.T)
        self._known = np.zeros(sites, dtype=fast_state.MEMBER)
        self._known["tflops"] = self._members.tflops[:sites]
        self._known["next_report_s"] = world.budget_period_s
        self._reports = np.zeros((sites, fast_state.REPORTS), dtype=fast_state.REPORT)
        self._links = np.zeros((sites, sites), dtype=fast_state.LINK)
        gbps = world.activation.bandwidth_gbps[:sites, :sites]
        self._links["seconds"] = costs.boundary_bytes * 8e-9 / gbps
        self._links["latency_s"] = world.activation.latency_s[:sites, :sites]
        self._room = _Room(sites, 0, layout.stages, layout.replicas, world.unmerged_limit)
        windows = [(w.source, w.destination, w.start_s, w.end_s, w.gbps) for w in world.windows]
        self._sync = fast_reduce.SyncPlane(
            np.ascontiguousarray(world.sync.bandwidth_gbps[:sites, :sites]),
            np.ascontiguousarray(world.sync.latency_s[:sites, :sites]),
            np.zeros((sites, sites)),
            np.ascontiguousarray(self._hub_s),
            np.asarray(windows, dtype=np.float64).reshape(-1, 5),
            np.array([settings.reduce_fanout, world.chunks], dtype=np.float64),
        )
        self._places = _Places(layout, world.activation, self._links["seconds"])
        self._copied: list[tuple[float, int]] = []
        self._moved = False
        self._skips = 0
        self._step = 0
        self._next_tick_s = settings.control_interval_s
        self.every_s = np.inf
        self.look: Callable[[], None] = lambda: None
        self._next_look_s = np.inf
        self._begun = False
        self._view: _Observed | None = None

    # --- a run -----------------------------------------------------------------------------------

    def run_until(self, time_s: float, steps: int = _UNLIMITED) -> FastRecord:
        """Train until a time or a number of closed steps; a step that is under way then is left."""
        if not self._begun:
            # every site joins, is welcomed and gets its layout: one way to the coordinator
            self._begun = True
            self.now_s = float(np.max(self._hub_s[list(self.keeper.layout.sites())]))
            self._next_look_s = self.every_s
            self._plan_anew()
        while self.now_s < time_s and len(self.record.steps) < steps:
            if not self._one_step(time_s):
                break
        return self.record

    def halt(self, seconds: float) -> None:
        """Everything stops for that long; what would have ended meanwhile ends then."""
        fast_step.halt(self._now, self.now_s + seconds)

    def request_layout(self, boundaries: tuple[int, ...]) -> None:
        """Ask for other boundaries."""
        self.keeper.request(boundaries, self.now_s)

    # --- a step ----------------------------------------------------------------------------------

    def _one_step(self, stop_s: float) -> bool:
        settings, record = self.settings, self.record
        drawn = self._queue.draw(settings.step_micro_batches)
        if not drawn:
            return False
        layout = self.keeper.layout
        self.opened_s = self.now_s
        step = self._now = self._deal(len(drawn), layout)
        self._hear(self.now_s)
        predicted_s = self.keeper.timing().step_s
        deadline_s = self.now_s + self._allowance_s()
        self._view = None
        fast_step.load(step)
        reroutes = 0
        if settings.rerouting or step.counts[0]["orphans"] > 0:
            reroutes += self._control(step, drawn, deadline_s)
        fast_step.admit_first(step, self.now_s)
        while True:
            until_s = self._pass(step, deadline_s, min(self._next_look_s, stop_s))
            if step.counts[0]["undecided"] <= 0:
                break
            if until_s >= stop_s:
                self._leave(step, stop_s)
                return False
            if not np.isfinite(until_s):
                raise RuntimeError(f"step {self._step} has nothing left to happen")
            self.now_s = until_s
            if until_s == self._next_look_s:
                self._next_look_s += self.every_s
                self.look()
            if until_s == self._next_tick_s:
                self._next_tick_s += settings.control_interval_s
                reroutes += self._control(step, drawn, deadline_s)
                if until_s > deadline_s:
                    for row in np.flatnonzero(step.rows["fate"] < Fate.COMPLETE):
                        fast_step.defer(step, int(row), until_s)
        record.events += int(step.counts[0]["tasks"] + step.counts[0]["transfers"])
        record.busy_s += step.sites["busy_s"]
        self._close(step, drawn, predicted_s, reroutes)
        return True

    def _pass(self, step: fast_state.Step, deadline_s: float, until_s: float) -> float:
        """Go on until something may have to be decided, or until a time; when that is."""
        settings = self.settings
        if not settings.rerouting:
            fast_step.advance(step, until_s, False)
            return until_s
        tick_s, interval_s = self._next_tick_s, settings.control_interval_s
        if not np.isfinite(deadline_s):  # limits follow from the present budgets
            until_s = min(tick_s, until_s)
        steal_s = settings.steal_gain * (deadline_s - self.opened_s)
        limits = (settings.margin_errors, settings.hop_s, deadline_s, steal_s)
        self._next_tick_s = fast_step.watch(step, *limits, tick_s, interval_s, until_s)
        return min(self._next_tick_s, until_s)

    def _leave(self, step: fast_state.Step, stop_s: float) -> None:
        """The run ends within a step: what is complete counts."""
        done_s = step.rows["done_s"][step.rows["fate"] == Fate.COMPLETE]
        self.record.completions_s.append(np.sort(done_s[done_s <= stop_s]))
        self.now_s = stop_s

    def _close(
        self, step: fast_state.Step, drawn: tuple[int, ...], predicted_s: float, reroutes: int
    ) -> None:
        """Seal, reduce, apply; averages, trigger, layout."""
        settings, keeper, record = self.settings, self.keeper, self.record
        sealed_s = float(step.counts[0]["last_s"])
        complete = np.flatnonzero(step.rows["fate"] == Fate.COMPLETE)
        deferred = [drawn[row] for row in np.flatnonzero(step.rows["fate"] == Fate.DEFERRED)]
        self._queue.put_back(deferred)
        holders = step.made_at[1, complete]
        gradients = np.bincount(holders.ravel(), minlength=len(self._hub_s))
        enough = len(complete) >= min(settings.min_step_micro_batches, len(drawn))
        if enough:
            end_s = self._reduce(keeper.layout, gradients > 0, sealed_s)
            self._skips = 0
        else:
            self._queue.put_back([drawn[row] for row in complete])
            end_s = sealed_s
            self._skips += 1
        if deferred or reroutes:
            fast_step.advance(step, end_s, True)
        self._hear(end_s)
        self._known["reports"] = 0
        if enough and not ((deferred or reroutes) and self._nominal.known):
            self._nominal.observe(sealed_s - self.opened_s, predicted_s)
        if len(drawn) == settings.step_micro_batches:
            lanes = self._places.lanes
            done = np.where(lanes < 0, 0, gradients[lanes]).sum(axis=1)
            self._quotas.settle(done * settings.micro_batch_samples / keeper.layout.stages)
        self.now_s = end_s
        while self._next_tick_s <= end_s:
            self._next_tick_s += settings.control_interval_s
        while self._next_look_s <= end_s:
            self._next_look_s += self.every_s
        record.completions_s.append(np.sort(step.rows["done_s"][complete]))
        if enough:
            samples = len(complete) * settings.micro_batch_samples
            what = (samples, reroutes, len(deferred), self._moved)
            record.steps.append(FastStep(self._step, self.opened_s, end_s, *what))
            self._moved = False
        fired = self._trigger.observe(len(deferred), len(drawn))
        if fired and settings.rebalancing:
            record.replans.append(self._step)
            if keeper.rebalance(end_s):
                self._trigger.reset()
            else:
                self._plan_anew()
        self._step += 1
        self._change_layout(sealed_s)

    def _reduce(self, layout: Layout, contributes: np.ndarray, sealed_s: float) -> float:
        pools = self._places.pools
        gradient = np.add.reduceat(self._costs.gradient_bytes, np.asarray(layout.boundaries[:-1]))
        tied = self._costs.tied_bytes if self.settings.tied_embeddings else 0.0
        begun_s = sealed_s - self._world.hidden_share * (sealed_s - self.opened_s)
        what = (contributes, gradient * 8e-9, tied * 8e-9, begun_s)
        end_s = float(fast_reduce.reduce_step(self._sync, pools, *what))
        return max(end_s, sealed_s + 2.0 * float(self._hub_s[pools[pools >= 0]].max()))

    # --- policies --------------------------------------------------------------------------------

    def _plan_anew(self) -> None:
        settings = self.settings
        samples = settings.step_micro_batches * settings.micro_batch_samples
        base = samples * self.keeper.shares()
        self._quotas = DebtQuotas(base, settings.debt_gain, settings.max_debt_samples)
        self._nominal.replan(self.keeper.timing().step_s)
        self._trigger.reset()

    def _hear(self, now_s: float) -> None:
        """Completions and budgets that have reached the coordinator."""
        fast_step.hear_all(self._now, now_s)
        self._learn_members()

    def _learn_members(self) -> None:
        """Bring the records of the sites to what has been heard."""
        sites = len(self._hub_s)
        for name in ("error", "spread", "tflops"):
            getattr(self._members, name)[:sites] = self._known[name]
        self._members.report_budget(0, float(self._members.tflops[0]))  # predictions have changed

    def _allowance_s(self) -> float:
        settings = self.settings
        if not self._nominal.known or not settings.rerouting:
            return np.inf
        nominal_s = self._nominal.step_s * 2.0**self._skips
        return nominal_s * (1.0 + settings.slack_fraction) + settings.control_interval_s

    def _control(self, step: fast_state.Step, drawn: tuple[int, ...], deadline_s: float) -> int:
        """One AIR control interval; how many keys got another owner."""
        settings, now_s = self.settings, self.now_s
        left_s, steal_s = np.inf, np.inf
        if settings.rerouting:
            left_s = deadline_s - now_s
            nominal_s = deadline_s - self.opened_s
            if not np.isfinite(nominal_s):
                self._learn_members()
                nominal_s = self.keeper.timing().step_s
            steal_s = settings.steal_gain * nominal_s
        limits = (settings.margin_errors, settings.hop_s, now_s, left_s, steal_s)
        if not fast_step.suspects(step, *limits):
            return 0
        self._learn_members()
        timing = self.keeper.timing()
        pace = self._members.seconds_per_flop()[: len(self._hub_s)]
        if self._view is None:
            layout = self.keeper.layout
            self._view = _Observed(self._step, 0, layout.epoch, layout.stages, drawn)
        ledger = self._view
        fast_air.reported(step, ledger.records, now_s)
        ledger.look(step)
        busy_since_s = np.ascontiguousarray(self._known["busy_since_s"])
        inputs = AirInputs(
            np.ascontiguousarray(step.sites["stage"]),
            np.ascontiguousarray(step.work[:, 0]),
            np.ascontiguousarray(step.work[:, 1]),
            pace,
            busy_since_s,
            timing.tail_s,
            timing.path_s,
            now_s,
            left_s,
            steal_s,
            settings.hop_s,
            settings.exact_assignment,
        )
        found = plan_interval(ledger, inputs)
        self._known["busy_since_s"] = busy_since_s
        for row in found.deferred_rows:
            fast_step.defer(step, row, now_s)
        for one in found.moves:
            fast_step.move(step, one.row, one.stage, one.target, now_s)
        fast_step.settle(step, now_s)
        return sum(one.source >= 0 for one in found.moves)

    # --- layout ----------------------------------------------------------------------------------

    def _change_layout(self, sealed_s: float) -> None:
        """Between two steps: a change of layout one phase further."""
        change = self.keeper.change
        if change is None:
            return
        for done_s, site in self._copied:
            if done_s <= sealed_s:
                change.on_copied(CopyDone(site, _INCARNATION, change.new.epoch, 0))
        change.seal()
        actions, committed = self.keeper.move(0, self.now_s)
        kinds = {note.kind: note.value for note in actions if isinstance(note, Note)}
        if NoteKind.LAYOUT_PREPARE in kinds:
            for transfer in change.transfers:
                change.on_prepared(Prepared(transfer.target, _INCARNATION, change.new.epoch, True))
        if NoteKind.LAYOUT_COPY in kinds:
            self.record.prepares_s.append(kinds[NoteKind.LAYOUT_COPY])
            self._copied = self._copy()
        if committed:
            self.record.copies_s.append(kinds[NoteKind.LAYOUT_COMMIT])
            self._moved = True
            links, seconds = self._world.activation, self._links["seconds"]
            self._places = _Places(self.keeper.layout, links, seconds)
            self._copied = []
            self._plan_anew()

    def _copy(self) -> list[tuple[float, int]]:
        """When the coordinator knows of each receiver that its layers are there."""
        change = self.keeper.change
        done: dict[int, float] = {}
        for transfer in change.transfers if change is not None else ():
            target, source = transfer.target, transfer.source
            layers = range(transfer.first_layer, transfer.end_layer)
            gbit = layer_sum(self._costs.weight_bytes, layers) * 8e-9
            asked_s = self.now_s + float(
                self._hub_s[target] + self._world.activation.latency_s[target, source]
            )
            there_s = fast_reduce.send(self._sync, source, target, gbit, asked_s, asked_s)
            known_s = there_s + float(self._hub_s[target])
            done[target] = max(done.get(target, 0.0), known_s)
        return [(known_s, site) for site, known_s in done.items()]

    # --- arrays ----------------------------------------------------------------------------------

    def _deal(self, count: int, layout: Layout) -> fast_state.Step:
        """Micro-batches to replicas by quota, evenly over the step, as ``RunCycle`` does."""
        counts = self._quotas.micro_batches(count)
        replica = np.repeat(np.arange(layout.replicas), counts)
        turn = np.concatenate([(np.arange(part) + 0.5) / part for part in counts if part])
        replica = replica[np.lexsort((replica, turn))]
        keys = np.zeros((count, layout.stages), dtype=fast_state.KEY)
        keys["owner"] = self._places.lanes[replica]
        rows = np.zeros(count, dtype=fast_state.ROW)
        rows["replica"] = replica
        rows["admitted_s"] = rows["done_s"] = np.inf
        self._known["busy_since_s"] = np.nan
        if count > self._room.rows:
            shape = (len(self._hub_s), count, layout.stages, layout.replicas)
            self._room = _Room(*shape, self._world.unmerged_limit)
        room = self._room
        room.clear(layout, self._hub_s)
        room.counts["undecided"], room.counts["last_s"] = count, self.now_s
        ends = np.cumsum(counts)
        limit = self._world.unmerged_limit
        return fast_state.Step(
            keys=keys,
            made_at=np.full((2, count, layout.stages), -1, dtype=np.int32),
            done_s=room.done_s,
            rows=rows,
            lane_rows=np.argsort(replica, kind="stable"),
            lane_next=ends - counts,
            lane_end=ends,
            sites=room.sites,
            links=self._links,
            known=room.known,
            tasks=room.tasks,
            parked=room.parked,
            mails=room.mails,
            pools=self._places.pools,
            complete=room.complete,
            arrivals=room.arrivals,
            ready=room.ready,
            held=room.held,
            clock=room.clock,
            tflops=self._tflops,
            work=np.ascontiguousarray(np.stack(self.keeper.stage_flop(), axis=1)),
            members=self._known,
            reports=self._reports,
            counts=room.counts,
            window=self.settings.window,
            unmerged_limit=limit if limit < _UNLIMITED else 0,
            forward_first=self._world.forward_first,
            overhead_s=self._world.task_overhead_s,
            error_weight=self.settings.error_weight,
            budget_period_s=self._world.budget_period_s,
            lookahead_s=self._places.lookahead_s,
            asking_s=self._places.asking_s,
            in_order=self._places.in_order,
        )


class _Room:
    """Working memory of the compiled loop, kept from step to step.

    What only rows that have moved need is made clean when one does.

    Args:
        sites: sites S.
        rows: largest number of micro-batches of a step.
        stages: pipeline stages.
        places: holders of a stage, at most.
        unmerged_limit: gradients that a site holds.
    """

    def __init__(
        self, sites: int, rows: int, stages: int, places: int, unmerged_limit: int
    ) -> None:
        self.rows = rows
        self.known = np.zeros((rows, stages), dtype=fast_state.KNOWN)
        self.tasks = np.zeros((rows, sites), dtype=fast_state.TASK)
        self.parked = np.zeros((2, rows, sites, places), dtype=np.int8)
        self.mails = np.zeros(fast_state.MAILS, dtype=fast_state.MAIL)
        self.done_s = np.zeros((2, rows, stages))
        reports = rows + fast_state.MAILS + sites * fast_state.REPORTS
        self.complete = np.zeros((reports, 1), dtype=fast_state.ARRIVAL)
        self.sites = np.zeros(sites, dtype=fast_state.SITE)
        self.arrivals = np.zeros((4 * rows + 8, sites), dtype=fast_state.ARRIVAL)
        self.ready = np.zeros((2, rows + 1, sites), dtype=np.int32)
        held = 1 if unmerged_limit >= _UNLIMITED else unmerged_limit + rows + 2
        self.held = np.zeros((sites, held), dtype=np.int32)
        self.clock = np.full(sites, np.inf)
        self.counts = np.zeros(1, dtype=fast_state.COUNTS)

    def clear(self, layout: Layout, hub_s: np.ndarray) -> None:
        """Everything idle, in that layout."""
        self.sites[:] = np.zeros(1, dtype=fast_state.SITE)
        self.clock[:] = np.inf
        self.sites["row"] = -1
        self.sites["stage"] = -1
        self.sites["hub_s"] = hub_s
        holders, stages = holder_arrays(layout)
        self.sites["stage"][holders] = stages
        for stage in range(layout.stages):
            pool = layout.pool(stage)
            self.sites["place"][list(pool)] = np.arange(len(pool))
        self.counts[:] = np.zeros(1, dtype=fast_state.COUNTS)


class _Places:
    """Who holds what, and how far apart the holders are.

    Args:
        layout: in force.
        links: between the sites, activation plane.
        seconds: that a boundary tensor occupies each of them [S, S].
    """

    def __init__(self, layout: Layout, links: Links, seconds: np.ndarray) -> None:
        self.lanes = np.array(layout.lanes)
        self.pools = np.ascontiguousarray(self.lanes.T)
        hub_s = links.coordinator_latency_s
        delays = [hub_s[list(layout.sites())]]
        self.in_order = True
        for stage in range(1, layout.stages):
            pair = np.ix_(layout.pool(stage - 1), layout.pool(stage))
            delays += [links.latency_s[pair], links.latency_s.T[pair]]
            later_s = hub_s[pair[1]] - hub_s[pair[0]]
            there_s = links.latency_s[pair] + seconds[pair] + later_s
            back_s = links.latency_s.T[pair] + seconds.T[pair] - later_s
            self.in_order &= bool(min(there_s.min(), back_s.min()) > 0.0)
        self.lookahead_s = min(float(delay.min()) for delay in delays)
        # from the coordinator by way of a consumer to a producer; rounded up
        self.asking_s = 2.0 * max(float(delay.max()) for delay in delays) + 1e-6


def _check_links(links: Links, sites: int) -> None:
    if links.sites < sites:
        raise InputError(f"links {links.name}", links.sites, f"allowed: at least {sites} sites")
    slow = links.bandwidth_gbps[:sites, :sites]
    if not np.all(slow > 0.0):
        raise InputError(f"links {links.name}", float(slow.min()), "allowed: bandwidth above 0")
