"""The text of a kernel: one file made of a kind's template, what all kinds share, the archive."""

import ast
import base64
import hashlib
import json
import lzma
import re
from collections.abc import Mapping
from pathlib import Path

from common import settings
from kernels.build.kinds import Kind

_INPUT_ROOT = Path("/kaggle/input")
_TEMPLATES = Path(__file__).parent / "templates"
_COMMON = "kernels.build.templates.common"
_PLACEHOLDER = re.compile(r"@[A-Z0-9_]+@")
_END = '''

ARCHIVE = """
{archive}"""

if __name__ == "__main__":
    main()
'''


def render_script(
    kind: Kind, packed: bytes, recipe_file: str, required_modules: Mapping[str, str]
) -> str:
    """Return the script of a kernel around the zip archive `packed`.

    Args:
        kind: which template, and its values.
        packed: the project.
        recipe_file: the recipe's path inside the archive.
        required_modules: module to distribution, installed from attached wheels where missing.

    Raises:
        ValueError: a placeholder of the templates has no value: a defect of ours.
    """
    squeezed = lzma.compress(packed, preset=9 | lzma.PRESET_EXTREME)
    mounts = [mount.relative_to(_INPUT_ROOT).as_posix() for mount in settings.KAGGLE_MOUNTS]
    values = {
        **kind.values,
        "@RECIPE@": recipe_file,
        '["@MOUNTS@"]': json.dumps(mounts),
        '["@REQUIRED@"]': json.dumps([f"{key}={value}" for key, value in required_modules.items()]),
        "@ARCHIVE_SHA256@": hashlib.sha256(squeezed).hexdigest(),
    }
    script = _joined(kind.template)
    for placeholder, value in values.items():
        script = script.replace(placeholder, value)
    left = _PLACEHOLDER.search(script)
    if left:
        raise ValueError(f"template {kind.template}: placeholder {left[0]} has no value")
    return script + _END.format(archive=base64.encodebytes(squeezed).decode())


def _joined(template: str) -> str:
    """Put the text that all kinds share in place of a template's import of it."""
    text = (_TEMPLATES / f"{template}.py").read_text(encoding="utf-8")
    shared = (_TEMPLATES / "common.py").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    (imported,) = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ImportFrom) and node.module == _COMMON
    ]
    docstring = ast.parse(shared).body[0]
    body = shared.splitlines(keepends=True)[docstring.end_lineno or 0 :]
    before, after = lines[: imported.lineno - 1], lines[imported.end_lineno or 0 :]
    return "".join([*before, *"".join(body).lstrip("\n").splitlines(keepends=True), *after])
