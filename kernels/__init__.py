"""Build, push and follow Kaggle kernels, and push datasets that they need."""
