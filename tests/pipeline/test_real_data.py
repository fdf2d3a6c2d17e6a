"""The main job on real TPU measurements: from npz files to a checked submission."""

import json
from pathlib import Path

import numpy as np
import pytest

from submissions.check import read_submission
from tests.support.command_line import call
from tests.support.real_data import REAL, requires_real_data

pytestmark = requires_real_data

LONG_GRAPH = "layout:nlp:default:3a0c5517a87df8d82fd637b83298a3ba"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("real") / "run"
    call("run", "--data", REAL, "--recipe", "smoke", "--out", out)
    return out


def test_the_submission_is_accepted_with_all_1001_configs(finished: Path) -> None:
    text = call("submission", "check", finished / "submission.csv", "--data", REAL)
    assert "(5 rows)" in text
    rankings = read_submission(finished / "submission.csv")
    np.testing.assert_array_equal(np.sort(rankings[LONG_GRAPH]), np.arange(1001))
    assert len(rankings["tile:xla:d6f5f54247bd1e58a10b9e7062c636ab"]) == 5


def test_fallbacks_are_named_with_their_reasons(finished: Path) -> None:
    report = json.loads((finished / "report.json").read_text())
    models = report["models"]
    assert models["layout:xla:default"]["fallback_from"] is None
    for name in ("layout:xla:random", "layout:nlp:default", "layout:nlp:random"):
        assert models[name]["fallback_from"] == "layout:xla:default"
    assert "measured 20 times" in models["layout:xla:random"]["reason"]
    assert models["tile:xla"]["fallback_from"] == "baseline"
    assert "layout:nlp:default/train" in report["missing_parts"]
    assert "layout:nlp:default" in (finished / "report.html").read_text()


def test_audit_finds_the_known_oddities() -> None:
    audit = json.loads(call("audit", "--data", REAL, "--json"))
    assert audit["n_bad"] == 0
    by_id = {row["id"]: row for row in audit["files"]}
    assert by_id["layout:xla:default:unet3d"]["n_distinct"] == 681
    assert by_id["layout:xla:default:unet_3d.4x4.bf16"]["n_distinct"] == 1469
    assert by_id["layout:xla:random:openai_v0_rnn_optimized"]["notes"] == [
        "one config measured 20 times"
    ]
    assert by_id[LONG_GRAPH]["n_configs"] == 1001
    assert by_id[LONG_GRAPH]["n_distinct"] == 988
