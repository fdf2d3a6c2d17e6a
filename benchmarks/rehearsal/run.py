"""One case of the rehearsal, in a process of its own: `run`, with what each part of it took.

Its `main` takes CASE.json FOLDER and prints JSON. FOLDER holds the case's npz tree. It is no module
for `python -m`: each process that packs would import that again, and torch with it.
"""

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from common.peak_memory import peak_mib
from common.progress import watched_by
from data.graphs.distinct import distinct_configs
from data.read import read_layout
from data.tree import GraphFile, find_graphs
from features.pruning.rules import prune
from models.config.recipe import load_recipe
from pipeline.run.run import Inputs, run


@dataclass
class Told:
    """What a run told of its progress, with the processor time until then."""

    lines: list[tuple[str, int, int, float]] = field(default_factory=list)

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take a line, as common.progress.Watcher."""
        self.lines.append((what, done, total, time.process_time()))

    def step_s(self) -> dict[str, float]:
        """Return the median processor seconds of a step after the first, by model."""
        times: dict[str, list[float]] = {}
        model = ""
        for what, _, _, cpu_s in self.lines:
            if what.startswith("train "):
                model = what.split()[1]
            elif what == "train":
                times.setdefault(model, []).append(cpu_s)
        gaps = {name: [b - a for a, b in pairwise(t)] for name, t in times.items()}
        return {name: median(values) for name, values in gaps.items() if values}

    def predict_s(self) -> dict[str, float]:
        """Return the processor seconds of ranking a split, by "split model"."""
        begun: dict[str, float] = {}
        taken: dict[str, float] = {}
        for what, done, total, cpu_s in self.lines:
            if what.startswith("predict "):
                _, place, _, member = what.split()
                name = f"{place.rsplit('/', 1)[1]} {member.removesuffix('-seed0')}"
                begun.setdefault(name, cpu_s)
                if done == total:
                    taken[name] = cpu_s - begun[name]
        return taken


def shape_of(file: GraphFile, rule: str) -> dict[str, float]:
    """Return the sizes of a layout graph: nodes, edges, configurable, kept, configs, distinct."""
    graph = read_layout(file)
    pruned = prune(rule, graph.edge_index, graph.n_nodes, graph.node_config_ids)
    return {
        "nodes": graph.n_nodes,
        "edges": len(graph.edge_index),
        "configurable": len(graph.node_config_ids),
        "kept": len(pruned.kept),
        "configs": graph.n_configs,
        "distinct": len(distinct_configs(graph)[0]),
    }


def run_case(case: Mapping[str, Any], tree: Path) -> dict[str, Any]:
    """Run a case's recipe on its tree; return what it took."""
    recipe = load_recipe("cpu", case["settings"])
    libraries = peak_mib()
    told = Told()
    with tempfile.TemporaryDirectory(dir=tree.parent) as name:
        folder = Path(name)
        with watched_by(told):
            inputs = Inputs(tree, store=folder / "store")
            report = run(inputs, folder / "run", recipe, resume=False)
        sizes = {
            part: _bytes_below(place)
            for part, place in (("raw", tree), ("store", folder / "store"), ("run", folder / "run"))
        }
    learned, ranked = (find_graphs(tree, splits=(split,))[0] for split in ("train", "valid"))
    is_layout = learned.collection.kind == "layout"
    rule = recipe.features.prune
    return {
        **{key: report[key] for key in ("seconds", "cpu_seconds", "peak_mib")},
        "libraries_mib": libraries,
        "step_s": told.step_s(),
        "predict_s": told.predict_s(),
        "bytes": sizes,
        "shape": shape_of(learned, rule) if is_layout else {},
        "ranked_shape": shape_of(ranked, rule) if is_layout else {},
    }


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Run the case of the first argument on the tree of the second."""
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps(run_case(given, Path(sys.argv[2]))))  # noqa: T201
