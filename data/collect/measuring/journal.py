"""What was measured of one graph so far: a line of JSON per visit, so that a kill loses one.

The first line says what is measured, and where; the others are visits. A last line that was cut
off is dropped.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import PipelineError, UsageError
from data.collect.measuring.timing import Visit


@dataclass
class Journal:
    """Visits of one graph, in memory and in a file.

    Attributes:
        visits: (config, round) to what was measured.
        choices: config to its choice, the option of each gene.
        failed: config to the line that says why.
    """

    path: Path
    visits: dict[tuple[int, int], Visit] = field(default_factory=dict)
    choices: dict[int, list[int]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    def add(self, config: int, choice: Sequence[int], **found: Any) -> None:
        """Record a visit (round, and the fields of Visit) of a config, or why it `failed`."""
        line: dict[str, Any] = {"config": config, **found}
        if config not in self.choices:
            line["choice"] = list(choice)
        _append(self.path, line)
        self.take(line)

    def take(self, line: Mapping[str, Any]) -> None:
        """Take over what a line of the file says."""
        config = int(line["config"])
        if "choice" in line:
            self.choices[config] = list(line["choice"])
        if "failed" in line:
            self.failed[config] = str(line["failed"])
        else:
            visit = Visit(int(line["runtime_ns"]), int(line["n_runs"]), line["is_stopped"])
            self.visits[config, int(line["round"])] = visit

    def shortest_ns(self) -> dict[int, int]:
        """Return the shortest run in ns of each config that never failed."""
        shortest: dict[int, int] = {}
        for (config, _), visit in self.visits.items():
            if config not in self.failed:
                shortest[config] = min(visit.runtime_ns, shortest.get(config, visit.runtime_ns))
        return shortest


def open_journal(path: Path, header: Mapping[str, Any]) -> Journal:
    """Open the journal at `path`, or begin it with `header`.

    Raises:
        UsageError: the journal is of another measurement; names the first difference.
        PipelineError: it is damaged, or cannot be read or written.
    """
    try:
        content = path.read_bytes() if path.is_file() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(path, len(whole))
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error
    journal = Journal(path)
    if not whole:
        _append(path, header)
    for number, text in enumerate(whole.splitlines(), start=1):
        try:
            line = json.loads(text)
            if number > 1:
                journal.take(line)
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineError(
                f"{path}: line {number} is damaged ({error}); "
                "remove the file to measure this graph again"
            ) from error
        for key, value in header.items() if number == 1 else ():
            if line.get(key) != value:
                raise UsageError(
                    f"{path}: was begun with {key} {line.get(key)}, not {value}; "
                    "give another --out, or remove the file"
                )
    return journal


def _append(path: Path, line: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:
            stream.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    except OSError as error:
        raise PipelineError(f"{path}: cannot be written: {error.strerror or error}") from error
