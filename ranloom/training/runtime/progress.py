"""What a run streams while it goes on: figures by step, and a bar on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ranloom.training.messages import NoteKind

_COUNTED = {
    NoteKind.REROUTED: "reroutes",
    NoteKind.DEFERRED: "deferrals",
    NoteKind.SPECULATED: "speculations",
    NoteKind.REOPENED: "reopened",
    NoteKind.SITE_LOST: "sites_lost",
    NoteKind.RECOVERED: "coordinator_recoveries",
    NoteKind.LAYOUT_PREPARE: "layout_prepare",
    NoteKind.LAYOUT_COPY: "layout_copy",
    NoteKind.LAYOUT_COMMIT: "layout_commit",
    NoteKind.LAYOUT_ABORT: "layout_abort",
}
Stream = Callable[[str, float, int], None]
"""Takes a name, a value and a step."""


class StepStream:
    """Turns the notes of a run into figures by step: loss, samples, tokens/s, counters so far.

    Args:
        stream: takes each figure.
        tokens_per_sample: predicted tokens of a sample, on average.
    """

    def __init__(self, stream: Stream, tokens_per_sample: float) -> None:
        self._stream = stream
        self._tokens = tokens_per_sample
        self._counts: Counter[str] = Counter()
        self._opened_s: dict[int, float] = {}

    def __call__(self, note: Mapping[str, object]) -> None:
        """Take the fields of one note."""
        kind, step = NoteKind(str(note["kind"])), int(str(note["step"]))
        value, now_s = float(str(note["value"])), float(str(note["now_s"]))
        if kind is NoteKind.REJECTED:
            self._counts[f"rejected_{note['reason']}"] += 1
        elif kind in _COUNTED:
            self._counts[_COUNTED[kind]] += 1
        elif kind is NoteKind.STEP_OPENED:
            self._opened_s[step] = now_s
        elif kind is NoteKind.STEP_LOSS:
            self._stream("loss", value, step)
        elif kind is NoteKind.STEP_REDUCED:
            self._stream("samples", value, step)
            seconds = now_s - self._opened_s.pop(step, now_s)
            if seconds > 0.0:
                self._stream("tokens_per_s", value * self._tokens / seconds, step)
            for name, count in self._counts.items():
                self._stream(name, float(count), step)


class StepBar:
    """A progress bar over the steps of a run; shows nothing where there is no terminal.

    Args:
        steps: steps' worth of samples in the run.
        file: where to; standard error if not given.
    """

    def __init__(self, steps: int, file: TextIO | None = None) -> None:
        console = Console(file=file, stderr=file is None)
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps  loss {task.fields[loss]}  {task.fields[event]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("", total=steps, loss="-", event="")

    def __enter__(self) -> StepBar:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def __call__(self, note: Mapping[str, object]) -> None:
        """Take the fields of one note."""
        kind = note["kind"]
        if kind == NoteKind.STEP_LOSS:
            self._bar.update(self._task, loss=f"{float(str(note['value'])):.4f}")
        elif kind == NoteKind.STEP_REDUCED:
            self._bar.advance(self._task)
        elif kind == NoteKind.ROLLED_BACK:
            self._bar.update(self._task, event="rolled back")
        elif kind in (NoteKind.SITE_LOST, NoteKind.RECOVERED, NoteKind.LAYOUT_COMMIT):
            self._bar.update(self._task, event=str(kind).replace("_", " "))
