"""The revisions of the code that worked on a run."""

import json
from pathlib import Path

from common.errors import PipelineError
from common.git import revision
from pipeline.run.revisions import REVISIONS, note_revision

OLDER, NEWER = "0123456789ab", "ba9876543210"


def test_revisions_are_kept_in_order_and_once(tmp_path: Path) -> None:
    assert note_revision(tmp_path, None) == []
    assert not (tmp_path / REVISIONS).exists()
    for name, known in ((OLDER, [OLDER]), (NEWER, [OLDER, NEWER]), (OLDER, [OLDER, NEWER])):
        assert note_revision(tmp_path, name) == known


def test_a_list_in_which_a_bit_has_flipped_is_named(tmp_path: Path) -> None:
    note_revision(tmp_path, OLDER)
    path = tmp_path / REVISIONS
    whole = path.read_bytes()
    for place in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            assert note_revision(tmp_path, OLDER) == [OLDER]  # the checksum's own name alone
        except PipelineError as error:
            assert f"{path}: " in str(error)


def test_a_list_without_a_checksum_is_read(tmp_path: Path) -> None:
    (tmp_path / REVISIONS).write_text(f"{OLDER}\n")
    assert note_revision(tmp_path, NEWER) == [OLDER, NEWER]


def test_a_run_without_a_list_was_made_by_what_its_report_says(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"revision": OLDER}))
    assert note_revision(tmp_path, NEWER) == [OLDER, NEWER]


def test_outside_git_no_revision_is_known(tmp_path: Path) -> None:
    assert revision(tmp_path) is None
