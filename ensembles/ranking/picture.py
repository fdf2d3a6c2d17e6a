"""A picture of the program around the nodes that set a config apart: one SVG, nothing else needed.

Data flows downwards. What hangs together is a block of its own, that of the largest part on top; in
it, nodes stand on topological levels, ordered so that few edges cross. A page is as wide as four
boxes and as long as it must be: programs are deep.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import escaped
from common.pages import render_page
from ensembles.ranking.explain import Explanation, Part, shape_of

MOST_NODES = 60
MOST_AROUND = 6  # neighbours of one node: a constant may have hundreds of readers
BOX, STEP, MARGIN = (308, 58), (328, 92), 20  # width and height, in pixels
MOST_BESIDE = 4  # boxes in a row
NARROWEST = 480  # where the last box begins, at least, so that the heading fits
TEXT = 47  # characters that fit into a box
HEADING = 88.0
GAP = 20  # between what does not hang together
FAINTEST, STRONGEST = 0.12, 0.6  # opacity of the colour of a part
TEMPLATE = Path(__file__).with_name("picture.svg.j2")

Place = tuple[float, float]
Link = tuple[int, int]  # from a producer to a consumer


def drawn(explanation: Explanation) -> str:
    """Return the picture as SVG: the largest parts, coloured, among their neighbours."""
    parts = {part.after.node: part for part in explanation.parts}
    edges = explanation.graph.graph.edge_index
    nodes = shown_nodes(list(parts), edges)
    inside = edges[np.isin(edges, nodes).all(axis=1)]
    links = sorted({(producer, consumer) for consumer, producer in inside.tolist()})
    places = arranged(nodes, links)
    right, bottom = np.max([*places.values(), (NARROWEST, 0)], axis=0) + BOX + MARGIN
    n_drawn = len(set(nodes) & set(parts))
    most = f"; drawn: {n_drawn}" if n_drawn < len(parts) else ""
    return render_page(
        TEMPLATE,
        **{"right": right, "bottom": bottom, "margin": MARGIN, "bend": (STEP[1] - BOX[1]) * 0.6},
        **{"width": BOX[0], "height": BOX[1], "most": TEXT},
        name=escaped(explanation.graph.name),
        heading=explanation.heading + most,
        links=[(_middle(places[u], BOX[1]), _middle(places[v], 0)) for u, v in links],
        nodes=[_shown(explanation, parts.get(node), node, places[node]) for node in nodes],
    )


def shown_nodes(chosen: list[int], edges: NDArray[np.int64]) -> list[int]:
    """Return the chosen nodes with what touches each, then what links these; at most MOST_NODES.

    Args:
        chosen: the most important first; those whose neighbours no longer fit are left out.
        edges: (e, 2) of consumer and producer.
    """
    shown: dict[int, None] = {}
    for node in chosen:
        operands, readers = edges[edges[:, 0] == node, 1], edges[edges[:, 1] == node, 0]
        near = dict.fromkeys([node, *[*operands.tolist(), *readers.tolist()][:MOST_AROUND]])
        if len(shown | near) > MOST_NODES:
            break
        shown |= near
    is_shown = np.isin(edges, list(shown))
    half = is_shown.sum(axis=1) == 1
    others, counts = np.unique(edges[half][~is_shown[half]], return_counts=True)
    return [*shown, *others[counts > 1].tolist()][:MOST_NODES]


def arranged(nodes: Sequence[int], links: Sequence[Link]) -> dict[int, Place]:
    """Return where each node's box begins."""
    depth = _depths(nodes, links)
    near = {n: [other for link in links if n in link for other in link] for n in nodes}
    places: dict[int, Place] = {}

    def across(node: int) -> float:
        """Return the mean place of what stands above it, so that few edges cross."""
        return float(np.mean([places[other][0] for other in near[node] if other in places] or [0]))

    top = HEADING
    for node in nodes:
        if node in places:
            continue
        block = [node]
        for stop in block:  # grows meanwhile
            block += dict.fromkeys(other for other in near[stop] if other not in block)
        levels = Counter(depth[stop] for stop in block)
        widest = min(max(levels.values()), MOST_BESIDE)
        for number in sorted(levels):
            level = sorted((stop for stop in block if depth[stop] == number), key=across)
            for first in range(0, len(level), MOST_BESIDE):
                row = level[first : first + MOST_BESIDE]
                for beside, stop in enumerate(row):
                    left = beside + (widest - len(row)) / 2
                    places[stop] = MARGIN + left * STEP[0], top
                top += STEP[1]
        top += GAP
    return places


def _depths(nodes: Sequence[int], links: Sequence[Link]) -> dict[int, int]:
    """Return the level of each node: the longest path to it, but sources beside their readers."""
    depth = dict.fromkeys(nodes, 0)
    for _ in nodes:  # no path is longer, even in a damaged file whose edges go round
        for producer, consumer in links:
            depth[consumer] = max(depth[consumer], min(depth[producer] + 1, len(nodes)))
    for node in set(nodes) - {consumer for _, consumer in links}:
        depth[node] = min([depth[v] - 1 for u, v in links if u == node] or [0])
    return depth


def _middle(place: Place, height: float) -> Place:
    return place[0] + BOX[0] / 2, place[1] + height


def _shown(explanation: Explanation, part: Part | None, node: int, place: Place) -> dict[str, Any]:
    graph = explanation.graph
    names = graph.instruction_names
    opcode, shape = graph.opcode(node), shape_of(graph, node)
    what = f"{opcode} {shape}" if names else shape
    lines = [f"{names[node] if names else opcode} (node {node})", what]
    shown: dict[str, Any] = {"x": place[0], "y": place[1], "kind": ""}
    if part:
        lines[1:] = [part.change, ", ".join(filter(None, explanation.said(part.score)))]
        if part.n_tied > 1:
            lines[2] += f"; {part.n_tied} tied: {explanation.said(part.tied_score)[0]}"
        strength = abs(part.score) / (max(abs(each.score) for each in explanation.parts) or 1)
        opacity = f"{FAINTEST + (STRONGEST - FAINTEST) * strength:.2f}"
        shown |= {"kind": "faster" if part.score < 0 else "slower", "opacity": opacity}
    lines = list(map(escaped, lines))
    return shown | {"lines": lines, "title": "\n".join([*lines, what] if part else lines)}
