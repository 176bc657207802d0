"""All stages of the chain: discovery, order, and where each input lies.

The pipeline does not import the stages; whoever starts it hands the package in.
"""

from __future__ import annotations

import graphlib
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from types import ModuleType

from pydantic.fields import FieldInfo

from pipeline.stage import (
    FromParam,
    FromRepo,
    FromStage,
    Input,
    MeasuredOf,
    MetricsOf,
    Stage,
    StageParams,
    Table,
)

OUTS = "outs"
METRICS = "metrics.json"
MEASURED = "measured"
PLOTS = "plots"

COLUMN_TYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "float32", "float64", "string"}
)


def base_model(stage: Stage) -> type[StageParams] | None:
    """The model of the ``base`` values that a stage reads, if it reads any."""
    field = stage.params.model_fields.get("base")
    if field is None:
        return None
    model = field.annotation
    if not (isinstance(model, type) and issubclass(model, StageParams)):
        raise TypeError(f"stage {stage.name}: the type of field `base` must be a StageParams")
    return model


def base_keys(stage: Stage) -> tuple[str, ...]:
    """Names of the ``base`` values that a stage reads, in declared order."""
    model = base_model(stage)
    return tuple(model.model_fields) if model else ()


def location(source: Input, registry: Registry) -> str:
    """Where an input lies, relative to the root; a user's path as ``${block.key}``.

    Raises:
        KeyError: the source names a stage or an output that is not declared.
    """
    match source:
        case FromStage(stage, output):
            return f"{OUTS}/{stage}/{registry[stage].outputs[output].file}"
        case MetricsOf(stage):
            return f"{OUTS}/{registry[stage].name}/{METRICS}"
        case MeasuredOf(stage):
            return f"{OUTS}/{registry[stage].name}/{MEASURED}"
        case FromRepo(path):
            return path
        case FromParam(key):
            return f"${{{key}}}"


class Registry(Mapping[str, Stage]):
    """The declared stages, in an order in which each follows what it reads.

    Args:
        stages: the declarations, in any order. They may be inconsistent: ``faults`` tells.
    """

    def __init__(self, stages: Iterable[Stage]) -> None:
        given = {stage.name: stage for stage in sorted(stages, key=lambda s: s.name)}
        sorter = graphlib.TopologicalSorter(
            {name: [u for u in upstream(s) if u in given] for name, s in given.items()}
        )
        sorter.prepare()
        ordered: list[str] = []
        while sorter.is_active():
            ready = sorted(sorter.get_ready())
            ordered += ready
            sorter.done(*ready)
        self._stages = {name: given[name] for name in ordered}

    def __getitem__(self, name: str) -> Stage:
        return self._stages[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stages)

    def __len__(self) -> int:
        return len(self._stages)

    def faults(self) -> list[str]:
        """Everything that is wrong with the declarations, one line each."""
        return [line for stage in self.values() for line in self.faults_of(stage)]

    def faults_of(self, stage: Stage) -> Iterator[str]:
        """What is wrong with one declaration, one line each."""
        at = f"stages/{stage.name}.py"
        if not stage.outputs:
            yield f"{at}: declares no output; a stage without a cached out is never re-run by DVC"
        seen: dict[str, str] = {}
        for name, output in stage.outputs.items():
            path = PurePosixPath(output.file)
            if path.is_absolute() or ".." in path.parts:
                yield f"{at}: output {name}: {output.file} must lie in {OUTS}/{stage.name}/"
            if path.parts and path.parts[0] in (METRICS, MEASURED, PLOTS):
                yield f"{at}: output {name}: {path.parts[0]} is written by the pipeline"
            for other, file in seen.items():
                nested = PurePosixPath(file)
                if path == nested or path in nested.parents or nested in path.parents:
                    yield f"{at}: outputs {other} and {name} overlap: {file}, {output.file}"
            seen[name] = output.file
            if isinstance(output, Table):
                yield from _table_faults(f"{at}: output {name}", output)
        for name, source in stage.inputs.items():
            yield from self._input_faults(f"{at}: input {name}", stage, source)
        for plot in stage.plots:
            table = stage.outputs.get(plot.output)
            if not isinstance(table, Table):
                yield f"{at}: plot {plot.title!r}: {plot.output!r} is no table of this stage"
                continue
            columns = {column.name for column in table.columns}
            for column in sorted({plot.x, plot.y, *plot.where} - columns):
                yield f"{at}: plot {plot.title!r}: {plot.output} has no column {column!r}"
        if len({plot.name for plot in stage.plots}) < len(stage.plots):
            yield f"{at}: two plots show the same columns of the same rows"
        yield from _default_faults(at, stage.params)

    def _input_faults(self, at: str, stage: Stage, source: Input) -> Iterator[str]:
        match source:
            case FromStage(name, output):
                if name not in self:
                    yield f"{at}: there is no stage {name!r}"
                elif output not in self[name].outputs:
                    known = ", ".join(self[name].outputs)
                    yield f"{at}: stage {name} has no output {output!r}; it has {known}"
            case MetricsOf(name):
                if name not in self:
                    yield f"{at}: there is no stage {name!r}"
            case MeasuredOf(name):
                if stage.name != "report":
                    yield f"{at}: only report may read what depends on wall time"
                if name not in self:
                    yield f"{at}: there is no stage {name!r}"
                elif not self[name].measured:
                    yield f"{at}: stage {name} measures nothing"
            case FromRepo(path):
                if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                    yield f"{at}: {path} must lie in the repository"
            case FromParam(key):
                if not self._is_parameter(key, stage):
                    yield f"{at}: {key!r} is no parameter"

    def _is_parameter(self, key: str, reader: Stage) -> bool:
        """Whether a dotted key exists: a ``base`` value of the reader, or in any stage's block."""
        block, *path = key.split(".")
        if block == "base":
            model: object = base_model(reader)
        else:
            model = self[block].params if block in self else None
        for part in path:
            if not (isinstance(model, type) and issubclass(model, StageParams)):
                return False
            if part not in model.model_fields:
                return False
            model = model.model_fields[part].annotation
        return bool(path)


def upstream(stage: Stage) -> tuple[str, ...]:
    """Names of the stages that a stage reads from, sorted."""
    return tuple(
        sorted(
            {
                s.stage
                for s in stage.inputs.values()
                if isinstance(s, FromStage | MetricsOf | MeasuredOf)
            }
        )
    )


def needed(registry: Registry, targets: Iterable[str]) -> set[str]:
    """Some stages and all that they read from, directly or not."""
    found = set(targets)
    for name in reversed(list(registry)):
        if name in found:
            found.update(upstream(registry[name]))
    return found


def unaffected(registry: Registry, keys: Iterable[str]) -> list[str]:
    """Stages that a change of parameters does not reach, in order.

    Args:
        registry: all declarations.
        keys: dotted names of the parameters.
    """
    blocks = {key.partition(".")[0] for key in keys}
    reached: set[str] = set()
    for name, stage in registry.items():
        own = name in blocks or ("base" in blocks and base_keys(stage))
        if own or not reached.isdisjoint(upstream(stage)):
            reached.add(name)
    return [name for name in registry if name not in reached]


def discover(package: ModuleType) -> Registry:
    """Import the modules of a package and register every ``STAGE`` found.

    Raises:
        ValueError: a stage is not named like its module.
    """
    names = [i.name for i in pkgutil.iter_modules(package.__path__) if i.name[0] != "_"]
    return Registry(stage for name in names if (stage := _load(package, name)) is not None)


def discover_for(package: ModuleType, name: str) -> Registry | None:
    """One stage and those it reads from: all that running it needs.

    DVC starts a process for each stage; importing what the other stages compute with would
    cost each of them seconds.

    Returns:
        ``None`` where the package has no such stage.

    Raises:
        ValueError: a stage is not named like its module.
    """
    if not name.isidentifier() or name[0] == "_":
        return None
    if importlib.util.find_spec(f"{package.__name__}.{name}") is None:
        return None
    stage = _load(package, name)
    if stage is None:
        return None
    sources = (_load(package, source) for source in upstream(stage))
    return Registry([stage, *(source for source in sources if source is not None)])


def _load(package: ModuleType, name: str) -> Stage | None:
    module = importlib.import_module(f"{package.__name__}.{name}")
    stage: Stage | None = getattr(module, "STAGE", None)
    if stage is not None and stage.name != name:
        raise ValueError(f"stages/{name}.py: STAGE is named {stage.name!r}")
    return stage


def _table_faults(at: str, table: Table) -> Iterator[str]:
    names = [column.name for column in table.columns]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{at}: column {name!r} is declared twice"
    for column in table.columns:
        if column.type not in COLUMN_TYPES:
            yield f"{at}: column {column.name!r} has the unknown type {column.type!r}"


def _default_faults(at: str, model: type[StageParams]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if not field.is_required():
            yield f"{at}: {model.__name__}.{name} has a default; defaults stand in params.yaml"
        for nested in nested_models(field):
            yield from _default_faults(at, nested)


def nested_models(field: FieldInfo) -> Iterator[type[StageParams]]:
    """Parameter models that occur anywhere in the type of a field."""
    pending: list[object] = [field.annotation]
    while pending:
        kind = pending.pop()
        if isinstance(kind, type) and issubclass(kind, StageParams):
            yield kind
        pending += getattr(kind, "__args__", ())
