"""How many nodes pruning will leave of a graph of which only the number of nodes is known."""

# Configurable nodes by nodes: the largest published graph has 3,143 of 43,615. The seven real files
# at hand have .020 to .078.
CONFIGURABLE_SHARE = 3_143 / 43_615
# Kept nodes by configurable ones, the most of the six real graphs at hand (hops-1: 3.0 to 3.6), by
# `features.pruning.rules.prune`.
KEPT_PER_CONFIGURABLE = {"config": 1.0, "config-graph": 1.0, "hops-1": 3.6, "hops-2": 7.0}


def configurable_nodes(n_nodes: float) -> float:
    """Return about how many of a real layout graph's nodes are configurable."""
    return CONFIGURABLE_SHARE * n_nodes


def kept_nodes(rule: str, n_nodes: float, n_configurable: float) -> float:
    """Return about how many nodes a pruning rule leaves, rather too many than too few.

    Of rules that were not counted, all nodes.
    """
    share = KEPT_PER_CONFIGURABLE.get(rule)
    return n_nodes if share is None else min(n_nodes, share * n_configurable)
