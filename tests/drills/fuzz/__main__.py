"""Fuzz one door for some time: `python -m tests.drills.fuzz npz --minutes 10`.

Ends with 1 at the first defect; the input that shows it is kept in runs/fuzz.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import atheris

WATCHED = ["common", "data", "models.config", "ensembles.ranking", "submissions", "tomllib"]

with atheris.instrument_imports(include=WATCHED, enable_loader_override=False):
    from tests.drills.fuzz.doors import DOORS, mutate_npz, try_door

MAX_RSS_MIB = 1024
ONE_INPUT_S = 25


def main() -> None:
    """Fuzz the door that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.drills.fuzz", description=__doc__)
    parser.add_argument("door", choices=sorted(DOORS))
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    door, defects = DOORS[arguments.door], Path("runs/fuzz")
    defects.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = folder / "corpus"
        corpus.mkdir()
        for number, content in enumerate(door.seeds()):
            (corpus / f"seed{number}").write_bytes(content)
        path = folder / f"input{door.suffix}"
        options = {
            "max_total_time": max(1, round(60 * arguments.minutes)),
            "rss_limit_mb": MAX_RSS_MIB,
            "timeout": ONE_INPUT_S,
            "max_len": door.max_bytes,
            "artifact_prefix": f"{defects}/{arguments.door}-",
            "keep_seed": 1,
            "reduce_inputs": 0,
        }
        words = [sys.argv[0], *(f"-{key}={value}" for key, value in options.items()), str(corpus)]
        # Setup replaces atheris.Mutate, so each call looks the name up.
        custom = {"custom_mutator": lambda *call: mutate_npz(*call, mutate=atheris.Mutate)}
        more = custom if arguments.door == "npz" else {}
        atheris.Setup(words, lambda content: try_door(door, content, path), **more)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
