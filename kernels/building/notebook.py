"""A kernel's script as a notebook, whose last cell shows what came out.

Its source is one text per cell, as Kaggle's server takes it, and it has no cell ids: the same
script gives the same bytes.
"""

import json
from typing import Any

_BETWEEN, _QUOTES = "# %%\n", '"\n'
_SHOW = """\
from IPython.display import Image, display

out = WORKING / SETTINGS["out"]
if (out / "report.json").exists():
    report = json.loads((out / "report.json").read_text())
    for name, part in report["collections"].items():
        print(f"{name:<20} {part['metric']:<12} {part['value']}  95 %: {part['ci95']}")
        for member, value in report["models"][name]["member_values"].items():
            print(f"  {member:<40} {value}")
    display(Image(out / "report.png"))
for path in sorted(WORKING.rglob("*.csv")):
    print(path, *(line[:80] for line in path.read_text().splitlines()[:3]), sep="\\n")
"""


def as_notebook(title: str, script: str) -> str:
    """Return a kernel's script (see `kernels.building.script`) as the text of an .ipynb file."""
    says, *parts = script.split(_BETWEEN)
    *folded, main = (_code(part) for part in parts)
    for cell in folded:  # on Kaggle's page
        cell["metadata"] = {"_kg_hide-input": True}
    about = {
        "cell_type": "markdown",
        "metadata": {},
        "source": f"# {title}\n\n{says.strip(_QUOTES)}",
    }
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    cells = [about, *folded, main, _code(_SHOW)]
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _code(source: str) -> dict[str, Any]:
    ran = {"execution_count": None, "outputs": list[str]()}
    return {"cell_type": "code", "metadata": {}, **ran, "source": source.strip()}
