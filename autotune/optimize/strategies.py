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

import numpy as np

from autotune.measure.search import Guide, Search, genetic_search
from autotune.optimize.session import FEWEST_STEPS, RANKED, OptimizeSession
from autotune.spaces import TILES, menu
from common.reproducibility import generator
from data.hlo.choices import Choices, Space, draw_choices

# The source of candidates that a search draws or breeds.
SEARCH = "search"
# Number of layouts that a ranker ranks, and number of proposals among them.
N_RANKED, N_PICKS = 1_000, 15


def search_for(session: OptimizeSession) -> tuple[Search, list[str]]:
    """Return the search of a call.

    Returns:
        The search, and the sources of its first settings. All later settings have the source
        `SEARCH`. Both are the same for any number of candidates, so a call with more resumes.
    """
    request, description = session.request, session.description
    space = Space(description.n_options, description.groups)
    rng = generator(request.seed, "optimize", request.program)
    n_candidates, name = request.n_candidates, request.search
    if name == "random":
        return _one_batch(draw_choices(space, n_candidates, rng)), ["default"]
    if name == "go":
        return _go_search(session), ["default"]
    guide = None
    if session.pick and set(RANKED) & set(session.spaces):
        guide = lambda settings: _ranked(session, settings)  # noqa: E731
    proposals = [] if name == "genetic" else [*_proposals(session, guide)]
    first = np.array([session.default, *(setting for _, setting in proposals)])
    # A heuristic without training proposes tiles, and does not guide the search.
    search = genetic_search(
        space, n_candidates, rng, first=first[:n_candidates], guide=guide if request.run else None
    )
    return search, ["default", *(source for source, _ in proposals)]


def _proposals(session: OptimizeSession, guide: Guide | None) -> Iterator[tuple[str, Choices]]:
    """Yield the source and the setting (g,) of each candidate before the search."""
    request, description, spaces = session.request, session.description, session.spaces
    ends = np.cumsum([*spaces.values()])
    knobs = {name: slice(end - spaces[name], end) for name, end in zip(spaces, ends, strict=True)}
    default = np.array(session.default)
    if request.search == "portfolio":
        for options in menu() if "options" in knobs else ():
            setting = default.copy()
            setting[knobs["options"]] = options
            yield "menu", setting
        if description.usual is not None and description.usual.any():
            yield "menu", description.usual
    if guide:
        part = knobs["layouts" if "layouts" in knobs else TILES]
        space = Space(description.n_options[part], description.groups[part])
        choices = draw_choices(space, N_RANKED, generator(request.seed, "drawn", request.program))
        settings = np.zeros((len(choices), len(default)), np.int64)
        settings[:, part] = choices
        best = [setting for setting in settings[guide(settings)] if setting.any()]
        for setting in best[:N_PICKS]:
            yield "ranker" if request.run else FEWEST_STEPS, setting


def _ranked(session: OptimizeSession, settings: Choices) -> Choices:
    assert session.pick, "only a session with a ranker has a guide"
    return session.pick(session.description, session.worker.spell(settings))


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
