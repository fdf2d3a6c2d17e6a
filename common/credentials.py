"""Kaggle's credentials: where they are, whether they can be such, and that no message has them."""

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from common.errors import PipelineError, escaped

_SECRET_VARIABLES = ("KAGGLE_API_TOKEN", "KAGGLE_KEY", "KAGGLE_TOKEN")
_SECRET_FILES = ("kaggle.json", "access_token", "access_token.txt", "credentials.json")
_SECRET_KEYS = ("key", "token", "access_token", "refresh_token")
_SHORTEST_SECRET = 8  # characters; a shorter value would blank out ordinary words
_LONGEST_QUOTE = 200  # characters of a server's message; longer ones are web pages


def check_credentials() -> None:
    """Raise a PipelineError if a credential with which the client would log in cannot be one."""
    from kagglesdk.kaggle_env import get_access_token_from_env

    texts, found = texts_in(key_file()), dict[str, str]()
    try:
        token, _ = get_access_token_from_env()
    except (OSError, ValueError):  # a file that is no text, or a text too long for a file's name
        token = ""
    if token is not None:
        variable = "KAGGLE_API_TOKEN"
        found[variable if os.environ.get(variable) else "~/.kaggle/access_token"] = token
    for name in ("username", "key") if token is None else ():
        variable = f"KAGGLE_{name.upper()}"
        place = variable if variable in os.environ else f"{key_file()}: {name}"
        found[place] = os.environ.get(variable, texts.get(name, "missing"))
    for place, secret in found.items():
        if not re.fullmatch("[!-~]+", secret):
            raise PipelineError(
                f"{place}: is no Kaggle credential; expected one line of plain ASCII without "
                "blanks (a file: in UTF-8, without a byte order mark); copy it again from the "
                "account's settings on kaggle.com"
            )
        if token is None and secret.startswith("KGAT_"):
            raise PipelineError(
                f"{place}: is an API token (KGAT_…), expected a key of 32 hex digits; put the "
                "token into KAGGLE_API_TOKEN or ~/.kaggle/access_token"
            )


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
