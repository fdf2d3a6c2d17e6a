"""Try a ranking on this machine: rank a program's candidates, measure the best and some others.

c candidates, m of them measured.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.metrics import kendall_tau
from common.seeds import generator
from data.collect.job import Job
from data.collect.measuring.journal import open_journal
from data.collect.measuring.rounds import Visitor, run_rounds
from data.collect.measuring.search import Space, draw_choices
from data.collect.measuring.session import ProgramFailed, Session
from data.collect.measuring.worker import Description
from data.graphs.graph import Graph, LayoutGraph, TileGraph
from data.packing.config_encoder import pack_values
from data.tree import GraphFile
from ensembles.ensemble import Ensemble
from ensembles.ranking.program import NamedGraph
from ensembles.ranking.rank import Ranked, rank


@dataclass(frozen=True)
class Trial:
    """Candidates as they were ranked, and what some of them take."""

    ranked: Ranked  # all c candidates; candidate 0 is the compiler's own choice
    picks: NDArray[np.int64]  # (p,) the candidates that were ranked best, all measured, best first
    others: NDArray[np.int64]  # (o,) candidates drawn at random for comparison
    # (c,) the shortest run of each; inf where the compiler refuses it, nan where not measured.
    runtime_ns: NDArray[np.float64]

    @property
    def default_ns(self) -> float:
        return float(self.runtime_ns[0])

    @property
    def best_pick_ns(self) -> float:
        """The runtime of the fastest pick; inf if the compiler refuses all of them."""
        return float(self.runtime_ns[self.picks].min())

    @property
    def best_known_ns(self) -> float:
        """The runtime of the fastest that was measured, pick or not."""
        return float(np.nanmin(self.runtime_ns))

    @property
    def median_other_ns(self) -> float:
        """The median runtime of those drawn at random, inf for each that is refused."""
        return float(np.median(self.runtime_ns[self.others]))

    @property
    def tau(self) -> float:
        """Kendall's tau between score and runtime of the candidates drawn at random."""
        ran = self.others[np.isfinite(self.runtime_ns[self.others])]
        return kendall_tau(self.ranked.scores[ran], self.runtime_ns[ran])


def try_ranking(
    job: Job, ranker: Ensemble, *, n_candidates: int, n_picks: int, n_others: int
) -> Trial:
    """Rank candidates of a program, then compile and time the best and some others.

    All that is measured is visited in interleaved rounds, in a new random order each, as `collect`
    does; the shortest run counts.

    Args:
        n_candidates: how many distinct random configs are ranked, the compiler's choice included.

    Raises:
        ProgramFailed: the program cannot be opened, or the compiler's own choice does not run.
        PipelineError: models of the other kind, or the disk is full.
    """
    with Session(job.open_subject, timeout_s=job.timeout_s) as session:
        description = session.describe()
        space = Space(description.n_options, description.groups)
        rng = generator(job.seed, "trial", job.program)
        choices = draw_choices(space, n_candidates, rng)
        graph = _graph(job, description, session.spell(choices))
        ranked = rank(ranker, NamedGraph(graph, job.collection), top=n_picks)
        picks = np.array([entry["config"] for entry in ranked.best(distinct=True)], np.int64)
        rest = np.setdiff1d(np.arange(1, len(choices)), picks)
        others = rng.permutation(rest)[:n_others]
        rows = np.unique(np.concatenate([[0], picks, others]))
        runtime_ns = np.full(len(choices), np.nan)
        with tempfile.TemporaryDirectory() as folder:
            journal = open_journal(Path(folder) / "visits.jsonl", {})
            total = len(rows) * job.n_rounds
            visitor = Visitor(session, journal, what=job.program, total=total)
            run_rounds(visitor, choices[rows], n_rounds=job.n_rounds, rng=rng)
        shortest_ns = journal.shortest_ns()
        runtime_ns[rows] = [shortest_ns.get(place, np.inf) for place in range(len(rows))]
    if not np.isfinite(runtime_ns[0]):
        raise ProgramFailed(f"{job.program}: the compiler's own choice failed; expected it to run")
    return Trial(ranked, picks, others, runtime_ns)


def _graph(job: Job, description: Description, configs: NDArray[np.generic]) -> Graph:
    """Return a described program with candidates (c, k, 18) or (c, 24), none of them measured."""
    arrays = description.arrays
    unknown = np.zeros(len(configs), np.int64)
    file = GraphFile(job.collection, job.split, job.program, Path(job.program))
    nodes = (file, arrays["node_feat"], arrays["node_opcode"], arrays["edge_index"], unknown)
    if job.collection.kind == "tile":
        tiles = configs.astype(np.float32)
        return TileGraph(*nodes, config_feat=tiles, runtime_normalizers=np.ones_like(unknown))
    return LayoutGraph(
        *nodes,
        configs=pack_values(configs.astype(np.int8)),
        node_config_ids=arrays["node_config_ids"],
        node_splits=arrays["node_splits"],
    )
