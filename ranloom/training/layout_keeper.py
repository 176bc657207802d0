"""The layout in force, the one on its way, and what follows from both."""

from __future__ import annotations

import numpy as np

from ranloom.errors import InputError
from ranloom.training.costs import LayerCosts
from ranloom.training.layout import Layout
from ranloom.training.layout_change import LayoutChange
from ranloom.training.membership import Members
from ranloom.training.messages import Action, Install, Note, NoteKind, WeightsFrom
from ranloom.training.mlr import plan_boundaries
from ranloom.training.refill import fill_vacancies, rebuild
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.timing import StageTiming, pool_rates, stage_timing


class LayoutKeeper:
    """Keeps the layout and moves it from one to the next.

    Args:
        settings: of the coordinator.
        layout: layout to start with.
        costs: costs of the layers.
        members: the sites.

    Raises:
        InputError: a layout for another number of layers, or with a stage that nobody holds.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        layout: Layout,
        costs: LayerCosts,
        members: Members,
    ) -> None:
        if layout.boundaries[-1] != costs.layers or layout.vacant_stages():
            raise InputError(
                "layout.boundaries",
                layout.boundaries,
                f"allowed: a cut of {costs.layers} layers, every stage with a site",
            )
        self._settings = settings
        self._costs = costs
        self._members = members
        self.layout = layout
        self.pools = [layout.pool(stage) for stage in range(layout.stages)]
        self.change: LayoutChange | None = None
        self.last_install: dict[int, Install] = {}
        self._flop: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}
        self._last_epoch = layout.epoch
        self._places = len(layout.sites())

    def stage_flop(self, layout: Layout | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Forward and backward work of each stage [P], [P], of the layout in force or another."""
        layout = layout or self.layout
        if layout.boundaries not in self._flop:
            self._flop[layout.boundaries] = self._costs.stage_flop(layout)
        return self._flop[layout.boundaries]

    def timing(self, layout: Layout | None = None) -> StageTiming:
        """Predicted times under the present budgets, of the layout in force or another one."""
        layout = layout or self.layout
        forward, backward = self.stage_flop(layout)
        return stage_timing(
            layout,
            forward,
            backward,
            self._members.seconds_per_flop(),
            self._settings.step_micro_batches,
            self._settings.hop_s,
        )

    def shares(self) -> np.ndarray:
        """Share of each replica in the capacity, averaged over the stages [D]."""
        pace = self._members.seconds_per_flop()
        rates = pool_rates(self.layout, pace)
        share = np.zeros(self.layout.replicas)
        for replica, stage, site in self.layout.holders():
            share[replica] += 1.0 / (pace[site] * rates[stage])
        return np.asarray(share / share.sum())

    def install(
        self, model_version: int, weights_from: WeightsFrom, checkpoint_version: int = -1
    ) -> list[Action]:
        """Put the layout in force at every holder."""
        self.last_install = {}
        for _, stage, site in self.layout.holders():
            layers = self.layout.layers(stage)
            self.last_install[site] = Install(
                site,
                int(self._members.incarnation[site]),
                self.layout.epoch,
                stage,
                layers.start,
                layers.stop,
                model_version,
                weights_from,
                checkpoint_version,
            )
        return list(self.last_install.values())

    def lose_site(self, site: int) -> list[Action]:
        """Take a lost site out of the layout and end a change that needs it."""
        actions: list[Action] = []
        self.last_install.pop(site, None)
        if self.change is not None and self.change.involves(site):
            actions = self.abort("site_lost")
        self.layout = self.layout.without(site)
        self._refresh_pools()
        return actions

    def _refresh_pools(self) -> None:
        self.pools[:] = [self.layout.pool(stage) for stage in range(self.layout.stages)]

    def rebalance(self, now_s: float) -> bool:
        """MLR has fired: whether boundaries are going to move (False: only plan anew)."""
        settings = self._settings
        if self.change is not None:
            return True
        try:
            boundaries = plan_boundaries(
                self.layout,
                self._costs,
                self._members.seconds_per_flop(),
                self._members.memory_bytes,
                settings.step_micro_batches,
                settings.window,
                settings.hop_s,
            )
        except InputError:
            return False
        moved = self.layout.with_boundaries(self.layout.epoch, boundaries)
        gain = self.timing().step_s / self.timing(moved).step_s - 1.0
        if moved == self.layout or not gain >= settings.mlr_min_gain:
            return False
        self._begin(moved, now_s)
        return True

    def request(self, boundaries: tuple[int, ...], now_s: float) -> bool:
        """Begin a change to these boundaries; False if they cannot be, or something is changing.

        Raises:
            InputError: boundaries that do not rise from 0.
        """
        moved = self.layout.with_boundaries(self.layout.epoch, boundaries)
        if self.change is not None or moved == self.layout:
            return False
        if moved.stages != self.layout.stages or moved.boundaries[-1] != self._costs.layers:
            return False
        self._begin(moved, now_s)
        return True

    def refill(self, now_s: float) -> None:
        """Let spare sites take vacant places, if there are both and nothing else is changing."""
        if self.change is not None:
            return
        spare = [s for s in self._members.living() if self.layout.place_of(s) is None]
        if not spare:
            return
        need = self._costs.stage_bytes(self.layout, self._settings.window)
        # A layout that was rebuilt for few survivors grows again as sites come back.
        replicas = -(-self._places // self.layout.stages)
        filled = fill_vacancies(self.layout, spare, need, self._members.memory_bytes, replicas)
        if filled.lanes != self.layout.lanes:
            self._begin(filled, now_s)

    def _begin(self, layout: Layout, now_s: float) -> None:
        self._last_epoch += 1
        new = Layout(self._last_epoch, layout.boundaries, layout.lanes)
        self.change = LayoutChange(self.layout, new, self._members, now_s)

    def move(self, model_version: int, now_s: float) -> tuple[list[Action], bool]:
        """At a step boundary: take the change one phase further.

        Returns:
            What to send, and whether the new layout is in force now.
        """
        change = self.change
        if change is None:
            return [], False
        actions: list[Action] = []
        if not change.announced:
            actions.append(_note(NoteKind.LAYOUT_PREPARE, change, 0.0))
            actions.extend(change.prepare())
        if change.ready_to_commit:
            self.change = None
            self.layout = change.new
            self._refresh_pools()
            actions.append(_note(NoteKind.LAYOUT_COMMIT, change, now_s - change.copying_since_s))
            actions.extend(self.install(model_version, WeightsFrom.COPY))
            return actions, True
        if change.ready_to_copy:
            actions.append(_note(NoteKind.LAYOUT_COPY, change, now_s - change.started_s))
            actions.extend(change.copy(model_version, now_s))
        return actions, False

    def abort(self, reason: str) -> list[Action]:
        """Give up the change on its way, if there is one."""
        change, self.change = self.change, None
        if change is None:
            return []
        actions = change.abort() if change.announced else []
        return [*actions, Note(NoteKind.LAYOUT_ABORT, reason=reason)]

    def rebuild(self) -> bool:
        """Replace a broken layout by one for the survivors; False if none fits."""
        settings = self._settings
        rebuilt = rebuild(
            self.layout,
            self._members.living(),
            self._costs,
            self._members.seconds_per_flop(),
            self._members.memory_bytes,
            settings.step_micro_batches,
            settings.window,
            settings.hop_s,
        )
        if rebuilt is None:
            return False
        self._last_epoch += 1
        self.layout = Layout(self._last_epoch, rebuilt.boundaries, rebuilt.lanes)
        self._refresh_pools()
        return True


def _note(kind: NoteKind, change: LayoutChange, seconds: float) -> Note:
    return Note(kind, value=seconds, reason="|".join(map(str, change.new.boundaries)))
