"""The embedded sizes are those that were published."""

from data.official.published import official_sizes


def test_every_published_part_has_a_size() -> None:
    counts = [part.graphs for part in official_sizes()]
    assert counts[:6] == [5709, 676, 844, 61, 7, 8]
    assert counts[6:] == [69, 7, 8, 198, 20, 17, 207, 20, 17]
    tests = [p for p in official_sizes() if p.split == "test" and p.collection != "tile:xla"]
    assert {part.configs for part in tests} == {1_000}
