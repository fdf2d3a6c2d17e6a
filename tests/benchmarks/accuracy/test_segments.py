"""The study of segments trains each variant once, and its page holds what the cells say."""

import json
from pathlib import Path

import pytest

from benchmarks.accuracy import segments
from benchmarks.accuracy.segments import VARIANTS, main, trained
from benchmarks.accuracy.tasks import Sources

SMALL = ("hidden=8", "configs_per_step=8", "table_configs=16", "head_steps=2")


def test_the_command_trains_resumes_and_writes_the_page(
    sources: Sources,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "STEPS", 4)
    command = ["--out", str(tmp_path / "out"), "--real", str(sources.real), "--seeds", "0"]
    command += ["--tasks", "unet3d-all"]
    command += ["--pages", str(tmp_path), *(word for key in SMALL for word in ("--set", key))]
    main(command)
    main(command)
    said = capsys.readouterr().out
    assert said.count("trained") == said.count("was there") == len(trained("unet3d-all"))
    page = (tmp_path / "segments.md").read_text()
    for name in VARIANTS:
        path = tmp_path / "out" / "unet3d-all" / name / "cells" / "unet3d-all--segments--0.json"
        config = json.loads(path.read_text())["recipe"]["segment_sage"]
        assert config["segment_nodes"] == (1_000_000 if name == "whole" else 400)
        assert config["head_steps"] == (0 if name == "no-head" else 2)
        assert f"| {name} | 1 | " in page
