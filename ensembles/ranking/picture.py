"""A picture of the program around the nodes that set a config apart: one SVG, nothing else needed.

Data flows from left to right. What hangs together is a band of its own, that of the largest part on
top; in it, nodes stand in topological columns, ordered so that few edges cross.
"""

import xml.etree.ElementTree as ET
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ensembles.ranking.explain import Explanation, Part, shape_of

MOST_NODES = 60
MOST_AROUND = 6  # neighbours of one node: a constant may have hundreds of readers
BOX, STEP, MARGIN = (308, 58), (368, 70), 20  # width and height, in pixels
TEXT = 47  # characters that fit into a box
HEADING = 88.0
GAP = 20  # between what does not hang together
SWEEPS = 6  # over the columns, to bring nodes beside their neighbours
FAINTEST, STRONGEST = 0.12, 0.6  # opacity of the colour of a part
LEGEND = "blue: faster, orange: slower; by the models' own account, nothing of it was measured"
STYLE = """
text { font-family: system-ui, sans-serif; font-size: 12px; fill: #1f2328 }
.head { font-size: 15px; font-weight: 600 } .faint { fill: #59636e } .page { fill: #ffffff }
.box { fill: #f6f8fa; stroke: #a9b2bb } .edge { fill: none; stroke: #a9b2bb }
.faster { fill: #0969da; stroke: #0969da } .slower { fill: #d9480f; stroke: #d9480f }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .faint { fill: #a5aeb8 } .page { fill: #0d1117 }
  .box { fill: #161b22; stroke: #59636e } .edge { stroke: #59636e }
  .faster { fill: #388bfd; stroke: #58a6ff } .slower { fill: #f0702a; stroke: #ff9a5c }
}
"""

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
    right, bottom = np.max([*places.values(), (STEP[0] + 60, 0)], axis=0) + BOX + MARGIN
    size = {"width": f"{right:g}", "height": f"{bottom:g}", "viewBox": f"0 0 {right:g} {bottom:g}"}
    root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
    ET.SubElement(root, "style").text = STYLE
    ET.SubElement(root, "rect", {"class": "page", "width": "100%", "height": "100%"})
    n_drawn = len(set(nodes) & set(parts))
    most = f"; drawn: {n_drawn}" if n_drawn < len(parts) else ""
    _text(root, (MARGIN, 28), explanation.graph.name, "head")
    _text(root, (MARGIN, 48), explanation.heading + most)
    _text(root, (MARGIN, 66), LEGEND, "faint")
    for producer, consumer in links:
        _draw_link(root, places[producer], places[consumer])
    for node in nodes:
        _draw_node(root, explanation, parts.get(node), node, places[node])
    return ET.tostring(root, encoding="unicode") + "\n"


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
    top = HEADING
    for node in nodes:
        if node in places:
            continue
        band = dict.fromkeys([node])
        for _ in nodes:
            band |= dict.fromkeys(other for stop in band for other in near[stop])
        numbers = sorted({depth[stop] for stop in band})
        columns = [[stop for stop in band if depth[stop] == number] for number in numbers]
        _untangle(columns, near)
        tallest = max(map(len, columns))
        for number, column in enumerate(columns):
            for row, stop in enumerate(column):
                middle = row + (tallest - len(column)) / 2
                places[stop] = MARGIN + number * STEP[0], top + middle * STEP[1]
        top += tallest * STEP[1] + GAP
    return places


def _depths(nodes: Sequence[int], links: Sequence[Link]) -> dict[int, int]:
    """Return the column of each node: the longest path to it, but sources beside their readers."""
    depth = dict.fromkeys(nodes, 0)
    for _ in nodes:  # no path is longer, even in a damaged file whose edges go round
        for producer, consumer in links:
            depth[consumer] = max(depth[consumer], min(depth[producer] + 1, len(nodes)))
    for node in set(nodes) - {consumer for _, consumer in links}:
        depth[node] = min([depth[v] - 1 for u, v in links if u == node] or [0])
    return depth


def _untangle(columns: list[list[int]], near: dict[int, list[int]]) -> None:
    """Sort each column in place by the mean of the rows that its nodes are linked with."""
    row = {node: float(i) for column in columns for i, node in enumerate(column)}
    for sweep in range(SWEEPS):
        for column in columns[:: (-1) ** sweep]:
            column.sort(
                key=lambda n: float(
                    np.mean([row[other] for other in near[n] if other != n] or [row[n]])
                )
            )
            row.update({node: i - len(column) / 2 for i, node in enumerate(column)})


def _draw_link(root: ET.Element, start: Place, end: Place) -> None:
    x, y, to_x, to_y = start[0] + BOX[0], start[1] + BOX[1] / 2, end[0], end[1] + BOX[1] / 2
    bend = (STEP[0] - BOX[0]) * 0.6
    path = f"M{x:g},{y:g} C{x + bend:g},{y:g} {to_x - bend:g},{to_y:g} {to_x:g},{to_y:g}"
    ET.SubElement(root, "path", {"class": "edge", "d": path})


def _draw_node(
    root: ET.Element, explanation: Explanation, part: Part | None, node: int, place: Place
) -> None:
    graph, (x, y) = explanation.graph, place
    names = graph.instruction_names
    opcode, shape = graph.opcode(node), shape_of(graph, node)
    what = f"{opcode} {shape}" if names else shape
    lines = [f"{names[node] if names else opcode} (node {node})", what]
    if part:
        lines[1:] = [part.change, ", ".join(filter(None, explanation.said(part.score)))]
        if part.n_tied > 1:
            lines[2] += f"; {part.n_tied} tied: {explanation.said(part.tied_score)[0]}"
    box = {"x": f"{x:g}", "y": f"{y:g}", "width": str(BOX[0]), "height": str(BOX[1]), "rx": "6"}
    group = ET.SubElement(root, "g")
    ET.SubElement(group, "title").text = _printable("\n".join([*lines, what]))
    ET.SubElement(group, "rect", {"class": "box", **box})
    if part:
        strength = abs(part.score) / (max(abs(each.score) for each in explanation.parts) or 1)
        opacity = f"{FAINTEST + (STRONGEST - FAINTEST) * strength:.2f}"
        kind = "faster" if part.score < 0 else "slower"
        ET.SubElement(group, "rect", {"class": kind, "fill-opacity": opacity, **box})
    for number, line in enumerate(lines):
        shown = line if len(line) <= TEXT else f"{line[: TEXT - 1]}…"
        _text(group, (x + 10, y + (17 if part else 24) + 17 * number), shown)


def _text(parent: ET.Element, place: Place, text: str, kind: str = "") -> None:
    at = {"x": f"{place[0]:g}", "y": f"{place[1]:g}", "class": kind}
    ET.SubElement(parent, "text", at).text = _printable(text)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
