"""The notebook docs/start/tour.ipynb: its outputs, its page of the site, and that it runs."""

import json
import re
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from common.settings import ROOT
from data.tree import COLLECTIONS

TOUR = ROOT / "docs" / "start" / "tour.ipynb"
COMMITTED = nbformat.read(TOUR, as_version=4)
QUICKSTART = TOUR.with_name("quickstart.md").read_text(encoding="utf-8")


def printed(notebook: nbformat.NotebookNode) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert "error" not in {output.output_type for output in outputs}
    return "".join(output.text for output in outputs if output.output_type == "stream")


def untrained(text: str) -> set[tuple[str, ...]]:
    """Return each collection of a run's table, with its graphs, its baseline and its ceiling."""
    rows = [line.split() for line in text.splitlines()]
    return {(row[0], *row[-3:]) for row in rows if len(row) == 8 and ":" in row[0]}


def test_it_is_small_and_was_run_from_top_to_bottom() -> None:
    assert TOUR.stat().st_size < 300_000
    codes = [cell for cell in COMMITTED.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in codes] == [*range(1, len(codes) + 1)]
    assert "accepted    runs/tour/trees/submission.csv" in printed(COMMITTED)
    assert not re.search(r"/(home|root|tmp|work|Users)/", TOUR.read_text())


def test_baselines_and_ceilings_are_those_of_the_quickstart() -> None:
    found = untrained(printed(COMMITTED))
    assert len(found) == len(COLLECTIONS)
    assert found == untrained(QUICKSTART)


def test_every_link_leads_somewhere() -> None:
    texts = [cell.source for cell in COMMITTED.cells if cell.cell_type == "markdown"]
    links = [link for text in texts for link in re.findall(r"\]\(([^)#]+)", text)]
    assert len(links) > 4
    assert [link for link in links if not (TOUR.parent / link).exists()] == []


def test_page_of_a_notebook_has_its_texts_code_and_outputs() -> None:
    hook = runpy.run_path(str(ROOT / "docs" / "site.py"))
    markdown, images = hook["page_of"](json.loads(TOUR.read_text()), "tour")
    assert markdown.startswith("# A tour\n")
    assert all(cell.source in markdown for cell in COMMITTED.cells)
    assert "accepted    runs/tour/trees/submission.csv" in markdown
    assert len(images) >= 2 and all(image.startswith(b"\x89PNG") for image in images.values())
    assert all(f"({name})" in markdown for name in images)


def test_wide_tables_of_results_have_the_room_of_the_table_of_contents() -> None:
    hook = runpy.run_path(str(ROOT / "docs" / "site.py"))["on_page_markdown"]
    for address, meta in (("results/accuracy.md", {"hide": ["toc"]}), ("guides/rank.md", {})):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=address), meta={})
        hook("# Title", page, {}, [])
        assert page.meta == meta


def test_pages_with_diagrams_load_mermaid_from_the_site() -> None:
    pytest.importorskip("mkdocs")
    hook = runpy.run_path(str(ROOT / "docs" / "site.py"))["on_post_page"]
    plain, page = "<head></head><pre>", SimpleNamespace(url="explain/packing/")
    assert hook(plain, page, None) == plain
    diagram = '<head></head><pre class="mermaid">'
    assert 'src="../../assets/mermaid.min.js"></script></head>' in hook(diagram, page, None)
    assert (ROOT / "docs" / "assets" / "mermaid.min.js").stat().st_size > 1e6


@pytest.mark.slow
def test_it_runs(tmp_path: Path) -> None:
    from nbclient import NotebookClient

    # The pattern leaves out hidden files and `runs`.
    for path in ROOT.glob("[!.r]*"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "docs").unlink()
    folder = Path(shutil.copytree(TOUR.parent, tmp_path / "docs" / "start"))
    notebook = nbformat.read(folder / TOUR.name, as_version=4)
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=1800, resources=place).execute()
    lines, committed = printed(notebook).splitlines(), printed(COMMITTED).splitlines()
    assert len(lines) == len(committed)
    assert untrained(printed(notebook)) == untrained(printed(COMMITTED))
    assert lines[-1].split()[0] == committed[-1].split()[0] == "mean"
    assert (tmp_path / "runs" / "tour" / "trees" / "DONE").exists()
