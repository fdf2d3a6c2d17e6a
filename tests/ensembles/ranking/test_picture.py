"""The picture of an explanation: whole, legible, and nothing in it but text and shapes."""

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from ensembles import Explanation, explain, load_graph, load_ranker
from ensembles.ranking.picture import BOX, MOST_NODES, arranged, drawn, shown_nodes
from ensembles.ranking.program import with_configs
from tests.ensembles.programs import LAYOUT_MODEL, LAYOUTS, dense_module, first_of, write
from tests.support.command_line import call

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert("&")</script>\x00\x1b[31m'


@pytest.fixture
def explanation(rankers: Path, tmp_path: Path) -> Explanation:
    """Of a program one of whose instructions has a name that markup must not take for its own."""
    module = dense_module()
    for instruction in module.computations[0].instructions:
        instruction.name = f"{instruction.name}{HOSTILE}"
    graph = load_graph(write(tmp_path / "dense.pb", module), collection=LAYOUTS)
    with_candidates = with_configs(graph, graph.candidates(30))
    return explain(load_ranker(rankers / LAYOUT_MODEL), with_candidates, 7)


def test_a_picture_is_xml_that_names_each_part(explanation: Explanation) -> None:
    text = drawn(explanation)
    root = ET.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        *("svg", "style", "rect", "g", "title", "text", "path")
    }
    assert not {c for c in text if not c.isprintable()} - {"\n"}
    titles = [element.text or "" for element in root.iter(f"{SVG}title")]
    assert all(len(set(lines)) == len(lines) for lines in map(str.splitlines, titles))
    coloured = [r for r in root.iter(f"{SVG}rect") if r.get("class") in ("faster", "slower")]
    assert len(coloured) == len(explanation.parts) > 0
    for part in explanation.parts:
        assert any('<script>alert("&")</script>' in t and part.change in t for t in titles)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_the_command_writes_the_picture(rankers: Path, tiny_tree: Path, tmp_path: Path) -> None:
    path, out = first_of(tiny_tree, LAYOUTS).path, tmp_path / "new" / "why.svg"
    words = ("--run", rankers / LAYOUT_MODEL, "--explain", 5)
    out.parent.mkdir()
    text = call("rank", path, *words, "--explain-out", out)
    assert "nodes that differ" in text
    root = ET.fromstring(out.read_text(encoding="utf-8"))
    assert any(path.stem in (element.text or "") for element in root.iter(f"{SVG}text"))


def test_boxes_stand_apart_on_a_narrow_page_and_data_flows_down() -> None:
    rng = np.random.default_rng(0)
    nodes = list(range(40))
    links = sorted({(int(a), int(b)) for a, b in np.sort(rng.integers(0, 40, (60, 2))) if a < b})
    places = arranged(nodes, links)
    assert set(places) == set(nodes)
    assert all(places[producer][1] + BOX[1] < places[consumer][1] for producer, consumer in links)
    assert max(x for x, _ in places.values()) + BOX[0] < 1400
    for a, b in itertools.combinations(places.values(), 2):
        assert abs(a[0] - b[0]) >= BOX[0] or abs(a[1] - b[1]) >= BOX[1]
    assert set(arranged([1, 2, 3], [(1, 2), (2, 3), (3, 1)])) == {1, 2, 3}  # of a damaged file


def test_what_touches_the_largest_parts_is_shown_and_no_more_than_fits() -> None:
    chain = np.array([(i + 1, i) for i in range(300)])  # 10 feeds 11
    assert set(shown_nodes([10], chain)) == {9, 10, 11}
    assert set(shown_nodes([10, 14], chain)) == {9, 10, 11, 12, 13, 14, 15}  # 12 links the two
    far = shown_nodes(list(range(5, 300, 10)), chain)
    assert len(far) == MOST_NODES
    assert far[:3] == [5, 4, 6]
    fan = np.array([(reader, 0) for reader in range(1, 500)])
    assert len(shown_nodes([0], fan)) == 7
