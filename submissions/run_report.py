"""Read and write report.json."""

import json
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from common.errors import PipelineError
from common.files import read_json
from models.run_folder import REPORT, missing_run

# Metrics of a graph by name, and its `n_configs`.
GraphMetrics = dict[str, int | float | None]
# A smaller gain is mostly noise, and seldom worth a measurement.
MIN_GAIN = 1.01


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    def changed(self, **values: Any) -> Self:
        """Return a copy with changed fields."""
        return self.model_copy(update=values)


class LeftOut(_Record):
    """Graph that does not count, and the reason."""

    graph: str
    reason: str


class SlowdownCurve(_Record):
    """Mean slowdown@k of the run and of the baseline, for each `k`."""

    k: list[int]
    model: list[float]
    baseline: list[float] | None

    def at(self, k: int) -> float | None:
        """Return the slowdown of the run, None if the curve has no such point."""
        return dict(zip(self.k, self.model, strict=False)).get(k)

    def slower_than_baseline(self, most: int) -> list[int]:
        """Return each number of configs, up to `most`, whose best is slower than the baseline's."""
        rows = zip(self.k, self.model, self.baseline or (), strict=False)
        return [k for k, model, base in rows if k <= most and round(model, 4) > round(base, 4)]


class CollectionReport(_Record):
    """Scores of one collection. Means of other metrics are further keys, for example `opa`.

    Attributes:
        value: Mean of the metric over graphs. None if no graph was judged.
        programs: Programs of graphs whose names hide them, by name of the graph.
        judged_on: Number of judged configs and of all configs, if some were not judged.
    """

    __pydantic_extra__: dict[str, float | None] = Field(init=False)
    model_config = ConfigDict(extra="allow")

    metric: str
    value: float | None
    ci95: tuple[float, float] | None = None
    n_graphs: int = 0
    per_graph: dict[str, GraphMetrics] = {}
    programs: dict[str, str] = {}
    judged_on: str | None = None
    noise_ceiling: float | None = None
    baseline: float | None = None
    slowdown_curve: SlowdownCurve | None = None
    seed_values: dict[str, float] = {}
    seed_sd: float | None = None

    def mean(self, name: str) -> float | None:
        """Return the mean of another metric, for example "slowdown@5". None if it is unknown."""
        return (self.__pydantic_extra__ or {}).get(name)

    def chance_of_gain(self) -> dict[str, float] | None:
        """Return how often one of five configs is over 1 % faster than the first by score.

        The probability and its 95 % interval have Jeffreys' prior. None without graphs.
        """
        from scipy.stats import beta

        pairs = [
            (m.get("slowdown@1"), m.get("diversified_slowdown@5")) for m in self.per_graph.values()
        ]
        is_faster = [first / best > MIN_GAIN for first, best in pairs if first and best]
        n, n_faster = len(is_faster), sum(is_faster)
        posterior = beta(n_faster + 0.5, n - n_faster + 0.5)
        low, high = posterior.interval(0.95)
        counts = {"n_graphs": n, "n_faster": n_faster, "probability": float(posterior.mean())}
        return counts | {"low": float(low), "high": float(high)} if n else None

    def values(self) -> dict[str, float]:
        """Return the collection's metric of each graph that has one."""
        values = {graph: metrics.get(self.metric) for graph, metrics in self.per_graph.items()}
        return {graph: value for graph, value in values.items() if value is not None}


class ModelsReport(_Record):
    """Models that rank one collection.

    Attributes:
        unused: Members that rank no graph, because they know none of the programs.
        weights: Share of each member in the blend, as a mean over the graphs of both splits.
        gains: Value of the blend minus that of each member, on the graphs that the member ranks.
        fallback_from: Collection whose models rank this one, or "baseline". None for its own.
        blend: The choice of the blend, if the run made one.
    """

    members: list[str] = []
    member_values: dict[str, float | None] = {}
    gains: dict[str, float] = {}
    unused: list[str] = []
    method: str | None = None
    weights: dict[str, float] = {}
    importances: dict[str, list[dict[str, Any]]] = {}
    fallback_from: str | None = None
    reason: str | None = None
    blend: dict[str, Any] | None = None


class LearningCurve(_Record):
    """Learning curve of one training.

    Attributes:
        loss: Mean training loss over the steps since the one before.
        held_out: Metric on data that is held out of training. Empty without early stopping.
    """

    group: str
    member: str
    step: list[int]
    loss: list[float]
    held_out_step: list[int] = []
    held_out: list[float] = []


class RunReport(_Record):
    """Content of report.json (docs/reference/files.md). `score --json` prints three fields.

    Attributes:
        missing_parts: Splits of the dataset without graphs, "collection/split".
        measured_on: Platforms of the runtimes, for example "cpu". Empty without a manifest.
        peak_mib: Peak of resident memory in each stage. None if it is unknown.
    """

    score: float | None = None
    collections: dict[str, CollectionReport]
    left_out: list[LeftOut] = []
    recipe: str | None = None
    seeds: list[int] = []
    models: dict[str, ModelsReport] = {}
    left_out_of_training: list[LeftOut] = []
    missing_parts: list[str] = []
    bad_files: list[str] = []
    data: str | None = None
    measured_on: list[str] = []
    learning_curves: list[LearningCurve] = []
    environment: dict[str, Any] = {}
    revision: str | None = None
    config: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    cpu_seconds: dict[str, float] = {}
    peak_mib: dict[str, float | None] = {}

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON, without fields that were never set."""
        return self.model_dump(mode="json", exclude_unset=True)

    def to_text(self) -> str:
        """Return the text of report.json."""
        return json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n"


def read_report(run: Path) -> RunReport:
    """Read the report of a run."""
    path = run / REPORT if run.is_dir() else run
    if not run.exists():
        raise missing_run(run, "a run's folder or a report")
    if not path.exists():
        raise PipelineError(
            f"{path}: no report; expected the folder of a whole `run` (not of one model) that is "
            "finished; `run ... --resume` finishes one that is not"
        )
    requirement = f"a run's folder, its {REPORT}, or the output of `score --json`"
    return read_json(path, RunReport, expected=requirement)
