"""Hooks of MkDocs: notebooks of docs/ become pages, and diagrams need no network.

A notebook becomes Markdown before MkDocs reads the pages. MkDocs then checks the links of a
notebook like the links of any other page.
"""

import base64
import json
from pathlib import PurePosixPath
from typing import Any

IMAGE = "image/png"


def page_of(notebook: dict[str, Any], stem: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as a Markdown page.

    Args:
        notebook: Content of the .ipynb file, of nbformat 4.

    Returns:
        The page, and the PNG images that it shows, by file name.
    """
    blocks: list[str] = []
    images: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        blocks.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        for output in cell.get("outputs", []):
            if "text" in output:
                blocks.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif IMAGE in output.get("data", {}):
                name = f"{stem}-{len(images) + 1}.png"
                images[name] = base64.b64decode("".join(output["data"][IMAGE]))
                blocks.append(f"![Output of the cell above]({name})")
    return "\n\n".join(blocks) + "\n", images


def on_files(files: Any, config: Any) -> Any:
    """Replace each notebook by a page. MkDocs calls this function."""
    from mkdocs.structure.files import File

    class NotebookPage(File):  # type: ignore[misc]
        def is_documentation_page(self) -> bool:
            return True

    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        path = PurePosixPath(file.src_uri)
        markdown, images = page_of(json.loads(file.content_string), path.stem)
        files.remove(file)
        files.append(NotebookPage.generated(config, file.src_uri, content=markdown))
        for name, content in images.items():
            files.append(File.generated(config, str(path.parent / name), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> None:
    """Give the wide tables of the results the room of the table of contents. MkDocs calls this."""
    if page.file.src_uri.startswith("results/"):
        page.meta["hide"] = ["toc"]


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Load Mermaid from the site itself on pages with diagrams. MkDocs calls this function.

    Without this, the theme loads it from another server when the page is read.
    """
    from mkdocs.utils import get_relative_url

    if 'class="mermaid"' not in output:
        return output
    script = f'<script src="{get_relative_url("assets/mermaid.min.js", page.url)}"></script>'
    return output.replace("</head>", f"{script}</head>", 1)
