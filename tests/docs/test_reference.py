"""The page of files names all keys of report.json."""

import pytest
from pydantic import BaseModel

from common.settings import ROOT
from submissions.run_report import CollectionReport, RunReport

FILES = (ROOT / "docs" / "reference" / "files.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("record", [RunReport, CollectionReport])
def test_every_key_of_a_report_is_on_the_page(record: type[BaseModel]) -> None:
    assert [key for key in record.model_fields if f"`{key}`" not in FILES] == []
