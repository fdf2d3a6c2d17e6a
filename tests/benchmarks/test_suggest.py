"""Each search of the benchmark of `suggest` is replayed, with its row in the table."""

from benchmarks.suggest import TRAINED, UNTRAINED, Table, table_rows
from data.graphs.graph import LayoutGraph, TileGraph
from models.trees.baseline import BASELINES


def test_each_search_has_a_row(layout_graph: LayoutGraph, tile_graph: TileGraph) -> None:
    table = Table()
    for graph in (layout_graph, tile_graph):
        scores = BASELINES[graph.file.collection.kind].score(graph)
        both = {"rule": scores, "ranker": scores}
        table.replay(graph, graph.file.name, both)
    rows = table_rows(table)
    assert [row[0] for row in rows] == [*UNTRAINED, *TRAINED]
    # The first row is that of random search, whose ratio to itself is 1.
    assert rows[0][2] == rows[1][3] == "1.00 [1.00, 1.00]"
