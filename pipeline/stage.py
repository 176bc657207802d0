"""Declaration of a stage: what it reads, what it writes, which parameters it takes.

A stage module holds one ``STAGE = Stage(...)``. Everything else (``dvc.yaml``, the
schema pages, input checks, fingerprints) is derived from that declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from pipeline.io import Inputs, Outputs


Share = Annotated[float, Field(gt=0, le=1)]
"""A part of a whole, as an element of a list."""


class StageParams(BaseModel):
    """Base of every parameter block: frozen, no unknown keys, no defaults in code.

    A stage that uses shared values declares a field ``base`` whose type is another
    ``StageParams`` naming just the ``base.<key>`` values that it reads.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class Column:
    """One column of a table; its unit is part of its name.

    Args:
        name: column name, with a unit suffix where the type carries none.
        type: Arrow type name: ``int16``, ``int32``, ``int64``, ``float64``, ``bool``,
            ``string`` (strings are stored dictionary-encoded).
        description: meaning and range, for the schema page.
        nullable: whether nulls may occur.
    """

    name: str
    type: str
    description: str
    nullable: bool = False


@dataclass(frozen=True)
class Table:
    """A Parquet output with a documented schema."""

    file: str
    description: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class File:
    """Any other single-file output: JSON, safetensors, HTML."""

    file: str
    description: str


@dataclass(frozen=True)
class Folder:
    """An output folder whose files are not known beforehand (figures)."""

    file: str
    description: str


Output = Table | File | Folder


@dataclass(frozen=True)
class FromStage:
    """Input: a declared output of another stage."""

    stage: str
    output: str


@dataclass(frozen=True)
class FromParam:
    """Input: a user's file or folder, named by a parameter (a templated DVC dep).

    The parameter may stand in the block of another stage that reads the same file.

    Args:
        key: dotted name of the parameter.
        folder: whether a folder will do as well as a file.
    """

    key: str
    folder: bool = False


@dataclass(frozen=True)
class FromRepo:
    """Input: a data file that is part of the repository."""

    path: str


@dataclass(frozen=True)
class MetricsOf:
    """Input: ``metrics.json`` of another stage."""

    stage: str


@dataclass(frozen=True)
class MeasuredOf:
    """Input: the ``measured/`` folder of another stage; only ``report`` may use it."""

    stage: str


Input = FromStage | FromParam | FromRepo | MetricsOf | MeasuredOf


class Remark(str):
    """Stands in a :class:`Fault` for a value that there is not; shown without quotes."""

    __slots__ = ()


ABSENT = Remark("missing")
UNKNOWN = Remark("unknown key")


@dataclass(frozen=True)
class Fault:
    """One fault found by ``check``: where, what value, what is allowed."""

    where: str
    value: object
    allowed: str

    def line(self) -> str:
        """The fault in one line, worded like the library's own input errors."""
        if isinstance(self.value, Remark):
            return f"{self.where}: {self.value}; {self.allowed}"
        shown = repr(self.value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        return f"{self.where}: {shown} is not usable; {self.allowed}"


@dataclass(frozen=True)
class Result:
    """What ``run`` returns.

    Args:
        metrics: numbers and booleans, nested by name; identical for identical input.
        measured: the same for anything that depends on wall time; written to
            ``measured/metrics.json``.
    """

    metrics: Mapping[str, Any]
    measured: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plot:
    """A DVC plot over a declared table.

    DVC cannot plot Parquet: the runner writes the two columns to
    ``outs/<stage>/plots/<name>.csv``.

    Args:
        output: logical name of the table.
        x: column of the abscissa.
        y: column of the ordinate.
        title: title of the plot.
        where: column name to the value that a row must have, to pick one series.
    """

    output: str
    x: str
    y: str
    title: str
    where: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """File name stem, unique within the stage."""
        picked = [str(value) for value in self.where.values()]
        return "-".join([self.output, *picked, self.y, "by", self.x])


@dataclass(frozen=True)
class Stage:
    """A stage of the chain.

    Args:
        name: also the module name, the ``params.yaml`` block and the folder in ``outs/``.
        title: one line, shown in lists and in the report.
        params: parameter model of the block.
        inputs: logical name to source.
        outputs: logical name to file. All lie in ``outs/<name>/``.
        run: the work. Reads only ``inputs``, writes only ``outputs``.
        headline: dotted metric names shown after a run and on the parent MLflow run.
        measured: whether the stage fills ``outs/<name>/measured/``
            (``metrics.json`` always, more files through ``outputs.measured``).
        plots: DVC plots.
        check: further faults of parameters and user files, found without running.
    """

    name: str
    title: str
    params: type[StageParams]
    inputs: Mapping[str, Input]
    outputs: Mapping[str, Output]
    run: Callable[[Any, Inputs, Outputs], Result]
    headline: tuple[str, ...] = ()
    measured: bool = False
    plots: tuple[Plot, ...] = ()
    check: Callable[[Any, Mapping[str, Path]], Iterable[Fault]] | None = None
