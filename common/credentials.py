"""Kaggle's credentials: read them from their usual places, and remove them from messages."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from common.errors import PipelineError, escaped
from common.files import open_regular

_SECRET_VARIABLES = ("KAGGLE_API_TOKEN", "KAGGLE_KEY", "KAGGLE_TOKEN")
_SECRET_FILES = ("kaggle.json", "access_token", "access_token.txt", "credentials.json")
_SECRET_KEYS = ("key", "token", "access_token", "refresh_token")
# In characters. A shorter value could be an ordinary word.
_MIN_SECRET_LENGTH = 8
# In characters. A longer message is probably a web page.
_MAX_QUOTE_LENGTH = 200


def known_secrets() -> frozenset[str]:
    """Return the credentials in the environment and in Kaggle's key files."""
    secrets = {os.environ.get(name, "") for name in _SECRET_VARIABLES}
    files = [folder / name for folder in _folders() for name in _SECRET_FILES]
    # A variable may contain the path of a token file.
    for file in (*files, *map(Path, secrets)):
        table = texts_in(file)
        secrets |= {table.get(key, "") for key in _SECRET_KEYS}
    words = (word for secret in secrets for word in secret.split())
    return frozenset(word for word in words if len(word) >= _MIN_SECRET_LENGTH)


def _folders() -> list[Path]:
    home = os.path.expanduser("~")  # noqa: PTH111 — without a home it stays "~", as for the client
    config = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    folders = (os.environ.get("KAGGLE_CONFIG_DIR"), f"{home}/.kaggle", f"{config}/kaggle")
    return [Path(folder) for folder in folders if folder]


def key_file() -> Path:
    """Return the path of the kaggle.json that logs in. The file may be missing."""
    files = [folder / "kaggle.json" for folder in _folders()]
    return next(filter(Path.exists, files), files[0])


class Login(NamedTuple):
    """Credentials of a user; "" for each that is missing."""

    username: str
    key: str
    token: str


def find_login() -> Login:
    """Find the user's credentials, without blanks and line ends around them."""
    from kagglesdk.kaggle_env import get_access_token_from_env

    table = texts_in(key_file())
    username = os.environ.get("KAGGLE_USERNAME") or table.get("username", "")
    key = (os.environ.get("KAGGLE_KEY") or table.get("key", "")).strip()
    try:
        token = (get_access_token_from_env()[0] or "").strip()
    except ValueError:  # a file that is no text
        token = ""
    # Many users put a new token in the place of the key.
    if key.startswith("KGAT_") and not token:
        token = key
    return Login(username.strip(), key, token)


def redact(text: str) -> str:
    """Replace every known credential in a text by ***."""
    for secret in sorted(known_secrets(), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def one_line(text: str, longest: int = _MAX_QUOTE_LENGTH) -> str:
    """Return foreign text on one printable line, without credentials."""
    flat = escaped(" ".join(redact(text).split()))
    return flat if len(flat) <= longest else f"{flat[:longest]}…"


def refuse_secrets(files: Iterable[tuple[object, bytes]]) -> None:
    """Refuse files that contain a credential."""
    secrets = [secret.encode(errors="backslashreplace") for secret in known_secrets()]
    for name, content in files:
        if any(secret in content for secret in secrets):
            fault = "contains a Kaggle credential of this machine; take it out"
            raise PipelineError(f"{name}: {fault}")


def refuse_link(path: Path) -> None:
    """Refuse a link, because its target may be a private file, and a hidden file or folder."""
    if path.is_symlink() or path.name.startswith("."):
        raise PipelineError(f"{path}: is hidden or a link; expected plain files; replace it")


def content_to_send(path: Path) -> bytes:
    """Read a file that will leave this machine."""
    refuse_link(path)
    with open_regular(path) as file:
        content = file.read()
    refuse_secrets([(path, content)])
    return content


def texts_in(file: Path) -> dict[str, str]:
    """Return the texts of a JSON file by key, {"key": text} of another one, {} if unreadable."""
    try:
        content = file.read_bytes()
        is_json = file.suffix == ".json"
        table = json.loads(content) if is_json else {"key": content.decode("utf-8-sig")}
    except (OSError, ValueError, RecursionError):  # absent, unreadable, or no file name at all
        return {}
    items = table.items() if isinstance(table, dict) else ()
    return {key: value.strip() for key, value in items if isinstance(value, str)}
