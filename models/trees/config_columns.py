"""Trees on the configs of each train graph, for other configs of the same program or of a sibling.

A sibling is the same program in another size, for example with another batch size. A training
learns the train graphs that rank a graph of the valid or test split, or all train graphs if there
is none. Each learned graph has rankers, whose weighted scores are summed. The rankers of several
siblings are averaged without weights.

A finished training has one zip archive, with a folder for each program.
"""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import OutOfTime, blame
from common.files import open_regular, write_bytes
from common.progress import each, log, out_of_time
from common.settings import FrozenConfig
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import Graph, LayoutGraph, distinct_configs
from features.statistics.configs import StatisticsSet, statistics_of
from models.config.recipe import Recipe
from models.config.trees import ConfigColumnsConfig, LinearConfig
from models.registry import TrainJob
from models.trees.boosting import BoostingRanker, booster_of
from models.trees.column_features import ColumnFeatures, column_features
from models.trees.linear import LinearRanker, LinearRows
from models.trees.program_trees import (
    ProgramTrees,
    RankerName,
    ranker_weights,
    statistics_read_by,
)
from models.trees.rows import GraphRows, sample_rows
from models.trees.siblings import Signature, siblings_of, signature_of, used_programs

# Kaggle unpacks files with the suffix .zip. The parts of an unfinished training have one program
# each.
ARCHIVE, PARTS, PROGRAM = "programs.packed", "program-*.part", "program.json"
# Equal programs give equal archives, so the date is fixed. This is the earliest date of a zip file.
FIXED_DATE = (1980, 1, 1, 0, 0, 0)


class LearnedProgram(FrozenConfig):
    """A learned train graph, except for its trees.

    Attributes:
        weights: Weight of each ranker. They sum to 1.
        linear: Weight and largest input of each statistic of the linear ranker, or none.
    """

    name: str
    signature: Signature
    features: ColumnFeatures
    weights: dict[RankerName, float]
    linear: dict[str, tuple[float, float]]


def train_config_columns(job: TrainJob) -> None:
    """Learn the configs of train graphs. A resumed training skips the learned graphs."""
    config: ConfigColumnsConfig = getattr(job.recipe, job.model)
    files = used_programs(job.files, job.ranked)
    log.info(f"{job.model}: {len(files)} of {len(job.files)} train graphs can rank a graph")
    graphs = sample_rows(files, config, job.seed) if files else []
    for number, rows in enumerate(each("learn configs", graphs)):
        part = job.run_dir / PARTS.replace("*", f"{number:03d}")
        if part.exists():
            continue
        if out_of_time():
            raise OutOfTime(f"{job.run_dir}: out of time with {number} of {len(graphs)} graphs")
        texts = _learn(rows, config, seed=job.seed, threads=job.recipe.n_threads)
        contents = {f"{number:03d}/{name}": text.encode() for name, text in texts.items()}
        write_bytes(part, _pack(contents))
    parts = sorted(job.run_dir.glob(PARTS))
    programs: dict[str, bytes] = {}
    for part in parts:
        programs |= _unpack(part)
    write_bytes(job.run_dir / ARCHIVE, _pack(programs))
    for part in parts:
        part.unlink()


def _learn(
    rows: GraphRows, config: ConfigColumnsConfig, *, seed: int, threads: int
) -> dict[str, str]:
    """Learn the configs of one graph, and return the files of its program by name."""
    graph = read_layout(rows.file)
    features = column_features(graph, rows.rows)
    trees = ProgramTrees(graph, features, config, seed, threads)
    weights = ranker_weights(len(rows.rows), len(features.node))
    if "forest" in weights:
        weights = trees.stacked_weights(rows)
    linear: dict[str, tuple[float, float]] = {}
    files: dict[str, str] = {}
    for name in weights:
        if name == "linear":
            linear_rows = LinearRows([rows], LinearConfig(statistics=config.statistics))
            linear = linear_rows.fit()[0].weights
        else:
            files[f"{name}.txt"] = trees.fit(name, rows).model_to_string()
    program = LearnedProgram(
        name=rows.file.name,
        signature=signature_of(graph),
        features=features,
        weights=weights,
        linear=linear,
    )
    return {PROGRAM: program.model_dump_json(), **files}


def _pack(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, FIXED_DATE), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _unpack(path: Path, ending: str = "") -> dict[str, bytes]:
    """Return the files of an archive whose names have an ending."""
    need = "learned programs; remove its folder, and train the model again"
    with open_regular(path) as file, blame(path, need), zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.endswith(ending)]
        return {name: archive.read(name) for name in names}


@dataclass(frozen=True)
class ConfigColumnsRanker:
    """The learned programs of a run folder. Trees are read for one graph at a time."""

    archive: Path
    programs: Mapping[str, LearnedProgram]
    statistics: StatisticsSet
    threads: int

    def siblings_of(self, graph: LayoutGraph) -> list[str]:
        signatures = {name: program.signature for name, program in self.programs.items()}
        return siblings_of(signatures, signature_of(graph))

    def score(self, graph: Graph) -> NDArray[np.float32] | None:
        """Score every config (c,), or return None if no sibling of the graph was learned."""
        assert isinstance(graph, LayoutGraph)
        siblings = self.siblings_of(graph)
        if not siblings:
            return None
        first, group = distinct_configs(graph)
        with blame(self.archive, "programs that this version has learned"):
            scores = [self._score_by(name, graph, first) for name in siblings]
        return np.mean(scores, axis=0).astype(np.float32)[group]

    def _score_by(
        self, folder: str, graph: LayoutGraph, rows: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return the scores (r,) of some configs by one learned program."""
        program = self.programs[folder]
        total = np.zeros(len(rows), np.float32)
        for name, weight in program.weights.items():
            if name == "linear":
                table = statistics_of(graph, self.statistics)(rows)
                scores = LinearRanker(program.linear, self.statistics).of(table).astype(np.float32)
            else:
                statistics = statistics_read_by(name, self.statistics)
                names = program.features.names(statistics)
                rows_of = partial(program.features.rows_of, statistics=statistics)
                place = f"{folder}/{name}.txt"
                text = _unpack(self.archive, place).get(place, b"")
                booster = booster_of(text, self.archive, names)
                scores = BoostingRanker(booster, rows_of, self.threads).score_rows(graph, rows)
            total += np.float32(weight) * scores
        return total


def load_config_columns(name: str, run_dir: Path, recipe: Recipe) -> ConfigColumnsRanker:
    archive = run_dir / ARCHIVE
    with blame(archive, "features, and a weight for each ranker"):
        programs = {
            place.removesuffix(f"/{PROGRAM}"): LearnedProgram.model_validate_json(text)
            for place, text in _unpack(archive, PROGRAM).items()
        }
    statistics = getattr(recipe, name).statistics
    return ConfigColumnsRanker(archive, programs, statistics, recipe.n_threads)
