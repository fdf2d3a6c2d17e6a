"""`submission upload` and `submission list` as a user calls them."""

import json
from pathlib import Path

import numpy as np
import pytest

from common.retry import RetryPolicy
from submissions.upload.ledger import read_ledger
from submissions.upload.wait import Pauses
from tests.command_line import call
from tests.fake_kaggle import KEY, Answer
from tests.submissions.conftest import FakeTime
from tests.submissions.fake_competition import FIRST_REF, CarriedOut, FakeCompetition
from tests.submissions.official_file import official_lines, write_official
from tests.submissions.test_check import place_npz


@pytest.fixture(autouse=True)
def no_dataset_and_no_time(monkeypatch: pytest.MonkeyPatch, fake_time: FakeTime) -> None:
    monkeypatch.delenv("PIPELINE_DATA", raising=False)
    monkeypatch.setattr("common.settings.RAW_DATA", Path("nowhere"))
    monkeypatch.setattr("submissions.upload.send.POLICY", RetryPolicy(sleep=fake_time.sleep))
    pauses = Pauses(sleep=fake_time.sleep, now=fake_time.now)
    monkeypatch.setattr("submissions.upload.wait.PAUSES", pauses)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run's folder with a submission and a report."""
    folder = tmp_path / "first"
    folder.mkdir()
    write_official(folder / "submission.csv")
    report = {"recipe": "cpu", "revision": "abc123+changed", "score": 0.5}
    (folder / "report.json").write_text(json.dumps(report))
    return folder


def upload(run_folder: Path, ledger: Path, *more: object, expect: int = 0) -> str:
    file = run_folder / "submission.csv"
    arguments = ("submission", "upload", file, "-m", "first try", "--ledger", ledger, *more)
    text = call(*arguments, expect=expect)
    assert KEY not in text
    return text


def test_a_scored_submission_is_printed_and_noted_with_its_origin(
    competition: FakeCompetition, run_folder: Path, ledger: Path
) -> None:
    competition.scored_after = 3
    size = (run_folder / "submission.csv").stat().st_size
    assert upload(run_folder, ledger).splitlines() == [
        f"uploaded    {run_folder}/submission.csv ({size} bytes) to predict-ai-model-runtime "
        f"as submission {FIRST_REF}",
        "public      0.7125",
        "private     0.7031",
    ]
    (entry,) = read_ledger(ledger)
    assert (entry.recipe, entry.revision) == ("cpu", "abc123+changed")
    assert (entry.status, entry.public_score) == ("complete", 0.7125)


def test_the_origin_can_be_named(
    competition: FakeCompetition, run_folder: Path, ledger: Path, tmp_path: Path
) -> None:
    elsewhere = write_official(tmp_path / "copy.csv").parent
    (elsewhere / "submission.csv").write_bytes((tmp_path / "copy.csv").read_bytes())
    assert "expected the folder of a run" in upload(
        elsewhere, ledger, "--run", tmp_path / "none", expect=1
    )
    upload(elsewhere, ledger, "--run", run_folder, "--recipe", "mine", "--no-wait")
    (entry,) = read_ledger(ledger)
    assert (entry.recipe, entry.revision) == ("mine", "abc123+changed")


def test_the_origin_is_found_in_a_kernels_output(
    competition: FakeCompetition, run_folder: Path, ledger: Path
) -> None:
    (run_folder / "run").mkdir()
    (run_folder / "report.json").rename(run_folder / "run" / "report.json")
    upload(run_folder, ledger, "--no-wait")
    (entry,) = read_ledger(ledger)
    assert (entry.recipe, entry.revision) == ("cpu", "abc123+changed")


def test_the_result_as_json(competition: FakeCompetition, run_folder: Path, ledger: Path) -> None:
    assert json.loads(upload(run_folder, ledger, "--json")) == {
        "file": f"{run_folder}/submission.csv",
        "ref": FIRST_REF,
        "size_bytes": (run_folder / "submission.csv").stat().st_size,
        "status": "complete",
        "public_score": 0.7125,
        "private_score": 0.7031,
        "ledger": str(ledger),
    }


def test_without_waiting_the_list_is_asked_before_the_upload_alone(
    competition: FakeCompetition, run_folder: Path, ledger: Path
) -> None:
    assert len(upload(run_folder, ledger, "--no-wait").splitlines()) == 1
    assert [request.method for request in competition.received].count("ListSubmissions") == 1
    assert competition.received[0].method == "ListSubmissions"


def test_a_score_that_takes_too_long_is_no_error(
    competition: FakeCompetition, run_folder: Path, ledger: Path
) -> None:
    competition.scored_after = 1000
    text = upload(run_folder, ledger, "--timeout-s", "9")
    assert text.endswith("sent, not scored yet; `submission list` tells\n")
    assert read_ledger(ledger)[0].status == "pending"
    competition.scored_after = 0
    table = call("submission", "list", "--ledger", ledger)
    assert "0.7125" in table
    assert read_ledger(ledger)[0].public_score == 0.7125


def test_a_submission_in_error_ends_with_one(
    competition: FakeCompetition, run_folder: Path, ledger: Path
) -> None:
    competition.verdict = {"status": "ERROR", "errorDescription": f"Row 7 has no ID {KEY}"}
    text = upload(run_folder, ledger, expect=1)
    assert text.splitlines()[-1] == (
        f"error: submission.csv: submission {FIRST_REF}: Kaggle could not score it: "
        "Row 7 has no ID ***"
    )
    assert "has no ID" in call("submission", "list", "--ledger", ledger)


def test_a_bad_file_is_one_line_and_nothing_is_sent(
    competition: FakeCompetition, run_folder: Path, ledger: Path
) -> None:
    write_official(run_folder / "submission.csv", official_lines()[:-2])
    text = upload(run_folder, ledger, expect=1)
    assert len(text.splitlines()) == 1
    assert "row is missing; expected 1000 indices (and 1 more); nothing was sent" in text
    assert not competition.received
    assert not ledger.exists()


def test_the_same_file_is_refused_until_forced(
    competition: FakeCompetition, run_folder: Path, ledger: Path, twice_allowed: list[bool]
) -> None:
    twice_allowed.append(True)
    upload(run_folder, ledger)
    text = upload(run_folder, ledger, expect=1)
    assert len(text.splitlines()) == 1
    assert f"as submission {FIRST_REF} (complete)" in text
    assert len(competition.submissions) == 1
    assert str(FIRST_REF + 1) in upload(run_folder, ledger, "--force")


def test_a_lost_answer_is_told_and_ends_well(
    competition: FakeCompetition, run_folder: Path, ledger: Path
) -> None:
    competition.will_answer("CreateSubmission", CarriedOut(drop=True))
    text = upload(run_folder, ledger)
    assert "no clear answer; looking in Kaggle's list" in text
    assert text.splitlines()[-1] == "private     0.7031"


def test_a_message_whose_tag_would_be_cut_off_is_refused(
    competition: FakeCompetition, run_folder: Path, ledger: Path
) -> None:
    assert "at most 400" in upload(run_folder, ledger, "-m", "x" * 401, expect=2)
    assert not competition.received


@pytest.mark.parametrize("named", [True, False])
def test_a_file_that_answers_other_data_is_never_sent(
    competition: FakeCompetition,
    tmp_path: Path,
    ledger: Path,
    monkeypatch: pytest.MonkeyPatch,
    named: bool,
) -> None:
    place_npz(tmp_path, "tile/xla/test", "mine", np.zeros(3, np.int64))
    write_official(tmp_path / "submission.csv", ["tile:xla:mine,2;0;1"])
    monkeypatch.setenv("PIPELINE_DATA", str(tmp_path))
    options = ("--data", tmp_path) if named else ()
    text = upload(tmp_path, ledger, *options, "--force", expect=1)
    assert text == (
        f"error: {tmp_path}/submission.csv: answers the test graphs of {tmp_path}, not the "
        "competition's; nothing was sent\n"
    )
    assert not competition.received
    assert not ledger.exists()


def test_a_good_file_with_other_data_is_not_sent(
    competition: FakeCompetition, run_folder: Path, tmp_path: Path, ledger: Path
) -> None:
    place_npz(tmp_path, "tile/xla/test", "mine", np.zeros(3, np.int64))
    text = upload(run_folder, ledger, "--data", tmp_path, expect=1)
    assert f"does not answer the test graphs of {tmp_path}; name the right --data" in text
    assert not competition.received


def test_the_list_as_json_has_numbers(competition: FakeCompetition, ledger: Path) -> None:
    competition.submit("by hand", 5)
    (row,) = json.loads(call("submission", "list", "--json", "--ledger", ledger))
    assert (row["ref"], row["status"], row["public_score"]) == (FIRST_REF, "complete", 0.7125)
    assert row["private_score"] == 0.7031
    assert not ledger.exists()


def test_a_damaged_ledger_does_not_keep_the_list_from_being_shown(
    competition: FakeCompetition, ledger: Path
) -> None:
    competition.submit("by hand", 5)
    ledger.parent.mkdir()
    ledger.write_text("{")
    text = call("submission", "list", "--ledger", ledger)
    assert "0.7125" in text
    assert f"not noted: {ledger}: row 1" in text


def test_a_list_is_asked_for_patiently(
    competition: FakeCompetition, ledger: Path, fake_time: FakeTime
) -> None:
    competition.submit("by hand", 5)
    competition.will_answer("ListSubmissions", Answer(500, {}), Answer(drop=True))
    text = call("submission", "list", "--ledger", ledger)
    assert text.startswith(
        "list submissions: HTTP 500; next try in 1 s\nlist submissions: the conn"
    )
    assert "0.7125" in text
    assert fake_time.slept == [1.0, 2.0]
    competition.will_answer("ListSubmissions", *[Answer(500, {})] * 9)
    text = call("submission", "list", "--ledger", ledger, expect=1)
    assert text.splitlines()[-1].endswith("gave up after 6 tries")


def test_a_list_that_is_refused_is_one_line(competition: FakeCompetition, ledger: Path) -> None:
    competition.will_answer("ListSubmissions", Answer(401, {"code": 401, "message": f"bad {KEY}"}))
    text = call("submission", "list", "--ledger", ledger, expect=1)
    assert len(text.splitlines()) == 1
    assert "HTTP 401" in text
    assert KEY not in text
