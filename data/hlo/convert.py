"""What the command `featurize` does."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import UsageError

if TYPE_CHECKING:
    from data.hlo.write import FeaturizedGraph


def featurize_files(
    paths: Sequence[Path],
    out: Path,
    *,
    padding: str = "zero",
    progress: Callable[[str, int, int], None] | None = None,
) -> "list[FeaturizedGraph]":
    """Write the graphs of protobuf files to `out`, in the order of the files.

    Args:
        paths: tuning data or HLO modules; what each file is, is told from its content.
        out: folder for the npz files; made if it is missing.
        padding: "zero" as in the dataset, or "minus-one".
        progress: told after each file: what, done, total.

    Raises:
        UsageError: unknown padding, no file, or two files that would be written to one.
        PipelineError: the first file at fault; those before it are written, it is not.
    """
    from data.hlo.node_features import PADDINGS
    from data.hlo.programs import program_name
    from data.hlo.write import featurize_file

    chosen = next((known for known in PADDINGS if known == padding), None)
    if chosen is None:
        raise UsageError(f"--padding {padding}: no such padding; known: {', '.join(PADDINGS)}")
    if not paths:
        raise UsageError("no file given; expected tuning data or HLO modules (.pb)")
    first: dict[str, Path] = {}
    for path in paths:
        other = first.setdefault(program_name(path), path)
        if other is not path:
            raise UsageError(
                f"{path}: would be written over what {other} gives; rename one of them, "
                "or give them different --out folders"
            )
    written = []
    for done, path in enumerate(paths, start=1):
        written += featurize_file(path, out, padding=chosen)
        if progress:
            progress("featurize", done, len(paths))
    return written
