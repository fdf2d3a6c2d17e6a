"""Which nodes' decisions set a config apart from another, by the model's own account.

The k nodes that two configs lay out differently are changed one after the other, along several
orders. A node's part is what its change adds to the score, averaged over the orders: its Shapley
value (1953). Orders are drawn in pairs, each with its reverse. So a term of the score that depends
on two nodes, for example a copy between them, is halved exactly. Parts add up to the difference.

k changed nodes, p pairs of orders, v variants of the two configs, m scores of each: of the blend,
then of each member.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UsageError
from common.progress import progress
from common.reproducibility import generator
from data.graphs.graph import LayoutGraph
from data.graphs.node_columns import ELEMENT_TYPE, ELEMENT_TYPES
from ensembles.ensemble import Ensemble
from ensembles.ranking.program import (
    COMPILERS_CHOICE,
    SPELLED_AT_ONCE,
    NamedGraph,
    NodeLayouts,
    add_query_configs,
    change_of,
    check_layout_configs,
    layouts_of,
)
from features.padding import dimension_sizes, minor_to_major

VARIANTS = 1024  # about so many are scored, unless two pairs of orders need more
MIN_PAIRS, MAX_PAIRS = 2, 16

Values = NDArray[np.float64]


def shares(
    value: Callable[[NDArray[np.bool_]], Values], k: int, rng: np.random.Generator
) -> tuple[Values, int]:
    """Divide the difference that k changes make among them; all variants are asked for at once.

    Exact for scores that are sums over changes and pairs of changes.

    Args:
        value: Maps which changes are made, (v, k), to scores (v, m).
        k: Number of changes.
        rng: Draws the orders.

    Returns:
        Parts (k, m), which add up to the difference, and v.
    """
    n_pairs = int(np.clip(VARIANTS // max(1, 2 * k), MIN_PAIRS, MAX_PAIRS))
    drawn = [rng.permutation(k) for _ in range(n_pairs)]
    place = np.argsort([*drawn, *(order[::-1] for order in drawn)], axis=1)  # (2p, k)
    walks = place[:, None] < np.arange(k + 1)[:, None]  # (2p, k + 1, k): changes after each step
    masks, which = np.unique(np.concatenate([*walks]), axis=0, return_inverse=True)
    scores = value(masks)[which.reshape(-1)].reshape(*walks.shape[:2], -1)
    added = np.take_along_axis(np.diff(scores, axis=1), place[:, :, None], axis=1)  # (2p, k, m)
    return added.mean(axis=0), len(masks)


@dataclass(frozen=True)
class Part:
    """What one node's layouts, `after` in the place of `before`, add to a config's score.

    Attributes:
        shape: element type and sizes of its output, such as "f32[8,128]".
        score: below 0 = faster.
        members: the part of each member's own score; their scales differ.
    """

    before: NodeLayouts
    after: NodeLayouts
    shape: str
    score: float
    members: dict[str, float]

    @property
    def change(self) -> str:
        """Return what changes, as `change_of`."""
        return change_of(self.before, self.after)


@dataclass(frozen=True, repr=False)
class Explanation:
    """What sets a config apart from another.

    Attributes:
        against: the row of the other config.
        baseline: "the compiler's choice", "the nearest to the compiler's choice"; else "".
        difference: the sum of the parts, below 0 = predicted faster; of a single model's scores, or
            of the weighted mean of several models', each brought to 0..1 over the graph's configs.
        parts: of the k nodes that differ, the largest first.
        n_variants: how many configs were scored beside the graph's own.
    """

    graph: NamedGraph
    config: int
    against: int
    baseline: str
    difference: float
    parts: tuple[Part, ...]
    n_variants: int
    seconds: float

    @property
    def heading(self) -> str:
        """Say in one line what is compared, and how the models see it."""
        baseline = f", {self.baseline}" if self.baseline else ""
        side = "lower, predicted faster" if self.difference < 0 else "higher, predicted slower"
        of = "blended score" if any(len(part.members) > 1 for part in self.parts) else "score"
        score = f"{of} {abs(self.difference):.4f} {side}" if self.difference else "equal scores"
        said = f"{score}; nodes that differ: {len(self.parts)}"
        return f"config {self.config} against config {self.against}{baseline}: {said}"

    def said(self, score: float) -> tuple[str, str | None]:
        """Say what a score does, and its share of the difference; None where that is 0."""
        what = f"{abs(score):.4f} {'faster' if score < 0 else 'slower'}" if score else "as fast"
        return what, f"{score / self.difference:z.0%}" if self.difference else None

    def as_json(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        parts = [
            vars(part) | {"before": part.before.as_json(), "after": part.after.as_json()}
            for part in self.parts
        ]
        return vars(self) | {"graph": self.graph.name, "parts": parts}


def explain(
    ranker: Ensemble, graph: NamedGraph, config: int, against: int | None = None
) -> Explanation:
    """Say which nodes' layouts set a config apart from another, by the models' own account.

    It costs one ranking of the graph's configs and about a thousand others.

    Args:
        graph: what was ranked, `Ranked.graph`.
        config: a row of its configs.
        against: the row to compare with; default: `default_row`.

    Raises:
        UsageError: no such config, a graph with one config, or tiles.
        PipelineError: configs do not fit the program.
    """
    whole = graph.graph
    if ranker.collection.kind != "layout" or not isinstance(whole, LayoutGraph):
        raise UsageError(f"{graph.name}: a tile is one decision for all nodes; expected layouts")
    last, start = whole.n_configs - 1, time.perf_counter()
    if not last:
        raise UsageError(f"{graph.name}: has one config; expected another to compare it with")
    other = default_row(whole) if against is None else against
    for row in (config, other):
        if not 0 <= row <= last:
            raise UsageError(f"{graph.name}: no config {row}; expected 0..{last}")
    check_layout_configs(graph, str(graph.path))
    before, after = whole.configs.rows(np.array([other, config]))  # (nodes, 18) each
    places = np.flatnonzero((before != after).any(axis=1))  # (k,) by config order

    def variants(masks: NDArray[np.bool_]) -> Iterator[NDArray[np.int8]]:
        for first in range(0, len(masks), SPELLED_AT_ONCE):
            made = masks[first : first + SPELLED_AT_ONCE, :, None]
            values = np.repeat(before[None], len(made), axis=0)
            values[:, places] = np.where(made, after[places], before[places])
            yield values

    def value(masks: NDArray[np.bool_]) -> Values:
        return _scores(ranker, add_query_configs(whole, variants(masks)))[whole.n_configs :]

    choice = f"the {COMPILERS_CHOICE}"
    nearest = f"the nearest to {choice}" if against is None else ""
    scores, n_variants = shares(value, len(places), generator(0, "explain"))
    old, new = layouts_of(graph, other), layouts_of(graph, config)
    parts = tuple(
        Part(
            *(old[places[i]], new[places[i]], shape_of(graph, old[places[i]].node)),
            score=float(scores[i, 0]),
            members=dict(zip(ranker.rankers, scores[i, 1:].tolist(), strict=True)),
        )
        for i in np.argsort(-np.abs(scores[:, 0]), kind="stable")
    )
    return Explanation(
        *(graph, int(config), int(other)),
        baseline=nearest if (before >= 0).any() else choice,
        difference=float(scores[:, 0].sum()),
        parts=parts,
        n_variants=n_variants,
        seconds=time.perf_counter() - start,
    )


def _scores(ranker: Ensemble, graph: LayoutGraph) -> Values:
    """Return (c, 1 + members) scores, of the blend first."""
    scores = []
    for number, member in enumerate(ranker.rankers.values()):
        progress("explain", number, len(ranker.rankers))
        scores.append(member.score(graph))
    own = np.stack(scores, axis=1).astype(np.float64)
    if own.shape[1] == 1:
        return own.repeat(2, axis=1)
    span = np.ptp(own[: graph.n_counted], axis=0)
    weights = np.array([ranker.spec.weights[name] for name in ranker.rankers])
    scaled = own * np.divide(weights / weights.sum(), span, out=np.zeros_like(span), where=span > 0)
    return np.concatenate([scaled.sum(axis=1, keepdims=True), own], axis=1)


def default_row(graph: LayoutGraph) -> int:
    """Return the config that is nearest to what the compiler itself would do.

    The first of those that leave to the compiler, or give as it had it, the most nodes' outputs,
    and of these leave the most tensors to it: where there is one that leaves all, that.
    """
    own = minor_to_major(graph.node_feat)[graph.node_config_ids]  # (k, 6)
    given = graph.configs.vectors.reshape(-1, 3, own.shape[1])  # (u, 3, 6)
    agrees = ((given[:, 0] < 0) | (given[:, 0] == own[:, None])).all(axis=2)  # (k, u)
    n_open = (given < 0).all(axis=2).sum(axis=1)  # (u,)
    nearness = agrees * (1 + given.shape[1] * len(own)) + n_open
    codebooks, total = graph.configs.codebooks, np.zeros(graph.n_configs)
    for of_node, column in zip(nearness, codebooks.column_of, strict=True):
        total += of_node[codebooks.vectors[column]].take(graph.configs.indices[:, column])
    return int(total.argmax())


def shape_of(graph: NamedGraph, node: int) -> str:
    """Return element type and sizes of a node's output, such as "f32[8,128]"."""
    row = graph.graph.node_feat[node : node + 1]
    sizes = ",".join(str(size) for size in dimension_sizes(row)[0].tolist() if size >= 0)
    return f"{ELEMENT_TYPES[int(row[0, ELEMENT_TYPE].argmax())]}[{sizes}]"
