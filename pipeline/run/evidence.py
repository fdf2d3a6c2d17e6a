"""What stands behind a run's valid scores: slowdown curves, ranks, seeds apart, noise ceilings."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from data.audit.rows import AuditRow
from data.tree import Collection, collection_named
from ensembles.blend import mix
from ensembles.choice.in_run import written_mixing
from ensembles.members import members_of
from ensembles.score_files import scores_path
from models.predict import read_scores
from pipeline.run.state import RunState
from submissions.labels import Labels
from submissions.report.curves import CURVE_PICKS, rank_points, slowdown_curve, write_ranks
from submissions.score import score_submission
from submissions.write import submission_rows

Part = dict[str, Any]


def noise_ceilings(rows: Sequence[AuditRow]) -> dict[str, float]:
    """Return the Kendall tau between two measurements of a graph's configs, by submission ID.

    Args:
        rows: what the audit says of every file; a graph that repeats too few configs has none.
    """
    return {row.file.submission_id: row.noise.tau for row in rows if row.noise is not None}


def add_evidence(
    state: RunState, parts: Mapping[str, Part], labels: Mapping[str, Labels], ranks: Path
) -> None:
    """Add to each judged collection what its value rests on, and write the ranks of its configs.

    Args:
        parts: by collection; gets `slowdown_curve` (`k`, and the mean slowdown@k of `model` and of
            `floor`), `seed_values` (what each seed alone would have had, by seed; empty for one
            seed) and `seed_sd` (their standard deviation, or None); None where nothing was judged.
        labels: runtimes by submission ID.
        ranks: where the ranks are written, for scatter pictures.
    """
    tables: list[pl.DataFrame] = []
    for name, part in parts.items():
        part |= {"slowdown_curve": None, "seed_values": {}, "seed_sd": None}
        if part["value"] is None:
            continue
        collection = collection_named(name)
        judged = {key: labels[key] for key in (f"{name}:{graph}" for graph in part["per_graph"])}
        rankings = _rankings(state, collection, "blend", judged)
        part["slowdown_curve"] = {
            "k": list(CURVE_PICKS),
            "model": _curve(rankings, judged),
            "floor": _curve(_rankings(state, collection, "floor", judged), judged),
        }
        tables += [
            rank_points(name, key.removeprefix(f"{name}:"), ranking, judged[key])
            for key, ranking in rankings.items()
        ]
        values = dict(_seed_values(state, collection, judged))
        part |= {"seed_values": values, "seed_sd": stdev(values.values()) if values else None}
    write_ranks(ranks, tables)


def _rankings(
    state: RunState, collection: Collection, scorer: str, judged: Mapping[str, Labels]
) -> dict[str, NDArray[np.int64]]:
    """Return whole rankings of the judged graphs, by submission ID; none if nobody scored them."""
    path = scores_path(state.out, collection, scorer, "valid")
    if not path.exists():
        return {}
    rows = dict(submission_rows([(collection, read_scores(path))]))
    return {key: rows[key] for key in sorted(judged)}


def _curve(
    rankings: Mapping[str, NDArray[np.int64]], judged: Mapping[str, Labels]
) -> list[float] | None:
    runtimes = [judged[key].runtime for key in rankings]
    return slowdown_curve(list(rankings.values()), runtimes) if rankings else None


def _seed_values(
    state: RunState, collection: Collection, judged: Mapping[str, Labels]
) -> Iterator[tuple[str, float]]:
    """Yield what the members of each seed, blended alone, would have had; nothing for one seed."""
    source = state.sources[collection.name]
    members = members_of(state.recipe, source.collection or collection, state.out, source)
    mixing = written_mixing(state.out, state.recipe.blend, collection, [m.name for m in members])
    seeds = sorted({member.seed for member in members if mixing.weights[member.name] > 0})
    if len(seeds) < 2:
        return
    for seed in seeds:
        names = [member.name for member in members if member.seed == seed]
        tables = {
            name: read_scores(scores_path(state.out, collection, name, "valid")) for name in names
        }
        mixed = mix(tables, mixing, state.of(collection, "valid"))
        rankings = dict(submission_rows([(collection, mixed)]))
        report = score_submission(rankings, judged)["collections"][collection.name]
        yield str(seed), float(report["value"])
