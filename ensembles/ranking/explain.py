"""Divide the score difference of two configs among the nodes with different layouts.

The k nodes with different layouts are changed one after the other, in several random orders. The
part of a node is the mean change of the score at its turn: its Shapley value (1953). Orders come in
pairs, each with its reverse. So a term of the score that depends on two nodes, for example a copy
between them, is divided in exact halves. The sum of the parts is the difference.

k changed nodes, p pairs of orders, v variants of the two configs, m scores of each variant: first
the blend, then the members.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UsageError
from common.reproducibility import generator
from data.graphs.graph import LayoutGraph
from data.graphs.node_columns import ELEMENT_TYPE, ELEMENT_TYPES
from ensembles.ensemble import Ensemble
from ensembles.ranking.configs import (
    SPELLED_AT_ONCE,
    add_query_configs,
    check_layout_configs,
    default_row,
)
from ensembles.ranking.layouts import COMPILERS_CHOICE, NodeLayouts, change_of, layouts_of
from ensembles.ranking.program import NamedGraph
from features.padding import dimension_sizes

# Approximate number of variants to score. Two pairs of orders may need more.
VARIANTS = 1024
MIN_PAIRS, MAX_PAIRS = 2, 16

Values = NDArray[np.float64]


def shares(
    value: Callable[[NDArray[np.bool_]], Values], k: int, rng: np.random.Generator
) -> tuple[Values, int]:
    """Divide the effect of k changes among them, exactly for sums over changes and pairs of them.

    Args:
        value: Maps masks of changes, (v, k) bool, to scores, (v, m).

    Returns:
        Parts, (k, m), whose sum is the difference, and the number of variants, v.
    """
    n_pairs = int(np.clip(VARIANTS // max(1, 2 * k), MIN_PAIRS, MAX_PAIRS))
    orders = [rng.permutation(k) for _ in range(n_pairs)]
    place = np.argsort([*orders, *(order[::-1] for order in orders)], axis=1)  # (2p, k)
    # Masks of the changes after each step, (2p, k + 1, k).
    walks = place[:, None] < np.arange(k + 1)[:, None]
    masks, positions = np.unique(np.concatenate([*walks]), axis=0, return_inverse=True)
    scores = value(masks)[positions.reshape(-1)].reshape(*walks.shape[:2], -1)
    gains = np.take_along_axis(np.diff(scores, axis=1), place[:, :, None], axis=1)  # (2p, k, m)
    return gains.mean(axis=0), len(masks)


@dataclass(frozen=True)
class NodeEffect:
    """Effect of one node in the score difference of two configs.

    Attributes:
        before: Layouts in the other config.
        after: Layouts in the explained config.
        shape: Element type and sizes of the output, for example "f32[8,128]".
        score: Change of the score; below 0 = faster.
        members: Change of each member's score. The scales of members differ.
    """

    before: NodeLayouts
    after: NodeLayouts
    shape: str
    score: float
    members: dict[str, float]

    @property
    def change(self) -> str:
        return change_of(self.before, self.after)


@dataclass(frozen=True, repr=False)
class Explanation:
    """Comparison of two configs, node by node.

    Attributes:
        graph: Graph of the configs.
        config: Row of the explained config.
        against: Row of the other config.
        baseline: "the compiler's choice", "the nearest to the compiler's choice", or "".
        difference: Sum of the parts; below 0 = predicted faster. With several models it is in
            units of the blended score, whose members are scaled to 0..1 over the graph's configs.
        parts: Parts of the k nodes with different layouts, largest first.
        n_variants: Number of scored variants.
        seconds: Time of the computation.
    """

    graph: NamedGraph
    config: int
    against: int
    baseline: str
    difference: float
    parts: tuple[NodeEffect, ...]
    n_variants: int
    seconds: float

    @property
    def heading(self) -> str:
        """Return one line with the configs, the score difference and the number of nodes."""
        baseline = f", {self.baseline}" if self.baseline else ""
        side = "lower, predicted faster" if self.difference < 0 else "higher, predicted slower"
        of = "blended score" if any(len(part.members) > 1 for part in self.parts) else "score"
        score = f"{of} {abs(self.difference):.4f} {side}" if self.difference else "equal scores"
        result = f"{score}; nodes that differ: {len(self.parts)}"
        return f"config {self.config} against config {self.against}{baseline}: {result}"

    def said(self, score: float) -> tuple[str, str | None]:
        """Format a score and its share of the difference: "0.0123 faster" and "45%" or None."""
        effect = f"{abs(score):.4f} {'faster' if score < 0 else 'slower'}" if score else "as fast"
        return effect, f"{score / self.difference:z.0%}" if self.difference else None

    def as_json(self) -> dict[str, Any]:
        """Return the explanation for JSON."""
        parts = [
            vars(part) | {"before": part.before.as_json(), "after": part.after.as_json()}
            for part in self.parts
        ]
        return vars(self) | {"graph": self.graph.name, "parts": parts}


def explain(
    ranker: Ensemble, graph: NamedGraph, config: int, against: int | None = None
) -> Explanation:
    """Divide the score difference of two configs among the nodes with different layouts.

    It scores the configs of the graph and about a thousand variants.

    Args:
        ranker: Trained models.
        graph: Graph with the ranked configs, `Ranked.graph`.
        config: Row of the config to explain.
        against: Row of the config to compare with. The default is `default_row`.

    Raises:
        UsageError: A config does not exist, the graph has one config, or its configs are tiles.
        PipelineError: The configs do not fit the program.
    """
    start, (arrays, base) = time.perf_counter(), _rows_to_compare(ranker, graph, config, against)
    before, after = arrays.configs.rows(np.array([base, config]))  # (nodes, 18) each
    places = np.flatnonzero((before != after).any(axis=1))  # (k,) by config order

    def variants(masks: NDArray[np.bool_]) -> Iterator[NDArray[np.int8]]:
        for first in range(0, len(masks), SPELLED_AT_ONCE):
            is_changed = masks[first : first + SPELLED_AT_ONCE, :, None]
            values = np.repeat(before[None], len(is_changed), axis=0)
            values[:, places] = np.where(is_changed, after[places], before[places])
            yield values

    def value(masks: NDArray[np.bool_]) -> Values:
        return _scores(ranker, add_query_configs(arrays, variants(masks)))[arrays.n_configs :]

    scores, n_variants = shares(value, len(places), generator(0, "explain"))
    names = list(ranker.member_scores(arrays.only(np.array([base]))))
    old, new = layouts_of(graph, base), layouts_of(graph, config)
    parts = tuple(
        NodeEffect(
            *(old[places[i]], new[places[i]], shape_of(graph, old[places[i]].node)),
            score=float(scores[i, 0]),
            members=dict(zip(names, scores[i, 1:].tolist(), strict=True)),
        )
        for i in np.argsort(-np.abs(scores[:, 0]), kind="stable")
    )
    choice = f"the {COMPILERS_CHOICE}"
    nearest = f"the nearest to {choice}" if against is None else ""
    return Explanation(
        *(graph, int(config), int(base)),
        baseline=nearest if (before >= 0).any() else choice,
        difference=float(scores[:, 0].sum()),
        parts=parts,
        n_variants=n_variants,
        seconds=time.perf_counter() - start,
    )


def _rows_to_compare(
    ranker: Ensemble, graph: NamedGraph, config: int, against: int | None
) -> tuple[LayoutGraph, int]:
    """Check the arguments of `explain`. Return the arrays and the row to compare with."""
    arrays = graph.graph
    if ranker.collection.kind != "layout" or not isinstance(arrays, LayoutGraph):
        raise UsageError(f"{graph.name}: a tile is one choice for all nodes; expected layouts")
    last = arrays.n_configs - 1
    if not last:
        raise UsageError(f"{graph.name}: has one config; expected another to compare it with")
    base = default_row(arrays) if against is None else against
    for row in (config, base):
        if not 0 <= row <= last:
            raise UsageError(f"{graph.name}: no config {row}; expected 0..{last}")
    check_layout_configs(graph, str(graph.path))
    return arrays, base


def _scores(ranker: Ensemble, graph: LayoutGraph) -> Values:
    """Return scores, (c, 1 + members), with the blend in the first column."""
    scores = ranker.member_scores(graph)
    columns = np.stack([*scores.values()], axis=1).astype(np.float64)
    if columns.shape[1] == 1:
        return columns.repeat(2, axis=1)
    span = np.ptp(columns[: graph.n_counted], axis=0)
    weights = np.array([ranker.spec.weights[name] for name in scores])
    shares = np.divide(weights / weights.sum(), span, out=np.zeros_like(span), where=span > 0)
    return np.concatenate([(columns * shares).sum(axis=1, keepdims=True), columns], axis=1)


def shape_of(graph: NamedGraph, node: int) -> str:
    """Return element type and sizes of a node's output, for example "f32[8,128]"."""
    row = graph.graph.node_feat[node : node + 1]
    sizes = ",".join(str(size) for size in dimension_sizes(row)[0].tolist() if size >= 0)
    return f"{ELEMENT_TYPES[int(row[0, ELEMENT_TYPE].argmax())]}[{sizes}]"
