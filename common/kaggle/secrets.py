"""The Kaggle credentials of this machine, and texts and files without them."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from common.errors import PipelineError

_SECRET_VARIABLES = ("KAGGLE_API_TOKEN", "KAGGLE_KEY", "KAGGLE_TOKEN")
_SECRET_FILES = ("kaggle.json", "access_token", "access_token.txt", "credentials.json")
_SECRET_KEYS = ("key", "token", "access_token", "refresh_token")
_SHORTEST_SECRET = 8  # characters; a shorter value would blank out ordinary words


def known_secrets() -> frozenset[str]:
    """Return the credentials that lie in the environment and in Kaggle's key files."""
    secrets = {os.environ.get(name, "") for name in _SECRET_VARIABLES}
    home = Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    folders = (home / ".kaggle", config / "kaggle", Path(os.environ.get("KAGGLE_CONFIG_DIR", "")))
    files = [folder / name for folder in folders for name in _SECRET_FILES]
    for file in (*files, *map(Path, secrets)):  # a variable may name a token's file
        secrets |= _secrets_of(file)
    return frozenset(value.strip() for value in secrets if len(value.strip()) >= _SHORTEST_SECRET)


def redact(text: str) -> str:
    """Return `text` with every known credential blanked out."""
    for secret in sorted(known_secrets(), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def refuse_secrets(files: Iterable[tuple[object, bytes]]) -> None:
    """Refuse to hand out files, by name and content, that hold a credential of this machine.

    Raises:
        PipelineError: names the first such file, never the credential.
    """
    secrets = [secret.encode() for secret in known_secrets()]
    for name, content in files:
        if any(secret in content for secret in secrets):
            raise PipelineError(f"{name}: holds a Kaggle credential of this machine; take it out")


def _secrets_of(file: Path) -> set[str]:
    """Return the secrets in one key file: the values of a JSON object, or the whole text."""
    try:
        text = file.read_text(encoding="utf-8")
        table = json.loads(text) if file.suffix == ".json" else {"key": text}
    except (OSError, ValueError):  # absent, unreadable, not text, or no file name at all
        return set()
    values = [table.get(key) for key in _SECRET_KEYS] if isinstance(table, dict) else []
    return {value for value in values if isinstance(value, str)}
