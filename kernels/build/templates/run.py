"""A Kaggle kernel that runs a whole recipe: trains, predicts, blends, leaves submission.csv.

Written by `python -m pipeline kernel build --kind run`; needs no internet. It
takes as many versions as it needs.
"""

from kernels.build.templates.common import run_recipe


def main() -> None:
    """Run the recipe on the mounted data, or go on with it."""
    run_recipe("run")
