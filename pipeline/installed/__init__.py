"""Installed packages: `import fast_or_slow` puts them before other packages of their names."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
