"""The ledger is whole after every write, by however many processes."""

import json
import multiprocessing
from pathlib import Path

import pytest

from common.errors import PipelineError
from submissions.upload.ledger import Entry, hash_of, marker_of, put_entry, read_ledger

ENTRY = Entry(
    sha256="ab" * 32,
    size_bytes=7,
    file="ä.csv",
    competition="c",
    recipe=None,
    revision="r",
    message='line\nend and "quotes" \u2028',
    marker="[sha256:abababababab]",
    ref=None,
    time="2026-02-03T04:05:06Z",
    status="sending",
    public_score=None,
    private_score=0.5,
    error=None,
)


def entry_number(number: int) -> Entry:
    return ENTRY.model_copy(update={"marker": f"[{number}]", "ref": number})


def put_many(path: Path, first: int) -> None:
    for number in range(first, first + 20):
        put_entry(path, entry_number(number))


def test_an_entry_is_one_line_of_json_and_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "ledger.jsonl"
    assert read_ledger(path) == []
    put_entry(path, ENTRY)
    put_entry(path, entry_number(2))
    assert read_ledger(path) == [ENTRY, entry_number(2)]
    lines = path.read_text().split("\n")
    assert len(lines) == 3
    assert json.loads(lines[0])["private_score"] == 0.5
    assert json.loads(lines[0])["public_score"] is None


def test_an_entry_takes_the_place_of_the_one_with_its_marker(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for number in range(3):
        put_entry(path, entry_number(number))
    changed = entry_number(1).model_copy(update={"status": "complete"})
    put_entry(path, changed)
    assert read_ledger(path) == [entry_number(0), changed, entry_number(2)]


def test_processes_at_once_lose_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=put_many, args=(path, first)) for first in (0, 100, 200)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert {entry.ref for entry in read_ledger(path)} == {
        number for first in (0, 100, 200) for number in range(first, first + 20)
    }


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "row 2"),
        ("[]", "row 2"),
        (ENTRY.model_dump_json().replace('"ref":null', '"ref":"7"'), "row 2: ref"),
        (ENTRY.model_dump_json().replace('"ref"', '"number"'), "row 2: "),
        (ENTRY.model_dump_json().replace("0.5", "NaN"), "row 2: "),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, named: str) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(f"{ENTRY.model_dump_json()}\n{line}\n")
    with pytest.raises(PipelineError) as caught:
        put_entry(path, ENTRY)
    assert f"{path}: {named}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_markers_differ_by_content_and_by_number(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    sha256 = hash_of(path)
    assert sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert marker_of(sha256, 1) == "[sha256:ba7816bf8f01]"
    assert marker_of(sha256, 2) == "[sha256:ba7816bf8f01 #2]"
    assert marker_of(sha256, 1) not in marker_of(sha256, 2)
    with pytest.raises(PipelineError, match="cannot be read"):
        hash_of(tmp_path / "none")
