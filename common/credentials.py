"""Kaggle's credentials: where they are, and that no message has them."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from common.errors import PipelineError, escaped

_SECRET_VARIABLES = ("KAGGLE_API_TOKEN", "KAGGLE_KEY", "KAGGLE_TOKEN")
_SECRET_FILES = ("kaggle.json", "access_token", "access_token.txt", "credentials.json")
_SECRET_KEYS = ("key", "token", "access_token", "refresh_token")
_SHORTEST_SECRET = 8  # characters; a shorter value would blank out ordinary words
_LONGEST_QUOTE = 200  # characters of a server's message; longer ones are web pages


def known_secrets() -> frozenset[str]:
    """Return the credentials that lie in the environment and in Kaggle's key files."""
    secrets = {os.environ.get(name, "") for name in _SECRET_VARIABLES}
    files = [folder / name for folder in _folders() for name in _SECRET_FILES]
    for file in (*files, *map(Path, secrets)):  # a variable may name a token's file
        table = texts_in(file)
        secrets |= {table.get(key, "") for key in _SECRET_KEYS}
    words = (word for secret in secrets for word in secret.split())
    return frozenset(word for word in words if len(word) >= _SHORTEST_SECRET)


def _folders() -> list[Path]:
    """Return where Kaggle's key files may be, in the order in which they are looked for."""
    home = os.path.expanduser("~")  # noqa: PTH111 — without a home it stays "~", as for the client
    config = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    named = os.environ.get("KAGGLE_CONFIG_DIR")
    return [Path(folder) for folder in (named, f"{home}/.kaggle", f"{config}/kaggle") if folder]


def key_file() -> Path:
    """Return the file kaggle.json that logs in, which may be missing."""
    files = [folder / "kaggle.json" for folder in _folders()]
    return next(filter(Path.exists, files), files[0])


def redact(text: str) -> str:
    """Return `text` with every known credential blanked out."""
    for secret in sorted(known_secrets(), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def one_line(text: str, longest: int = _LONGEST_QUOTE) -> str:
    """Return others' text on one line, visible, without credentials, cut to a quotable length."""
    flat = escaped(" ".join(redact(text).split()))
    return flat if len(flat) <= longest else f"{flat[:longest]}…"


def refuse_secrets(files: Iterable[tuple[object, bytes]]) -> None:
    """Raise a PipelineError that names the first of files (name, content) with a credential."""
    secrets = [secret.encode(errors="backslashreplace") for secret in known_secrets()]
    for name, content in files:
        if any(secret in content for secret in secrets):
            raise PipelineError(f"{name}: holds a Kaggle credential of this machine; take it out")


def texts_in(file: Path) -> dict[str, str]:
    """Return the texts of a key file: those of its JSON object, in any Unicode, or all as "key"."""
    try:
        content = file.read_bytes()
        is_json = file.suffix == ".json"
        table = json.loads(content) if is_json else {"key": content.decode("utf-8-sig")}
    except (OSError, ValueError, RecursionError):  # absent, unreadable, or no file name at all
        return {}
    found = table.items() if isinstance(table, dict) else ()
    return {key: value for key, value in found if isinstance(value, str)}
