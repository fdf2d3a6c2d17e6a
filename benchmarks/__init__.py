"""Speed and memory measurements; each writes its part of RESULTS.md."""
