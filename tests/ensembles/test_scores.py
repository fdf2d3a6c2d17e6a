"""A split that is scored in several goes: no graph twice, no graph lost, the same file."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from common.errors import OutOfTime, PipelineError
from common.progress import time_limit, watched_by
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import Graph
from data.tree import GraphFile, collection_named, find_graphs
from ensembles import scores
from ensembles.scores import KEEP_EVERY_S, begun_path, scores_by_graph
from models.predict import read_scores, scores_table


class Counting:
    """Scores configs by their row, and notes which graphs it was asked for; each takes a second.

    Its time may be over after some graphs, or it may be interrupted before one.
    """

    def __init__(
        self, *, seconds: float = 1.0, fails_at: int | None = None, over_after: int | None = None
    ) -> None:
        self.now, self.asked = 0.0, list[str]()
        self.limits = ExitStack()
        self._seconds, self._fails_at, self._over_after = seconds, fails_at, over_after

    def score(self, graph: Graph) -> NDArray[np.float32]:
        if len(self.asked) == self._fails_at:
            raise KeyboardInterrupt
        self.asked.append(graph.file.name)
        self.now += self._seconds
        if len(self.asked) == self._over_after:
            self.limits.enter_context(time_limit(0))
        return np.arange(graph.n_configs, dtype=np.float32) / 3

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def files(tiny_tree: Path) -> list[GraphFile]:
    tile = collection_named("tile:xla")
    found = find_graphs(tiny_tree, collections=(tile,), splits=("train",))
    assert len(found) >= 4
    return found[:4]


def score(path: Path, files: list[GraphFile], ranker: Counting) -> None:
    with ranker.limits, pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores, "time", ranker)
        scores_by_graph({path: lambda: ranker}, files, what="predict")


def scored(files: list[GraphFile]) -> pl.DataFrame:
    return pl.concat(scores_table(g, Counting().score(g)) for g in map(read_graph, files))


def test_finished_scores_are_not_recomputed(files: list[GraphFile], tmp_path: Path) -> None:
    path, whole = tmp_path / "a" / "valid.parquet", tmp_path / "whole.parquet"
    names = [file.name for file in files]
    first, second, third = Counting(over_after=2), Counting(over_after=1), Counting()
    with pytest.raises(OutOfTime, match=r"valid\.parquet: out of time with 2 of 4 graphs"):
        score(path, files, first)
    assert not path.exists()
    told: list[tuple[str, int, int]] = []
    with pytest.raises(OutOfTime, match="3 of 4"), watched_by(lambda *step: told.append(step)):
        score(path, files, second)
    assert told == [("predict", done, 4) for done in (0, 3)]  # it begins once
    score(path, files, third)
    assert (first.asked, second.asked, third.asked) == (names[:2], names[2:3], names[3:])
    assert [entry.name for entry in path.parent.iterdir()] == ["valid.parquet"]
    score(whole, files, Counting())
    assert path.read_bytes() == whole.read_bytes()
    assert read_scores(path).equals(scored(files))


def test_a_kill_costs_no_more_than_a_minute_and_a_graph(
    files: list[GraphFile], tmp_path: Path
) -> None:
    path = tmp_path / "valid.parquet"
    killed, later = Counting(seconds=KEEP_EVERY_S / 2 + 1, fails_at=3), Counting()
    with pytest.raises(KeyboardInterrupt):
        score(path, files, killed)
    score(path, files, later)
    assert later.asked == [file.name for file in files[2:]]  # two were kept


def test_members_take_turns_on_each_graph_and_are_stopped_between_two(
    files: list[GraphFile], tmp_path: Path
) -> None:
    paths = [tmp_path / name / "valid.parquet" for name in ("one", "two")]
    one, two = Counting(), Counting(over_after=2)
    with two.limits, pytest.raises(OutOfTime, match=r"one/valid\.parquet: out of time with 2 of 4"):
        scores_by_graph({paths[0]: lambda: one, paths[1]: lambda: two}, files, what="")
    names = [file.name for file in files]
    assert (one.asked, two.asked) == (names[:2], names[:2])
    two.limits.close()
    with pytest.raises(OutOfTime), (later := Counting(over_after=1)).limits:
        scores_by_graph({path: lambda: later for path in paths}, files, what="")  # one of the two
    assert [len(read_scores(begun_path(p))["graph"].unique()) for p in paths] == [3, 2]
    last = Counting()
    scores_by_graph({path: lambda: last for path in paths}, files, what="")
    assert last.asked == [names[2], names[3], names[3]]
    assert all(read_scores(path).equals(scored(files)) for path in paths)


def test_a_score_that_is_not_finite_names_the_member_and_the_graph(
    files: list[GraphFile], tmp_path: Path
) -> None:
    class Broken(Counting):
        def score(self, graph: Graph) -> NDArray[np.float32]:
            return np.where(np.arange(graph.n_configs) == 1, np.nan, super().score(graph))

    told = rf"^mine-seed0: {files[0].submission_id}: config 1 is scored nan; expected a finite num"
    with pytest.raises(PipelineError, match=told):
        score(tmp_path / "mine-seed0" / "test.parquet", files, Broken())
