"""Kaggle kernels: build a self-contained one from a recipe, push it, follow it."""
