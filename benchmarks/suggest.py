"""Replay `suggest` on measured programs, next to random and genetic search.

`python -m benchmarks.suggest --out runs/suggest` trains the recipe `cpu` on the sample's train
split, replays the searches on all programs, and writes docs/results/suggest.md.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.search import genetic_search
from benchmarks import errors_in_one_line, interval_text, resumable_parser, write_page
from benchmarks.accuracy.tasks import sample_families
from common.metrics import family_means, interval_of
from common.progress import each
from common.reproducibility import generator
from common.settings import SAMPLE
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import Graph, LayoutGraph, TileGraph, distinct_configs, group_means
from data.hlo.choices import Space
from data.labels import read_withheld
from data.tree import find_graphs, npz_root
from ensembles import load_graph, load_ranker
from ensembles.ranking.configs import default_row
from ensembles.ranking.suggest import suggest
from ensembles.score_errors import tile_places
from models.config.recipe import load_recipe
from models.trees.baseline import BASELINES
from pipeline.run.run import Inputs, run

# A search reaches its goal when it has measured a config this close to the best of all.
GOAL, BATCH, SEEDS = 1.01, 5, 3
# Numbers of measurements after which the regret is taken.
REGRET_AFTER = (5, 10, 20)
# Search + ranker of its start. "own" is the compiler's own choice, and "rule" is not trained.
UNTRAINED = ("random", "random+own", "genetic+own", "suggest+rule")
TRAINED = ("random+ranker", "order+ranker", "suggest+ranker")
REAL_LAYOUTS = tuple(
    f"layout/xla/default/{name}.npz" for name in ("train/unet3d", "valid/unet_3d.4x4.bf16")
)

Values = NDArray[np.float64]
Batches = Iterator[Sequence[int]]


@dataclass
class Replay:
    """A search on a graph whose c configs are all measured.

    Attributes:
        runtime_ns: All measurements, (c,). Equal configs are measurements of one config.
        scores: Scores of the configs, "rule" and perhaps "ranker", each (c,).
        measured: Runtimes in ns that the search has measured, by row.
    """

    graph: Graph
    runtime_ns: NDArray[np.int64]
    scores: Mapping[str, NDArray[np.float32]]
    rng: np.random.Generator
    measured: dict[int, list[float]] = field(default_factory=dict)

    def costs(self, name: str) -> list[float]:
        """Return the number of measurements until the goal, and the regrets in percent.

        A regret is the time that the fastest measured config takes longer than the best of all.
        """
        (first, group) = distinct_configs(self.graph)
        mean_ns = group_means(self.runtime_ns, group)
        ratios = list[float]()
        for row in chain.from_iterable(self._batches(name)):
            equal = self.runtime_ns[group == group[row]]
            self.measured[row] = [float(self.rng.choice(equal))]
            ratios.append(float(mean_ns[group[row]] / mean_ns.min()))
            is_over = len(ratios) >= max(REGRET_AFTER) and min(ratios) <= GOAL
            if is_over or len(ratios) == len(first):
                break
        n_measured = next(n for n, ratio in enumerate(ratios, 1) if ratio <= GOAL)
        return [n_measured, *(100 * (min(ratios[:n]) - 1) for n in REGRET_AFTER)]

    def _batches(self, name: str) -> Batches:
        (first, group), (search, _, start) = distinct_configs(self.graph), name.partition("+")
        while search == "suggest":
            yield suggest(self.scores[start], self.graph, self.measured, BATCH)
        order, start_rows = self.rng.permutation(first), list[int]()
        if search == "order":
            order = first[np.argsort(self.scores[start][first], kind="stable")]
        if start == "own" and isinstance(self.graph, LayoutGraph):
            start_rows = [int(first[group[default_row(self.graph)]])]
        elif start == "ranker":
            start_rows = suggest(self.scores[start], self.graph, {}, BATCH)
        if search == "genetic":
            yield from self._genetic(np.array(start_rows or order[:1]))
        yield [*dict.fromkeys([*start_rows, *order.tolist()])]

    def _genetic(self, rows: NDArray[np.int64]) -> Batches:
        """Yield the first configs, then children, each as the nearest one that is not measured."""
        (first, group), graph = distinct_configs(self.graph), self.graph
        if isinstance(graph, LayoutGraph):
            values: NDArray[Any] = graph.configs.places(first)
        else:
            assert isinstance(graph, TileGraph)
            values = tile_places(graph.config_feat)[first]
        knobs = np.stack([np.unique(column, return_inverse=True)[1] for column in values.T], axis=1)
        space = Space(knobs.max(axis=0) + 1, np.arange(knobs.shape[1]))
        search = genetic_search(space, len(first), self.rng, first=knobs[group[rows]])
        children = next(search)
        while True:
            # The search learns the configs that are measured.
            children[:] = knobs[group[rows]]
            yield rows.tolist()
            children = search.send(np.array([self.measured[row][0] for row in rows.tolist()]))
            left = np.setdiff1d(first, [*self.measured])
            for number, child in enumerate(children):
                apart = (knobs[group[left]] != child).sum(axis=1)
                nearest = (apart + self.rng.random(len(left)) / 2).argmin()
                rows = np.append(rows[:number], left[nearest])
                left = np.delete(left, nearest)


def table_rows(table: "Table") -> list[list[str]]:
    """Return the rows of a table: measurements, their ratio to random ones, and the regrets."""
    families = table.families
    # Costs of p programs by search, (p, seeds, 1 + regrets).
    costs = {name: np.array(of_files) for name, of_files in table.costs.items()}
    measurements = {name: values[..., 0] for name, values in costs.items()}
    draws = {name: family_means(values, families) for name, values in measurements.items()}
    rows = []
    for name, values in measurements.items():
        row = [name, interval_text(values.mean(), *interval_of(draws[name]))]
        for base in UNTRAINED[:2]:
            ratio = values.mean() / measurements[base].mean()
            row.append(interval_text(ratio, *interval_of(draws[name] / draws[base])))
        for regret in np.moveaxis(costs[name][..., 1:], -1, 0):
            interval = interval_of(family_means(regret, families))
            row.append(interval_text(regret.mean(), *interval))
        rows.append(row)
    return rows


@dataclass
class Table:
    """The searches on some files, for one table of the page.

    Attributes:
        costs: Result of `Replay.costs`, by search, file and seed.
    """

    costs: dict[str, list[list[list[float]]]] = field(default_factory=dict)
    families: list[str] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def replay(
        self,
        graph: Graph,
        runtime_ns: NDArray[np.int64],
        family: str,
        scores: Mapping[str, NDArray[np.float32]],
    ) -> None:
        """Replay the searches on one file, those of TRAINED only with scores of a ranker."""
        mean_ns = group_means(runtime_ns, distinct_configs(graph)[1])
        self.shares.append(float((mean_ns <= GOAL * mean_ns.min()).mean()))
        self.families.append(family)
        for search in (*UNTRAINED, *(TRAINED if "ranker" in scores else ())):
            names = search, graph.file.submission_id
            rngs = [generator(seed, *names) for seed in range(SEEDS)]
            costs = [Replay(graph, runtime_ns, scores, rng).costs(search) for rng in rngs]
            self.costs.setdefault(search, []).append(costs)


def replayed_files(real: Path | None) -> Iterator[tuple[str, str, Graph, bool]]:
    """Yield the title of the table, the family, the graph, and whether the ranker is tried."""
    families = sample_families(SAMPLE)
    for file in each("replay", find_graphs(SAMPLE)):
        is_train, kind = file.split == "train", file.collection.kind
        title = (
            f"CPU: {kind} files of the train split" if is_train else f"CPU: held-out {kind} files"
        )
        yield title, families[file.submission_id], read_graph(file), not is_train
    for path in (npz_root(real or Path()) / name for name in REAL_LAYOUTS):
        if path.is_file():
            yield f"TPU: {path.stem}", path.stem, load_graph(path).graph, True


@errors_in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Train the ranker unless it is there, replay, and write the page."""
    parser = resumable_parser(__doc__)
    parser.add_argument("--real", type=Path, default=os.environ.get("TPUGRAPHS_REAL"))
    options = parser.parse_args(arguments)
    run(Inputs(SAMPLE), options.out / "ranker", load_recipe("cpu"), resume=True)
    withheld, tables = read_withheld(SAMPLE), dict[str, Table]()
    for title, family, graph, is_ranked in replayed_files(options.real and Path(options.real)):
        collection, name = graph.file.collection, graph.file.submission_id
        scores = {"rule": BASELINES[collection.kind].score(graph)}
        if is_ranked:
            ranker = load_ranker(options.out / "ranker", collection=collection.name)
            scores["ranker"] = ranker.score(graph)
        runtime_ns = graph.runtime_ns if graph.is_labelled else withheld[name].runtime_ns
        tables.setdefault(title, Table()).replay(graph, runtime_ns, family, scores)
    rows = [
        (title, len(table.shares), f"{np.mean(table.shares):.1%}", table_rows(table))
        for title, table in tables.items()
    ]
    regrets = [f"regret after {n}, %" for n in REGRET_AFTER]
    facts = {"batch": BATCH, "seeds": SEEDS, "goal": f"{GOAL - 1:.0%}", "regrets": regrets}
    write_page("suggest", options.report, tables=rows, **facts)


if __name__ == "__main__":
    main()
