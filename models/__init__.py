"""Rankers of compiler configs: GNNs, boosting, losses, metrics and the training engine."""

import os

# OpenMP's threads spin while they wait, by default. On cores that other work uses as well, the
# spinning takes the time that the work itself needs. Read when torch loads OpenMP, so it stands
# here, before torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
