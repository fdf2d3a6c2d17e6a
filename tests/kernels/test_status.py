"""The real client asks a server of ours how a kernel fares."""

import pytest

from common.errors import PipelineError
from kernels.push import KernelStatus, status
from tests.command_line import call
from tests.fake_kaggle import USERNAME, Answer
from tests.fake_kaggle_datasets import FakeKaggleDatasets

SLUG = "fast-or-slow-cpu"


def test_the_status_of_a_run(fake_kaggle: FakeKaggleDatasets) -> None:
    failed = Answer(body={"status": "ERROR", "failureMessage": "out of memory"})
    fake_kaggle.will_answer("GetKernelSessionStatus", Answer(body={"status": "RUNNING"}), failed)

    assert status(SLUG) == KernelStatus(f"{USERNAME}/{SLUG}", "running", "")
    assert status(f"a-team/{SLUG}") == KernelStatus(f"a-team/{SLUG}", "error", "out of memory")

    assert fake_kaggle.received[1].json == {"userName": "a-team", "kernelSlug": SLUG}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(403, {"code": 403, "message": "denied"}), "HTTP 403.*Kaggle says: denied"),
        (Answer(404, {"code": 404, "message": "none"}), "HTTP 404"),
        (Answer(body={"status": "DREAMING"}), "client failed: KeyError: 'DREAMING'"),
    ],
)
def test_a_status_that_cannot_be_had_is_an_error(
    fake_kaggle: FakeKaggleDatasets, answer: Answer, expected: str
) -> None:
    fake_kaggle.will_answer("GetKernelSessionStatus", answer)
    with pytest.raises(PipelineError, match=f"status of kernel {SLUG}: .*{expected}"):
        status(SLUG)


def test_a_failed_kernel_is_told_and_asking_succeeds(fake_kaggle: FakeKaggleDatasets) -> None:
    failed = Answer(body={"status": "ERROR", "failureMessage": "out of memory"})
    fake_kaggle.will_answer("GetKernelSessionStatus", failed)
    assert call("kernel", "status", SLUG) == f"{USERNAME}/{SLUG}  error  out of memory\n"
