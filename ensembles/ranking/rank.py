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
from ensembles.ensemble import Ensemble, load_ranker
from ensembles.picks import top_k_to_measure
from ensembles.ranking.explain import default_row
from ensembles.ranking.program import (
    NamedGraph,
    NodeLayouts,
    Order,
    check_layout_configs,
    layouts_of,
    tile_of,
    with_configs,
)

MEASURED_PICKS = (1, 5, 10)


@dataclass(frozen=True)
class Ranked:
    """A graph's configs in predicted order."""

    collection: str
    member_scores: dict[str, NDArray[np.float32]]  # (c,) by row of each of them; scales differ
    scores: NDArray[np.float32]  # (c,) by row, lower = faster
    group: NDArray[np.int64]  # (c,) by row; equal where configs are
    graph: NamedGraph
    seconds: float  # how long the models took to score all configs; nothing else is in it
    top: int | None = None  # how many configs `best` lists by default; None = all

    def __repr__(self) -> str:
        """Say what it is in one line."""
        first = int(self.order[0])
        return f"<{len(self.scores)} configs ranked by {', '.join(self.members)}; first {first}>"

    @property
    def members(self) -> list[str]:
        """The names of the models."""
        return list(self.member_scores)

    @property
    def order(self) -> NDArray[np.int64]:
        """Return the (c,) int64 rows of the configs, predicted fastest first."""
        return ranking_from_scores(self.scores)

    @property
    def ms_per_config(self) -> float:
        """The milliseconds of inference per config."""
        return 1000 * self.seconds / len(self.scores)

    def best(self, top: int | None = None) -> list[dict[str, Any]]:
        """Return the `top` best configs, fastest first.

        Returns:
            For each `rank`, `config` and `score`; of a config that the file holds several times the
            row that is ranked first.
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
            Of each config `rank`, its place among the distinct configs, `config` and `score`.
        """
        rows = top_k_to_measure(self.scores, self.graph.graph, k).tolist()
        return [
            {"rank": self.place(row), "config": row, "score": float(self.scores[row])}
            for row in rows
        ]

    def place(self, config: int) -> int:
        """Return the place of a row's config among the distinct ones, 1 = predicted fastest."""
        _, first = np.unique(self.group[self.order], return_index=True)
        return int((first <= first[self.group[config]]).sum())

    def default(self) -> dict[str, Any] | None:
        """Return `config` and `place` of the row nearest to the compiler's own; None for tiles.

        Where the file has runtimes also its `slowdown`, over the best of all configs.
        """
        whole = self.graph.graph
        if not isinstance(whole, LayoutGraph):
            return None
        row = default_row(whole)
        told: dict[str, Any] = {"config": row, "place": self.place(row)}
        if whole.is_labelled:
            runtime = group_means(whole.runtime_ns, self.group)
            told["slowdown"] = float(runtime[self.group[row]] / runtime.min())
        return told

    def layouts(self, config: int) -> tuple[NodeLayouts, ...]:
        """Return the layouts that a config gives to the k configurable nodes, in config order.

        Raises:
            UsageError: there is no such config, or the configs are tiles.
        """
        return layouts_of(self._graph_with(config, "layout"), config)

    def tile(self, config: int) -> dict[str, Order]:
        """Return the tile sizes of a config by field, such as `output_bounds`.

        Raises:
            UsageError: there is no such config, or the configs are layouts.
        """
        return tile_of(self._graph_with(config, "tile"), config)

    @cached_property
    def decides(self) -> str:
        """Return what the configs are: "layout", "tile", or as a manifest of `collect` tells."""
        graph = self.graph.graph
        return str(measured_of(graph.file.path).get("decides", self.graph.kind))

    def spelled(self, config: int) -> dict[str, Any]:
        """Say what a config decides, for JSON: `layouts`, `tile`, `options` or `kept_apart`."""
        decides, graph = self.decides, self._graph_with(config).graph
        if decides == "options" and isinstance(graph, TileGraph):
            return {
                "options": options_of(graph.config_feat[config, : len(N_OPTIONS)].astype(np.int64))
            }
        if decides == "tile":
            return {"tile": {field: list(sizes) for field, sizes in self.tile(config).items()}}
        nodes = self.layouts(config)
        if decides == "fusion":
            return {"kept_apart": [n.name or f"{n.node}" for n in nodes if not n.is_left_open]}
        return {"layouts": [node.as_json() for node in nodes]}

    def why(self, config: int) -> dict[str, Any]:
        """Say what stands behind a config's place.

        Returns:
            `config`; `place` among the distinct configs, 1 = predicted fastest; `places` among them
            by member, with the mean of equals; `runtime_ns` as measured, the mean of the `n_equal`
            rows that hold this config, None where the file has none; `decided`: how many of the k
            configurable nodes a layout config does not leave to the compiler, None of a tile;
            `statistics`: value by name, see docs/reference/statistics.md.

        Raises:
            UsageError: there is no such config.
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
                name: float(rankdata(self._of_distinct(own))[self.group[config]])
                for name, own in self.member_scores.items()
            },
            "runtime_ns": self.runtime_ns(config),
            "n_equal": int((self.group == self.group[config]).sum()),
            "decided": sum(not n.is_left_open for n in self.layouts(config)) if layouts else None,
            "statistics": dict(zip(names, values, strict=True)),
        }

    def runtime_ns(self, config: int) -> int | None:
        """Return the mean runtime of a row's config and its equals; None where none is known."""
        graph = self.graph.graph
        equal = graph.runtime_ns[self.group == self.group[config]]
        return round(float(equal.mean())) if graph.is_labelled else None

    def measured(self) -> dict[str, float] | None:
        """Return how well the order agrees with the file's own runtimes; None where it has none.

        Of equal configs the mean runtime counts, and the place of the first: noise between them is
        not the models' doing.

        Returns:
            `kendall_tau`, and `slowdown@K` of the first 1, 5 and 10 picks: 1 is perfect.
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
        """Return the `top` best configs, or those to measure, with what they say, for JSON.

        Args:
            why: Add `why` to each config.
            measure: Number of configs to measure, which are listed instead of the best. With
                runtimes in the file, `measured` has the slowdown of the best of them.

        Returns:
            `name` of the graph, `collection` and `members` that ranked, `n_configs`, `n_distinct`,
            `ms_per_config`, `measured` and `default` as these methods have them, and
            `configs`: as `best` or `to_measure` lists them, with what `spelled` says, `run`, the
            number of the tuning data's run, where there is one, and `why` where it is asked for.
        """
        numbers = self.graph.run_numbers
        configs, measured = [], self.measured()
        listed = self.best() if measure is None else self.to_measure(measure)
        if measured and measure:
            runtime = self._runtimes()
            rows = self.group[[entry["config"] for entry in listed]]
            measured[f"diversified_slowdown@{measure}"] = slowdown_at_k(rows, runtime, measure)
        for entry in listed:
            config = entry["config"]
            said: dict[str, Any] = {} if numbers is None else {"run": int(numbers[config])}
            said |= self.spelled(config)
            configs.append(entry | said | ({"why": self.why(config)} if why else {}))
        return {
            "name": self.graph.name,
            "collection": self.collection,
            "members": self.members,
            "n_configs": len(self.scores),
            "n_distinct": int(self.group.max()) + 1,
            "ms_per_config": self.ms_per_config,
            "measured": measured,
            "default": self.default(),
            "configs": configs,
        }

    def _runtimes(self) -> NDArray[np.float64]:
        """Return the mean runtime of each distinct config (d,), of tiles over its normalizer."""
        return group_means(self.graph.graph.runtime, self.group)

    def _of_distinct(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the lowest score of each distinct config (d,), by its number in `group`."""
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
    """Rank the configs of a graph by trained models, fastest first.

    Args:
        ranker: Trained models.
        graph: Graph to rank.
        configs: Layouts (c, k, 18) to rank instead of the graph's own, -1 = the compiler's choice;
            `graph.candidates` makes some.
        top: Number of configs that `best` lists; None = all.

    Raises:
        PipelineError: the models rank the other kind of configs, configs do not fit the graph, or
            scores are not finite.
        UsageError: `top` is below 1, or an HLO module without configs.
    """
    if top is not None and top < 1:
        raise UsageError(f"top {top}: expected 1 or more")
    _check_fits(ranker, graph)
    if configs is None and not graph.has_configs:
        raise UsageError(
            f"{graph.path}: the module holds no configs; expected some, as by "
            "configs=graph.candidates(200)"
        )
    ranked = graph if configs is None else with_configs(graph, configs)
    start = time.perf_counter()
    members = ranker.member_scores(ranked.graph)
    scores = ranker.blended(ranked.graph, members)
    seconds = time.perf_counter() - start
    _, group = distinct_configs(ranked.graph)
    return Ranked(ranker.collection.name, members, scores, group, ranked, seconds, top)


def warm_up(ranker: Ensemble, graph: NamedGraph) -> None:
    """Score one config, so that what follows is timed without what libraries do at first use."""
    _check_fits(ranker, graph)
    whole = graph.graph
    if isinstance(whole, LayoutGraph):
        ranker.score(whole.only(np.zeros(1, np.int64)))
    elif isinstance(whole, TileGraph):
        names = ("config_feat", "runtime_ns", "runtime_normalizers")
        ranker.score(replace(whole, **{name: getattr(whole, name)[:1] for name in names}))


def _check_fits(ranker: Ensemble, graph: NamedGraph) -> None:
    if ranker.collection.kind != graph.kind:
        raise PipelineError(
            f"{graph.path}: holds {graph.kind} configs; the models rank those of "
            f"{ranker.collection.name}"
        )
    if graph.kind == "layout":
        check_layout_configs(graph, str(graph.path))


def ranker_for(run: Path, graph: NamedGraph, trust: Container[str] = ()) -> Ensemble:
    """Load the models of a run that rank a graph, as `load_ranker`: of its collection, if known."""
    told = graph.collection.name if graph.collection else None
    told = told or ("tile:xla" if graph.kind == "tile" else None)
    return load_ranker(run, collection=told, trust=trust)
