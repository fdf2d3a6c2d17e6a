"""Rankers of compiler configs: graph networks, boosting, and how they are trained."""
