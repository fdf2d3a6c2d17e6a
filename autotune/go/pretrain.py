"""Train the policy that `optimize --search go` loads, and the file that it is stored in.

The policy decides compiler options. A catalogue program has 96 settings of them. This module
measures all 96 in rounds, and PPO learns from that table which settings are fast, program after
program. The programs are of 8 families of the catalogue's train and valid splits, small enough to
compile 96 times. `policy.safetensors` holds the weights, the scaling of node features and the size
of the network.

Example: python -m autotune.go.pretrain --out autotune/go/policy.safetensors
"""

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from autotune.go.network import DecisionGraph, Policy, PolicyConfig, decision_graph
from autotune.go.ppo import PRE_TRAINING, improve_policy
from autotune.measure.journal import Visitor, open_journal
from autotune.measure.program import Description
from autotune.measure.worker import Session
from autotune.spaces import open_program
from common.errors import PipelineError
from common.files import write_bytes
from common.progress import log
from common.reproducibility import generator
from data.hlo.choices import Choices
from data.hlo.compiler_options import N_OPTIONS
from features.scaling import NodeScaler, fit_node_scaler
from models.training.device import CPU, torch_prepared

PROGRAMS = (
    *("mlp_b16", "mixer_b1", "lstm_b4", "dilated_b1"),
    *("autoencoder_b4", "gru_b8", "attention_b2", "points_b16"),
)
POLICY = Path(__file__).with_name("policy.safetensors")
# All 96 settings of the options (c, g), the default first.
ALL_SETTINGS = np.indices(N_OPTIONS.tolist()).reshape(len(N_OPTIONS), -1).T
CONFIG = PolicyConfig(tasks={"options": int(N_OPTIONS.max())})
N_ROUNDS = 3
SCALING = "log1p-standardise"
SCALER = "scaler."

Times = NDArray[np.float64]


def measure_options(program: str, out: Path) -> tuple[Description, Times]:
    """Measure all settings of a program's compiler options in rounds, the default twice.

    Args:
        out: Folder of journals. The same call resumes.

    Returns:
        The program, and the median runtime of each of `ALL_SETTINGS` over the default's, (96,).
        inf means that the setting failed.
    """
    settings = np.concatenate([ALL_SETTINGS[:1], ALL_SETTINGS])
    rng = generator(0, "options", program)
    rounds_ns = np.empty((N_ROUNDS, len(settings)))
    with Session(partial(open_program, program, ("options",)), timeout_s=60) as session:
        description = session.describe()
        header = {"program": program, "stage": "options", **description.facts}
        journal = open_journal(out / f"{program}-options.jsonl", header)
        visit = Visitor(session, journal, label=f"{program}: options", total=0).visit
        for turn in range(N_ROUNDS):
            for number in rng.permutation(len(settings)).tolist():
                rounds_ns[turn, number] = visit(number, 1 + turn, settings[number])
    # The default is compared with the mean of its two visits in the same round.
    default_ns = rounds_ns[:, :2].mean(axis=1, keepdims=True)
    ratios = np.median(rounds_ns[:, 1:] / default_ns, axis=0)
    ratios[0] = 1.0
    return description, ratios


def save_policy(path: Path, policy: Policy, scaler: NodeScaler) -> None:
    """Write a policy and the scaling of its node features to a safetensors file."""
    arrays = {f"{SCALER}{name}": getattr(scaler, name) for name in ("shift", "factor")}
    tensors = policy.state_dict() | {key: torch.from_numpy(a) for key, a in arrays.items()}
    metadata = {"config": policy.config.model_dump_json(), "programs": json.dumps(PROGRAMS)}
    write_bytes(path, save(tensors, metadata))


def load_policy(path: Path = POLICY) -> tuple[Policy, NodeScaler]:
    """Return a policy and the scaling of its node features.

    Args:
        path: File that `save_policy` wrote.
    """
    try:
        with safe_open(path, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            policy = Policy(PolicyConfig.model_validate_json(file.metadata()["config"]))
        scales = [tensors.pop(f"{SCALER}{name}").numpy() for name in ("shift", "factor")]
        policy.load_state_dict(tensors)
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        again = "python -m autotune.go.pretrain writes it"
        raise PipelineError(f"{path}: no policy can be read ({error}); {again}") from error
    return policy.eval(), NodeScaler(SCALING, *scales)


def main() -> None:
    """Measure the programs, train a policy and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=POLICY, help="the safetensors file")
    parser.add_argument("--work", type=Path, default=Path("runs/go"), help="journals; resumes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tables = {program: measure_options(program, options.work) for program in PROGRAMS}
    features = [description.arrays["node_feat"] for description, _ in tables.values()]
    scaler = fit_node_scaler(features, scaling=SCALING)

    def reward(graph: DecisionGraph, settings: Choices) -> Times:
        _, ratios = tables[graph.name]
        return ratios[np.ravel_multi_index(tuple(settings.T), N_OPTIONS.tolist())]

    with torch_prepared(threads=1, device=CPU, seed=options.seed):
        programs = {name: description for name, (description, _) in tables.items()}
        graphs = [decision_graph(name, program, scaler) for name, program in programs.items()]
        policy = Policy(CONFIG)
        improve_policy(policy, graphs, reward, PRE_TRAINING, seed=options.seed)
    save_policy(options.out, policy, scaler)
    log.info(f"{options.out}: {options.out.stat().st_size / 2**10:.0f} KiB")


if __name__ == "__main__":
    main()
