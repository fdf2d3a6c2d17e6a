"""Two commands in one folder, or with one store, at once: one works and the other is refused."""

import signal
from pathlib import Path

import pytest

from tests.drills.processes import RECIPE, Scene, Watched, check_same_store


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "train"])
def test_a_second_command_in_a_folder_is_refused_while_the_first_one_works(
    command: str, calm: Scene, tmp_path: Path
) -> None:
    scene = calm.elsewhere(tmp_path)
    words = scene.run()
    if command == "train":
        words = ["train", "--data", str(scene.data), "--recipe", str(RECIPE), "--resume"]
        words += ["--collection", "tile:xla", "--out", str(scene.out)]
    first = Watched(scene, words)
    assert first.wait_for_stage({"train late_fusion_sage on tile:xla"})
    first.send(signal.SIGSTOP)
    try:
        line = Watched(scene, words).is_refused(2)
    finally:
        first.send(signal.SIGCONT)
    assert "another process works in it (lock " in line and "; wait for it to end" in line
    assert first.end() == 0
    if command == "run":
        first.ends_as(calm)


@pytest.mark.slow
def test_two_runs_with_one_store_and_two_of_one_folder_end_well(
    calm: Scene, tmp_path: Path
) -> None:
    """Four start in the same instant, without --resume: two folders, one store."""
    scenes = [
        Scene(calm.data, tmp_path / name, tmp_path / "store", tmp_path)
        for name in ("one", "one", "two", "two")
    ]
    words = [[word for word in scene.run() if word != "--resume"] for scene in scenes]
    all_four = [Watched(*given) for given in zip(scenes, words, strict=True)]
    codes = [watched.end() for watched in all_four]
    assert sorted(codes[:2]) == sorted(codes[2:]) == [0, 2]
    for watched, code in zip(all_four, codes, strict=True):
        if code:
            assert "contains a run already" in watched.is_refused(2)
        else:
            watched.ends_as(calm)
    check_same_store(tmp_path / "store", calm.store)
