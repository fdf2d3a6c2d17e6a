"""The searches of `optimize --search NAME`; c settings of g knobs.

- portfolio: a menu of compiler options, the usual layouts, then changes of the fastest setting:
  each option, and edits of a few nodes. With `--run`, the top configs of a ranker and a genetic
  search whose children the ranker chooses take the place of the changes.
- random: settings of up to three options and three edits.
- genetic: only the genetic search.
- ranker: the top configs of a run's models, then the genetic search. The models choose the
  children.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path

import numpy as np

from autotune.measure.program import Description
from autotune.measure.search import Guide, Search, genetic_search
from autotune.optimize.candidate import Setting
from autotune.optimize.session import OptimizeSession
from common.reproducibility import generator
from data.graphs.graph import LayoutGraph
from data.graphs.packing import pack_values
from data.hlo.choices import DRAWS_PER_CHOICE, Choices, Space, draw_choices
from data.hlo.compiler_options import GENES
from data.tree import GraphFile, collection_named

# The source of candidates that a search draws or breeds.
SEARCH = "search"
# The source of the best setting of an earlier call.
STORED = "stored"
# Number of layouts that a ranker ranks, and number of proposals among them.
N_RANKED, N_PICKS = 1_000, 15
# Edits of nodes that a round measures, and the largest number of them that it adds up. One visit is
# too noisy to see a smaller gain than the ratio's.
EDITS_PER_ROUND, MAX_HELPFUL, HELPFUL_RATIO = 24, 6, 0.99
# Largest number of options, and of edits, in a random setting.
MAX_CHANGES = 3
# Knobs and their options.
Change = tuple[tuple[int, int], ...]
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
    request, description = session.request, session.description
    rng = generator(request.seed, "optimize", request.program)
    n_candidates, name = request.n_candidates, request.search
    if name == "random":
        return random_changes(description, n_candidates, rng), ["default"]
    guide = None
    if request.run and "layouts" in description.knobs:
        guide = partial(_rank_layouts, session)
    proposals = [(STORED, np.array(session.start))] if session.start else []
    proposals += [] if name == "genetic" else _proposals(session, guide)
    first = np.array([session.default, *(setting for _, setting in proposals)])
    sources = ["default", *(source for source, _ in proposals)]
    if name == "portfolio" and not guide:
        return portfolio_search(description, n_candidates, rng, first), sources
    space, first = description.space, first[:n_candidates]
    return genetic_search(space, n_candidates, rng, first=first, guide=guide), sources


def option_changes(description: Description) -> list[Change]:
    """Return each compiler option alone."""
    place = description.slices.get("options", slice(0, 0))
    counts = enumerate(description.n_options[place].tolist(), place.start)
    return [((knob, option),) for knob, n_options in counts for option in range(1, n_options)]


def node_edits(description: Description, rng: np.random.Generator) -> list[Change]:
    """Return each option of all nodes of a group at once, and of each node alone.

    A dot has many layouts, so the first edits have one option of each node.
    """
    groups: dict[tuple[str, int], list[int]] = {}
    for space, place in description.slices.items():
        numbers = description.knobs[space].groups.tolist() if space != "options" else []
        for knob, group in enumerate(numbers, place.start):
            groups.setdefault((space, group), []).append(knob)
    single = [[knob] for knobs in groups.values() if len(knobs) > 1 for knob in knobs]
    edits = []
    for knobs in (*groups.values(), *single):
        options = rng.permutation(np.arange(1, description.n_options[knobs].min())).tolist()
        for turn, option in enumerate(options):
            edit = tuple((knob, option) for knob in knobs)
            edits.append((turn, knobs in single, rng.random(), edit))
    return [edit for *_, edit in sorted(edits)]


def changed(setting: Setting, *changes: Change) -> Setting:
    """Return a setting with other options of some knobs."""
    options = dict(enumerate(setting))
    return tuple((options | dict(pair for change in changes for pair in change)).values())


def random_changes(description: Description, n_candidates: int, rng: np.random.Generator) -> Search:
    """Yield the default, and distinct settings of up to three options and three edits each."""
    pools = option_changes(description), node_edits(description, rng)
    default: Setting = (0,) * len(description.n_options)
    settings = {default: None}
    for _ in range(DRAWS_PER_CHOICE * n_candidates):
        if len(settings) < n_candidates:
            drawn = [
                pool[place]
                for pool in pools
                for place in rng.permutation(len(pool))[: rng.integers(MAX_CHANGES + 1)]
            ]
            settings[changed(default, *drawn)] = None
    yield np.array([*settings])


def portfolio_search(
    description: Description, n_candidates: int, rng: np.random.Generator, first: Choices
) -> Search:
    """Yield first settings, then changes of the fastest: options, edits of nodes, any.

    Each round measures some edits of the fastest setting, and then adds those that helped one
    after the other. A genetic search follows if no edit is left.

    Args:
        first: First settings (b, g), the default first.
    """
    runtimes: dict[Setting, float] = {}

    def measure(settings: Iterable[Setting]) -> Search:
        new = [setting for setting in dict.fromkeys(settings) if setting not in runtimes]
        if new := new[: n_candidates - len(runtimes)]:
            runtimes.update(zip(new, (yield np.array(new)), strict=True))

    def fastest() -> Setting:
        return min(runtimes, key=lambda setting: runtimes[setting])

    default: Setting = tuple(first[0].tolist())
    yield from measure(map(tuple, first.tolist()))
    options = option_changes(description)
    for option in sorted(options, key=lambda o: runtimes.get(changed(default, o), inf)):
        yield from measure([changed(fastest(), option)])
    edits = node_edits(description, rng)
    for place in range(0, len(edits), EDITS_PER_ROUND):
        base, batch = fastest(), edits[place : place + EDITS_PER_ROUND]
        yield from measure(changed(base, edit) for edit in batch)
        ratios = {edit: runtimes.get(changed(base, edit), inf) / runtimes[base] for edit in batch}
        for edit in sorted(batch, key=lambda edit: ratios[edit])[1:MAX_HELPFUL]:
            if ratios[edit] < HELPFUL_RATIO:
                yield from measure([changed(fastest(), edit)])
    known = np.array([*runtimes])
    search = genetic_search(description.space, n_candidates, rng, first=known)
    next(search)
    with suppress(StopIteration):
        children = search.send(np.array([*runtimes.values()]))
        while True:
            children = search.send((yield children))


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
