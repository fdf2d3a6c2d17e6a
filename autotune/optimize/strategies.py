"""The searches of `optimize --search NAME`; c settings of g knobs.

- portfolio: a menu of compiler options, the usual layouts, the top configs of a ranker, then a
  genetic search. With `--run` the ranker also chooses the children.
- random: settings that each leave a random share to the compiler.
- genetic: only the genetic search.
- ranker: the top configs of a run's models, then the genetic search. The models choose the
  children.
- go: the pretrained policy of GO, which learns from each batch (autotune/go).
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from autotune.measure.search import Guide, Search, genetic_search
from autotune.optimize.session import OptimizeSession
from common.reproducibility import generator
from data.graphs.graph import LayoutGraph
from data.graphs.packing import pack_values
from data.hlo.choices import Choices, Space, draw_choices
from data.hlo.compiler_options import GENES
from data.tree import GraphFile, collection_named

# The source of candidates that a search draws or breeds.
SEARCH = "search"
# The source of the best setting of an earlier call.
STORED = "stored"
# Number of layouts that a ranker ranks, and number of proposals among them.
N_RANKED, N_PICKS = 1_000, 15
# The first compiler options, by knob and value. The order follows the gains on other programs.
COMBINED = (
    {"library": 1, "vector width": 1},
    {"vector width": 1, "LLVM": 1},
    {"library": 1, "vector width": 1, "LLVM": 1, "fusion emitters": 1},
    {"library": 1, "LLVM": 1},
)


def menu() -> Choices:
    """Return the first compiler options of a search: `COMBINED`, then each knob alone, (m, g)."""
    single = [
        {knob: value} for knob, values in GENES.items() for value in range(1, len(values) + 1)
    ]
    return np.array(
        [[setting.get(knob, 0) for knob in GENES] for setting in (*COMBINED, *single)], np.int64
    )


def search_for(session: OptimizeSession) -> tuple[Search, list[str]]:
    """Return the search of a call.

    Returns:
        The search, and the sources of its first settings. All later settings have the source
        `SEARCH`. Both are the same for any number of candidates, so a call with more resumes.
    """
    request, space = session.request, session.description.space
    rng = generator(request.seed, "optimize", request.program)
    n_candidates, name = request.n_candidates, request.search
    if name == "random":
        return _one_batch(draw_choices(space, n_candidates, rng)), ["default"]
    if name == "go":
        return _go_search(session), ["default"]
    guide = None
    if request.run and "layouts" in session.description.knobs:
        guide = partial(_rank_layouts, session)
    proposals = [(STORED, np.array(session.start))] if session.start else []
    proposals += [] if name == "genetic" else _proposals(session, guide)
    first = np.array([session.default, *(setting for _, setting in proposals)])
    search = genetic_search(space, n_candidates, rng, first=first[:n_candidates], guide=guide)
    return search, ["default", *(source for source, _ in proposals)]


def _proposals(session: OptimizeSession, guide: Guide | None) -> Iterator[tuple[str, Choices]]:
    """Yield the source and the setting (g,) of each candidate before the search."""
    request, description = session.request, session.description
    places = description.slices
    if request.search == "portfolio":
        for options in menu() if "options" in places else ():
            setting = np.array(session.default)
            setting[places["options"]] = options
            # A knob that the compiler lacks has only option 0.
            setting = np.minimum(setting, description.n_options - 1)
            if setting.any():
                yield "menu", setting
        if description.usual is not None and description.usual.any():
            yield "menu", description.usual
    if guide:
        n_options, groups, _ = description.knobs["layouts"]
        rng = generator(request.seed, "drawn", request.program)
        choices = draw_choices(Space(n_options, groups), N_RANKED, rng)
        settings = np.zeros((len(choices), len(session.default)), np.int64)
        settings[:, places["layouts"]] = choices
        best = [setting for setting in settings[guide(settings)] if setting.any()]
        for setting in best[:N_PICKS]:
            yield "ranker", setting


def _rank_layouts(session: OptimizeSession, settings: Choices) -> Choices:
    """Return the positions (c,) of settings (c, g), sorted by the score of a run's models."""
    from ensembles.ranking.program import NamedGraph
    from ensembles.ranking.rank import rank, ranker_for

    program, arrays = session.request.program, session.description.arrays
    configs = session.worker.spell(settings)  # (c, k, 18)
    graph = LayoutGraph(
        GraphFile(collection_named("layout:xla:random"), "test", program, Path(program)),
        arrays["node_feat"],
        arrays["node_opcode"],
        arrays["edge_index"],
        np.zeros(len(configs), np.int64),
        configs=pack_values(configs.astype(np.int8)),
        node_config_ids=arrays["node_config_ids"],
        node_splits=arrays["node_splits"],
    )
    named_graph = NamedGraph(graph, graph.file.collection)
    ranker = ranker_for(Path(str(session.request.run)), named_graph)
    return np.asarray(rank(ranker, named_graph, top=len(configs)).order, np.int64)


def _one_batch(settings: Choices) -> Search:
    yield settings


def _go_search(session: OptimizeSession) -> Search:
    from autotune.go.network import decision_graph
    from autotune.go.ppo import go_search
    from autotune.go.pretrain import load_policy
    from models.training.device import CPU, torch_prepared

    request = session.request
    policy, scaler = load_policy()
    with torch_prepared(threads=1, device=CPU, seed=request.seed):
        graph = decision_graph(request.program, session.description, scaler)
        yield from go_search(policy, graph, request.n_candidates, seed=request.seed)
