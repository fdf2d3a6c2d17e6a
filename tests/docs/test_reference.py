"""The pages of files, errors and commands name keys, messages and options that exist."""

import re

import pytest
from pydantic import BaseModel

from common.settings import ROOT
from pipeline import reference
from submissions.run_report import CollectionReport, RunReport

FILES, ERRORS = (
    (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    for name in ("files.md", "errors.md")
)
PACKAGES = ("common", "data", "models", "submissions", "pipeline")


@pytest.mark.parametrize("record", [RunReport, CollectionReport])
def test_every_key_of_a_report_is_on_the_page(record: type[BaseModel]) -> None:
    assert [key for key in record.model_fields if f"`{key}`" not in FILES] == []


def test_every_message_on_the_page_is_one_of_the_program() -> None:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    source = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    section = ERRORS.split("## Frequent errors")[1]
    messages = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(messages) > 10
    assert [message for message in messages if message not in source] == []


def test_the_page_of_commands_is_up_to_date() -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    assert page == reference.page(), "run `.venv/bin/python -m pipeline.reference`"
