"""A ranking as it is printed by `rank --json`."""

from typing import Any

from ensembles.rank.rank import Ranked


def as_json(ranked: Ranked, *, distinct: bool = False) -> dict[str, Any]:
    """Return the best configs of a graph, `ranked.top` of them, with what they say.

    Args:
        distinct: list a config that stands in the file several times only once.

    Returns:
        `name` of the graph, `collection` and `members` that ranked, `n_configs`, `ms_per_config`,
        and `configs`: as `Ranked.best` lists them, with `layouts` by node or `tile` by field, and
        `run`, the number of the tuning data's run, where there is one.
    """
    assert ranked.graph is not None, "the graph is known where `rank` made this"
    numbers = ranked.graph.run_numbers
    configs = []
    for entry in ranked.best(distinct=distinct):
        config = entry["config"]
        said: dict[str, Any] = {} if numbers is None else {"run": int(numbers[config])}
        if ranked.graph.kind == "tile":
            said["tile"] = {field: list(sizes) for field, sizes in ranked.tile(config).items()}
        else:
            said["layouts"] = [node.as_json() for node in ranked.layouts(config)]
        configs.append(entry | said)
    return {
        "name": ranked.graph.name,
        "collection": ranked.collection,
        "members": ranked.members,
        "n_configs": len(ranked.scores),
        "ms_per_config": ranked.ms_per_config,
        "configs": configs,
    }
