"""Speed and memory measurements; each writes its part of RESULTS.md."""

import models  # noqa: F401 -- before torch: it sets how waiting threads behave
