"""What choosing a blend costs: 12 models' scores of 400 graphs with 1,000 configs each."""

import time

import numpy as np
import polars as pl

from benchmarks.speed.memory import peak_mib
from common.settings import ROOT
from data.tree import GraphFile, collection_named
from ensembles.choice.from_scores import Choosing, choose_and_blend
from ensembles.choice.scored_graphs import RUNTIME_SCHEMA
from models.predict import SCORE_SCHEMA

N_MEMBERS, N_GRAPHS, N_CONFIGS = 12, 400, 1_000
GOAL_S, GOAL_MIB = 60, 1024
COLLECTIONS = ("layout:xla:random", "tile:xla")


def make(
    collection: str, n_members: int, n_graphs: int, n_configs: int
) -> tuple[Choosing, dict[str, pl.DataFrame]]:
    """Make runtimes of graphs and what models that err differently would score them."""
    rng = np.random.default_rng(0)
    kind = collection_named(collection)
    files = [
        GraphFile(kind, "valid", f"net{i // 2}_batch_{2 ** (i % 2)}", ROOT / f"{i}.npz")
        for i in range(n_graphs)
    ]
    n = n_graphs * n_configs
    rows = {
        "graph": np.repeat([file.name for file in files], n_configs),
        "config": np.tile(np.arange(n_configs, dtype=np.uint32), n_graphs),
        "config_hash": rng.permutation(n).astype(np.uint64),
    }
    truth = rng.normal(size=n)
    runtimes = pl.DataFrame({**rows, "runtime": np.exp(truth / 5)}, schema=RUNTIME_SCHEMA)
    tables = {}
    for member in range(n_members):
        noise = (1 + member / n_members) * rng.normal(size=n)
        score = (truth + noise).astype(np.float32)
        table = pl.DataFrame({**rows, "score": score}, schema=SCORE_SCHEMA)
        tables[f"model{member // 2}-seed{member % 2}"] = table
    return Choosing(kind, files, runtimes), tables


def measure(
    collection: str,
    n_members: int = N_MEMBERS,
    n_graphs: int = N_GRAPHS,
    n_configs: int = N_CONFIGS,
) -> float:
    """Return the seconds of the choice and of blending the same graphs by it."""
    labelled, tables = make(collection, n_members, n_graphs, n_configs)
    start = time.perf_counter()
    choose_and_blend(labelled, tables, tables)
    return time.perf_counter() - start


def peak(collection: str) -> float:
    """Return how many MiB it adds to the peak, the members' tables included."""
    return peak_mib(
        "from benchmarks.speed.blending import measure\nimport scipy.stats, scipy.optimize\n",
        f"measure({collection!r})",
    )


def report() -> list[str]:
    """Measure; return the section of RESULTS.md."""
    rows = [f"| {name} | {measure(name):.1f} | {peak(name):.0f} |" for name in COLLECTIONS]
    return [
        "## Choosing a blend",
        "",
        f"{N_MEMBERS} models' scores of {N_GRAPHS} graphs with {N_CONFIGS:,} configs, made up; the",
        "nested choice and the blend; memory with all score tables. Goals: "
        f"{GOAL_S} s and {GOAL_MIB} MiB.",
        "",
        "| collection | seconds | MiB |",
        "|---|---:|---:|",
        *rows,
    ]


if __name__ == "__main__":
    print("\n".join(report()))  # noqa: T201
