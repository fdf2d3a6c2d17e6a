"""`make results` writes the pages whose code has changed by more than comments."""

import subprocess
from pathlib import Path

import pytest

from benchmarks import CODE, TEMPLATES, results


def test_comments_are_no_change_and_code_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "ROOT", tmp_path)
    identity = ("-c", "user.name=n", "-c", "user.email=e")

    def commit(**files: str) -> str:
        for name, text in files.items():
            (tmp_path / name.replace("_", ".")).write_text(text)
        results.git("add", ".")
        results.git(*identity, "commit", "-qm", "c")
        return results.git("rev-parse", "--short=12", "HEAD").strip()

    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    first = commit(a_py='"One."\nx = 1\n', b_py="y = 2\n", a_toml="k = 1", b_toml="k = 1")
    commit(a_py='"Two."\n\nx = 1  #\n', b_py="y = 3", d_py="w", a_toml="k = 1  #", b_toml="k = 2")
    assert [*results.changes_since(first, ["."])] == ["b.py", "b.toml", "d.py"]
    assert [*results.changes_since("abc", ["."])] == ["revision abc is not in the history"]
    monkeypatch.setattr(results, "PAGES", tmp_path)
    assert results.stale("speed") == ["the page is missing"]
    (tmp_path / "speed.md").write_text(f"Revision {first}.")
    monkeypatch.setitem(results.CODE, "speed", ("a.py",))
    assert results.stale("speed") == []
    monkeypatch.setitem(results.CODE, "speed", ("a.py", "b.py"))
    assert results.stale("speed") == ["b.py"]


def test_each_page_has_code_and_a_program() -> None:
    pages = {path.name.partition(".")[0] for path in TEMPLATES.glob("*.md.j2")}
    assert pages == CODE.keys() == results.PROGRAMS.keys() | {"gpu"}
    for code in CODE.values():
        assert all((results.ROOT / path).exists() for path in code)


@pytest.mark.parametrize("page", results.PROGRAMS)
def test_no_page_is_older_than_its_code(page: str) -> None:
    if results.git("rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("needs the whole history")
    assert results.stale(page) == []
