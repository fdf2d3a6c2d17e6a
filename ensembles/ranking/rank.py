"""Rank the configs of one graph."""

import time
from collections.abc import Collection as Container
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError
from common.metrics import kendall_tau, ranking_from_scores, slowdown_at_k
from data.graphs.graph import LayoutGraph, TileGraph, distinct_configs, group_means
from data.hlo.compiler_options import N_OPTIONS, options_of
from data.manifest import measured_of
from data.tree import collection_named
from ensembles.blend import BlendSpec
from ensembles.ensemble import BASELINE, Ensemble, load_ranker
from ensembles.picks import TILE_ERROR, top_k_to_measure
from ensembles.ranking.configs import check_layout_configs, default_row, with_configs
from ensembles.ranking.layouts import NodeLayouts, Order, layouts_of, tile_of
from ensembles.ranking.program import ANY_OF_KIND, NamedGraph
from models.trees.baseline import BASELINES

MEASURED_PICKS = (1, 5, 10)


@dataclass(frozen=True)
class Ranked:
    """Scores of the configs of a graph.

    Attributes:
        collection: Collection that the models learned from.
        member_scores: Scores by member, (c,) each, lower = faster. The scales of members differ.
        scores: Blended scores, (c,), lower = faster.
        group: Number of the distinct config of each row, (c,).
        graph: Graph of the configs.
        seconds: Time of the models for all configs.
        top: Number of configs that `best` lists by default. None for all.
        tile_error: Error of the scores of tiles, which `to_measure` uses.
    """

    collection: str
    member_scores: dict[str, NDArray[np.float32]]
    scores: NDArray[np.float32]
    group: NDArray[np.int64]
    graph: NamedGraph
    seconds: float
    top: int | None = None
    tile_error: float = TILE_ERROR

    def __repr__(self) -> str:
        first = int(self.order[0])
        return f"<{len(self.scores)} configs ranked by {', '.join(self.members)}; first {first}>"

    @property
    def members(self) -> list[str]:
        return list(self.member_scores)

    @property
    def order(self) -> NDArray[np.int64]:
        """Return the rows of the configs, (c,) int64, predicted fastest first."""
        return ranking_from_scores(self.scores)

    @property
    def ms_per_config(self) -> float:
        """Return the time of inference per config in milliseconds."""
        return 1000 * self.seconds / len(self.scores)

    def best(self, top: int | None = None) -> list[dict[str, Any]]:
        """Return the top configs, predicted fastest first.

        Args:
            top: Number of configs. The default is the attribute `top`.

        Returns:
            `rank`, `config` (its row) and `score` of each distinct config. A config with several
            rows has the row that is ranked first.
        """
        order = self.order
        _, first = np.unique(self.group[order], return_index=True)
        rows = order[np.sort(first)][: self.top if top is None else top].tolist()
        return [
            {"rank": number, "config": row, "score": float(self.scores[row])}
            for number, row in enumerate(rows, start=1)
        ]

    def to_measure(self, k: int) -> list[dict[str, Any]]:
        """Return the k configs to measure, in the order of `top_k_to_measure`.

        Args:
            k: Number of configs, at least 1.

        Returns:
            `rank` among the distinct configs, `config` (its row) and `score` of each config.
        """
        rows = top_k_to_measure(self.scores, self.graph.graph, k, self.tile_error).tolist()
        return [
            {"rank": self.place(row), "config": row, "score": float(self.scores[row])}
            for row in rows
        ]

    def place(self, config: int) -> int:
        """Return the rank of a config among the distinct ones, 1 = predicted fastest.

        Args:
            config: Row of the config.
        """
        _, first = np.unique(self.group[self.order], return_index=True)
        return int((first <= first[self.group[config]]).sum())

    def default(self) -> dict[str, Any] | None:
        """Return the config that is nearest to the compiler's choice, or None for tiles.

        Returns:
            `config` (its row) and `place`. With measured runtimes also `slowdown`, its runtime
            divided by the best of all configs.
        """
        arrays = self.graph.graph
        if not isinstance(arrays, LayoutGraph):
            return None
        row = default_row(arrays)
        result: dict[str, Any] = {"config": row, "place": self.place(row)}
        if arrays.is_labelled:
            runtime = group_means(arrays.runtime_ns, self.group)
            result["slowdown"] = float(runtime[self.group[row]] / runtime.min())
        return result

    def layouts(self, config: int) -> tuple[NodeLayouts, ...]:
        """Return the layouts of each configurable node in a config.

        Args:
            config: Row of the config.

        Raises:
            UsageError: The config does not exist, or the configs are tiles.
        """
        return layouts_of(self._graph_with(config, "layout"), config)

    def tile(self, config: int) -> dict[str, Order]:
        """Return the tile sizes of a config by field, for example `output_bounds`.

        Args:
            config: Row of the config.

        Raises:
            UsageError: The config does not exist, or the configs are layouts.
        """
        return tile_of(self._graph_with(config, "tile"), config)

    @cached_property
    def decides(self) -> str:
        """Return the kind of choice: "layout", "tile", or a kind from a manifest of `collect`."""
        graph = self.graph.graph
        return str(measured_of(graph.file.path).get("decides", self.graph.kind))

    def spelled(self, config: int) -> dict[str, Any]:
        """Return the content of a config for JSON.

        Args:
            config: Row of the config.

        Returns:
            A dictionary with one key: `layouts`, `tile`, `options` or `kept_apart`.
        """
        decides, graph = self.decides, self._graph_with(config).graph
        if decides == "options" and isinstance(graph, TileGraph):
            numbers = graph.config_feat[config, : len(N_OPTIONS)].astype(np.int64)
            return {"options": options_of(numbers)}
        if decides == "tile":
            return {"tile": {field: list(sizes) for field, sizes in self.tile(config).items()}}
        nodes = self.layouts(config)
        if decides == "fusion":
            return {"kept_apart": [n.name or f"{n.node}" for n in nodes if not n.is_left_open]}
        return {"layouts": [node.as_json() for node in nodes]}

    def why(self, config: int) -> dict[str, Any]:
        """Return the facts behind the rank of a config.

        Args:
            config: Row of the config.

        Returns:
            `config` and its `place` among the distinct configs, 1 = predicted fastest. `places` has
            the rank by member; equal scores share their mean rank. `runtime_ns` is the mean of the
            `n_equal` rows with this config, or None without runtimes. `decided` is the number of
            nodes that a layout config does not leave to the compiler, None for a tile.
            `statistics` has values by name (docs/reference/statistics.md).

        Raises:
            UsageError: The config does not exist.
        """
        from scipy.stats import rankdata

        from features.statistics.configs import statistics_names, statistics_of

        graph = self._graph_with(config)
        layouts = graph.kind == "layout"
        names = statistics_names(graph.kind, "all")
        values = statistics_of(graph.graph, "all")(np.array([config]))[0].tolist()
        return {
            "config": config,
            "place": self.place(config),
            "places": {
                name: float(rankdata(self._of_distinct(scores))[self.group[config]])
                for name, scores in self.member_scores.items()
            },
            "runtime_ns": self.runtime_ns(config),
            "n_equal": int((self.group == self.group[config]).sum()),
            "decided": sum(not n.is_left_open for n in self.layouts(config)) if layouts else None,
            "statistics": dict(zip(names, values, strict=True)),
        }

    def runtime_ns(self, config: int) -> int | None:
        """Return the mean runtime of the rows with a config, or None without runtimes.

        Args:
            config: Row of the config.
        """
        graph = self.graph.graph
        equal = graph.runtime_ns[self.group == self.group[config]]
        return round(float(equal.mean())) if graph.is_labelled else None

    def measured(self) -> dict[str, float] | None:
        """Compare the order with the measured runtimes of the file.

        Equal configs count once, with their mean runtime, because their noise is no fault of a
        model.

        Returns:
            `kendall_tau` (unless all runtimes are equal), and `slowdown@K` for K = 1, 5 and 10,
            where 1 is perfect. None without runtimes.
        """
        if not self.graph.graph.is_labelled:
            return None
        runtime = self._runtimes()
        scores = self._of_distinct(self.scores)
        order = ranking_from_scores(scores)
        picks = {f"slowdown@{k}": slowdown_at_k(order, runtime, k) for k in MEASURED_PICKS}
        has_order = len(np.unique(runtime)) > 1
        return ({"kendall_tau": kendall_tau(scores, runtime)} if has_order else {}) | picks

    def as_json(self, *, why: bool = False, measure: int | None = None) -> dict[str, Any]:
        """Return the ranking for JSON.

        Args:
            why: Whether to add `why` to each config.
            measure: Number of diversified configs to list instead of the top configs. With
                runtimes in the file, `measured` has the slowdown of the best of them.

        Returns:
            `name` of the graph, `collection`, `members`, `n_configs`, `n_distinct` and
            `ms_per_config`. `measured` and `default` are the results of these methods. `configs`
            lists `best` or `to_measure`, each with `spelled`. Configs of tuning data also have
            the number of their `run`.
        """
        numbers = self.graph.run_numbers
        configs, comparison = [], self.measured()
        entries = self.best() if measure is None else self.to_measure(measure)
        if comparison and measure:
            runtime = self._runtimes()
            rows = self.group[[entry["config"] for entry in entries]]
            comparison[f"diversified_slowdown@{measure}"] = slowdown_at_k(rows, runtime, measure)
        for entry in entries:
            config = entry["config"]
            run: dict[str, Any] = {} if numbers is None else {"run": int(numbers[config])}
            reasons = {"why": self.why(config)} if why else {}
            configs.append(entry | run | self.spelled(config) | reasons)
        return {
            "name": self.graph.name,
            "collection": self.collection,
            "members": self.members,
            "n_configs": len(self.scores),
            "n_distinct": int(self.group.max()) + 1,
            "ms_per_config": self.ms_per_config,
            "measured": comparison,
            "default": self.default(),
            "configs": configs,
        }

    def _runtimes(self) -> NDArray[np.float64]:
        """Return the mean runtime of each distinct config (d,), for tiles over its normalizer."""
        return group_means(self.graph.graph.runtime, self.group)

    def _of_distinct(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the lowest score of each distinct config (d,), in the order of `group`."""
        lowest = np.full(int(self.group.max()) + 1, np.inf, np.float32)
        np.minimum.at(lowest, self.group, scores)
        return lowest

    def _graph_with(self, config: int, kind: str | None = None) -> NamedGraph:
        if kind is not None and self.graph.kind != kind:
            raise UsageError(f"{self.graph.name}: its configs are {self.graph.kind}s, no {kind}s")
        if not 0 <= config < len(self.scores):
            last = len(self.scores) - 1
            raise UsageError(f"{self.graph.name}: no config {config}; expected 0..{last}")
        return self.graph


def rank(
    ranker: Ensemble,
    graph: NamedGraph,
    configs: NDArray[Any] | None = None,
    top: int | None = None,
) -> Ranked:
    """Rank the configs of a graph with trained models.

    Args:
        ranker: Trained models.
        graph: Graph to rank.
        configs: Layout configs to rank instead of those of the graph, (c, k, 18), for example from
            `graph.candidates`. -1 is the compiler's choice.
        top: Number of configs that `best` lists. None for all.

    Raises:
        PipelineError: The models rank the other kind of configs, the configs do not fit the graph,
            or a score is not finite.
        UsageError: `top` is below 1, or the graph is an HLO module without configs.
    """
    if top is not None and top < 1:
        raise UsageError(f"top {top}: expected 1 or more")
    _check_fits(ranker, graph)
    if configs is None and not graph.has_configs:
        remedy = "expected some, for example configs=graph.candidates(200)"
        raise UsageError(f"{graph.path}: the module has no configs; {remedy}")
    program = graph if configs is None else with_configs(graph, configs)
    start = time.perf_counter()
    members = ranker.member_scores(program.graph)
    scores = ranker.blended(program.graph, members)
    seconds = time.perf_counter() - start
    _, group = distinct_configs(program.graph)
    name, error = ranker.collection.name, ranker.spec.tile_error
    return Ranked(name, members, scores, group, program, seconds, top, error)


def warm_up(ranker: Ensemble, graph: NamedGraph) -> None:
    """Score one config, so that later times do not include the start of the libraries."""
    _check_fits(ranker, graph)
    arrays = graph.graph
    if isinstance(arrays, LayoutGraph):
        ranker.score(arrays.only(np.zeros(1, np.int64)))
    elif isinstance(arrays, TileGraph):
        names = ("config_feat", "runtime_ns", "runtime_normalizers")
        ranker.score(replace(arrays, **{name: getattr(arrays, name)[:1] for name in names}))


def _check_fits(ranker: Ensemble, graph: NamedGraph) -> None:
    if ranker.collection.kind != graph.kind:
        models = f"the models rank those of {ranker.collection.name}"
        raise PipelineError(f"{graph.path}: has {graph.kind} configs; {models}")
    if graph.kind == "layout":
        check_layout_configs(graph, str(graph.path))


def ranker_for(run: Path | None, graph: NamedGraph, trust: Container[str] = ()) -> Ensemble:
    """Load the models of a run that rank a graph, or the untrained baseline if `run` is None."""
    if run is None:
        spec = BlendSpec("minmax-mean", {BASELINE: 1.0})
        collection = collection_named(ANY_OF_KIND[graph.kind])
        return Ensemble(collection, {BASELINE: BASELINES[graph.kind]}, spec)
    name = graph.collection.name if graph.collection else None
    name = name or ("tile:xla" if graph.kind == "tile" else None)
    return load_ranker(run, collection=name, trust=trust)
