"""What was measured of one graph so far: a line of JSON per visit, so that a kill loses one.

The first line says what is measured, and where; the others are visits. A last line that was cut
off is dropped.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import PipelineError, UsageError
from data.collect.measuring.timing import Visit

TIMED_OUT = re.compile(r"not done after ([0-9.e+]+) s")


@dataclass
class Journal:
    """Visits of one graph, in memory and in a file.

    Attributes:
        path: the file.
        visits: (config, round) to what was measured.
        choices: config to its choice, the option of each gene.
        failed: config to the line that says why.
    """

    path: Path
    visits: dict[tuple[int, int], Visit] = field(default_factory=dict)
    choices: dict[int, list[int]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    def add_visit(self, config: int, turn: int, visit: Visit, choice: Sequence[int]) -> None:
        """Record a visit; the choice is written with the config's first.

        Raises:
            PipelineError: the file cannot be written.
        """
        line: dict[str, Any] = {"config": config, "round": turn, **visit._asdict()}
        self._add(line, config, choice)

    def add_failure(self, config: int, reason: str, choice: Sequence[int]) -> None:
        """Record that a config failed.

        Raises:
            PipelineError: the file cannot be written.
        """
        self._add({"config": config, "failed": reason}, config, choice)

    def shortest_ns(self) -> dict[int, int]:
        """Return the shortest run in ns of each config that never failed."""
        shortest: dict[int, int] = {}
        for (config, _), visit in self.visits.items():
            if config not in self.failed:
                shortest[config] = min(visit.runtime_ns, shortest.get(config, visit.runtime_ns))
        return shortest

    def why_failed(self, choice: Sequence[int]) -> str | None:
        """Return why an equal choice failed, or None if none did."""
        equal = (config for config in self.failed if self.choices[config] == list(choice))
        first = next(equal, None)
        return None if first is None else self.failed[first]

    def forget_timeouts(self, *, below_s: float) -> None:
        """Give another chance to configs that failed for want of time, where more is given now."""
        for config, reason in list(self.failed.items()):
            timeout = TIMED_OUT.fullmatch(reason)
            if timeout and float(timeout.group(1)) < below_s:
                del self.failed[config]

    def _add(self, line: dict[str, Any], config: int, choice: Sequence[int]) -> None:
        if config not in self.choices:
            line["choice"] = [int(option) for option in choice]
        _append(self.path, line)
        self._take(line)

    def _take(self, line: Mapping[str, Any]) -> None:
        config = int(line["config"])
        if "choice" in line:
            self.choices[config] = list(line["choice"])
        if "failed" in line:
            self.failed[config] = str(line["failed"])
        else:
            visit = Visit(int(line["runtime_ns"]), int(line["n_runs"]))
            self.visits[config, int(line["round"])] = visit
            self.failed.pop(config, None)  # it was given another chance

    def read(self, lines: Sequence[bytes]) -> None:
        """Take over recorded lines, without the first.

        Raises:
            PipelineError: names the line that is none of a journal.
        """
        for number, text in enumerate(lines, start=2):
            try:
                self._take(json.loads(text))
            except (ValueError, KeyError, TypeError) as error:
                raise PipelineError(
                    f"{self.path}: line {number} is damaged ({error}); expected a visit; "
                    "remove the file to measure this graph again"
                ) from error


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
    lines = whole.splitlines()
    if not lines:
        _append(path, header)
        return journal
    try:
        found = json.loads(lines[0])
    except ValueError as error:
        raise PipelineError(f"{path}: line 1 is damaged ({error}); remove the file") from error
    for key, value in header.items():
        if found.get(key) != value:
            raise UsageError(
                f"{path}: was begun with {key} {found.get(key)}, not {value}; "
                "give another --out, or remove the file"
            )
    journal.read(lines[1:])
    return journal


def _append(path: Path, line: Mapping[str, Any]) -> None:
    """Append one line by a single write, which a kill cannot cut in the middle of others."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            content = json.dumps(line, separators=(",", ":")).encode() + b"\n"
            written = os.write(handle, content)
        finally:
            os.close(handle)
    except OSError as error:
        raise PipelineError(f"{path}: cannot be written: {error.strerror or error}") from error
    if written < len(content):
        raise PipelineError(f"{path}: cannot be written: no space left")
