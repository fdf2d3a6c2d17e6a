"""Replay `suggest` on measured programs, next to random and genetic search.

`python -m benchmarks.suggest --out runs/suggest` trains the recipe `cpu` on the sample's train
split, replays the searches on all programs, and writes docs/results/suggest.md.
"""

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.search import genetic_search
from benchmarks import PAGES, errors_in_one_line, render, write_page
from benchmarks.accuracy.tasks import sample_families
from common.metrics import family_means, interval_of
from common.progress import each
from common.reproducibility import generator, revision
from common.settings import SAMPLE
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import Graph, LayoutGraph, TileGraph, distinct_configs, group_means
from data.hlo.choices import Space
from data.labels import read_withheld
from data.tree import find_graphs, npz_root
from ensembles import load_graph, load_ranker
from ensembles.picks import tile_places
from ensembles.ranking.explain import default_row
from ensembles.ranking.suggest import suggest
from models.config.recipe import load_recipe
from models.trees.linear import BASELINES
from pipeline.run.run import Inputs, run

# A search is over when it has measured a config this close to the best of all.
GOAL, BATCH, SEEDS = 1.01, 5, 3
# Search + ranker of its start. "own" is the compiler's own choice, and "rule" is not trained.
UNTRAINED = ("random", "random+own", "genetic+own", "suggest+rule")
TRAINED = ("random+ranker", "order+ranker", "suggest+ranker")
UNET3D = Path("layout/xla/default/train/unet3d.npz")

Values = NDArray[np.float64]
Batches = Iterator[Sequence[int]]


@dataclass
class Replay:
    """A search on a graph whose c configs are all measured.

    Attributes:
        graph: Graph of the configs.
        runtime_ns: All measurements, (c,). Equal configs are measurements of one config.
        scores: Scores of the configs, "rule" and perhaps "ranker", each (c,).
        rng: Random generator of the search.
        known: Runtimes in ns that the search has measured, by row.
    """

    graph: Graph
    runtime_ns: NDArray[np.int64]
    scores: Mapping[str, NDArray[np.float32]]
    rng: np.random.Generator
    known: dict[int, list[float]] = field(default_factory=dict)

    def n_measurements(self, name: str) -> int:
        """Return the number of measurements until a config is near the best of all.

        Args:
            name: A name of UNTRAINED or TRAINED.
        """
        _, group = distinct_configs(self.graph)
        mean_ns = group_means(self.runtime_ns, group)
        for row in chain.from_iterable(self._batches(name)):
            equal = self.runtime_ns[group == group[row]]
            self.known[row] = [float(self.rng.choice(equal))]
            if mean_ns[group[row]] <= GOAL * mean_ns.min():
                break
        return len(self.known)

    def _batches(self, name: str) -> Batches:
        (first, group), (search, _, start) = distinct_configs(self.graph), name.partition("+")
        while search == "suggest":
            yield suggest(self.scores[start], self.graph, self.known, BATCH)
        order, own = self.rng.permutation(first), []
        if search == "order":
            order = first[np.argsort(self.scores[start][first], kind="stable")]
        if start == "own" and isinstance(self.graph, LayoutGraph):
            own = [int(first[group[default_row(self.graph)]])]
        elif start == "ranker":
            own = suggest(self.scores[start], self.graph, {}, BATCH)
        if search == "genetic":
            yield from self._genetic(np.array(own or order[:1]))
        yield [*dict.fromkeys([*own, *order.tolist()])]

    def _genetic(self, chosen: NDArray[np.int64]) -> Batches:
        """Yield the first configs, then children, each as the nearest one that is not measured."""
        (first, group), graph = distinct_configs(self.graph), self.graph
        if isinstance(graph, LayoutGraph):
            values: NDArray[Any] = graph.configs.places(first)
        else:
            assert isinstance(graph, TileGraph)
            values = tile_places(graph.config_feat)[first]
        knobs = np.stack([np.unique(own, return_inverse=True)[1] for own in values.T], axis=1)
        space = Space(knobs.max(axis=0) + 1, np.arange(knobs.shape[1]))
        search = genetic_search(space, len(first), self.rng, first=knobs[group[chosen]])
        children = next(search)
        while True:
            # The search learns the configs that are measured.
            children[:] = knobs[group[chosen]]
            yield chosen.tolist()
            children = search.send(np.array([self.known[row][0] for row in chosen.tolist()]))
            left = np.setdiff1d(first, [*self.known])
            for number, child in enumerate(children):
                apart = (knobs[group[left]] != child).sum(axis=1)
                nearest = (apart + self.rng.random(len(left)) / 2).argmin()
                chosen = np.append(chosen[:number], left[nearest])
                left = np.delete(left, nearest)


def table_rows(measurements: Mapping[str, Values], families: Sequence[str]) -> list[list[str]]:
    """Return the rows of a table: measurements of a search, and their ratio to random ones.

    Args:
        measurements: Measurements of p programs by search, (p, seeds).
        families: Family of each program, (p,).
    """
    draws = {name: family_means(values, families) for name, values in measurements.items()}
    rows = []
    for name, values in measurements.items():
        row = [name, _text(values.mean(), draws[name])]
        for base in UNTRAINED[:2]:
            ratio = values.mean() / measurements[base].mean()
            row.append(_text(ratio, draws[name] / draws[base]))
        rows.append(row)
    return rows


def _text(value: float, draws: Values) -> str:
    low, high = interval_of(draws)
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


@errors_in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Train the ranker unless it is there, replay, and write the page.

    Args:
        arguments: Arguments of the command line. None for those of the process.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the ranker; resumes")
    parser.add_argument("--report", type=Path, default=PAGES, help="folder for the page")
    parser.add_argument("--real", type=Path, default=os.environ.get("TPUGRAPHS_REAL"))
    options = parser.parse_args(arguments)
    run(Inputs(SAMPLE), options.out / "ranker", load_recipe("cpu"), resume=True)
    withheld, families = read_withheld(SAMPLE), sample_families(SAMPLE)
    tables: dict[str, dict[str, list[tuple[list[int], str]]]] = {}

    def measure(graph: Graph, family: str, names: Sequence[str], *titles: str) -> None:
        collection, name = graph.file.collection, graph.file.submission_id
        runtime_ns = graph.runtime_ns if graph.is_labelled else withheld[name].runtime_ns
        scores = {"rule": BASELINES[collection.kind].score(graph)}
        if set(names) > set(UNTRAINED):
            ranker = load_ranker(options.out / "ranker", collection=collection.name)
            scores["ranker"] = ranker.score(graph)
        for search in names:
            rngs = [generator(seed, search, name) for seed in range(SEEDS)]
            found = [Replay(graph, runtime_ns, scores, r).n_measurements(search) for r in rngs]
            for title in titles:
                tables.setdefault(title, {}).setdefault(search, []).append((found, family))

    for file in each("replay", find_graphs(SAMPLE)):
        of, kind = families[file.submission_id], file.collection.kind
        if file.split == "train":
            measure(read_graph(file), of, UNTRAINED, "Train split")
        else:
            titles = "Held-out files", f"Held-out {kind} files"
            measure(read_graph(file), of, UNTRAINED + TRAINED, *titles)
    if options.real and (path := npz_root(Path(options.real)) / UNET3D).is_file():
        measure(load_graph(path).graph, "unet3d", UNTRAINED, "unet3d, measured on a TPU")
    rows = []
    for title, table in tables.items():
        values = {name: np.array([v for v, _ in found], float) for name, found in table.items()}
        files = [family for _, family in table[UNTRAINED[0]]]
        rows.append((title, len(files), table_rows(values, files)))
    facts = {"batch": BATCH, "seeds": SEEDS, "goal": f"{GOAL - 1:.0%}", "revision": revision()}
    write_page(options.report / "suggest.md", render("suggest", tables=rows, **facts))


if __name__ == "__main__":
    main()
