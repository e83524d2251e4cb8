"""A search on many processes
==========================

A hyperparameter search whose trials are distributed over the ranks of an MPI job.

Rank 0 has the study of Optuna: it gets one set of hyperparameters per rank, each rank trains a
network, and rank 0 adds the results to the study. No database is needed. Prints the best of 12
trials, within seconds.

To run it::

    pip install '.[examples,mpi]' optuna
    python examples/optuna_search.py
    mpiexec -n 4 python examples/optuna_search.py
"""

import numpy as np
import optuna
from sklearn.datasets import load_digits

import brainstorm as bs
from brainstorm.data_iterators import Minibatches
from brainstorm.ext import mpi
from brainstorm.hooks import MonitorLoss, StopAfterEpoch
from brainstorm.training import MomentumStepper
from brainstorm.training.team import Team

TRIALS = 12  # over all ranks
EPOCHS = 3


def load_data():
    """Return training and validation data as dicts of arrays (T=1, B, features)."""
    digits = load_digits()
    pixels = (digits.data / 16.0).astype(np.float32)[None]
    parts = bs.tools.split(pixels, digits.target[None, :, None], ratios=(1497, 300))
    return [{"default": x, "targets": y} for x, y in zip(*parts, strict=True)]


def suggest(trial):
    """Return the hyperparameters of a trial."""
    return {
        "size": trial.suggest_int("size", 10, 100, log=True),
        "learning_rate": trial.suggest_float("learning_rate", 0.01, 1.0, log=True),
        "seed": trial.number,
    }


def train(data, size, learning_rate, seed):
    """Train a network on this rank; return its loss on the validation data."""
    bs.global_rnd.set_seed(seed)
    training, validation = data
    net = bs.tools.create_net_from_spec("classification", 64, 10, f"F{size}")
    trainer = bs.Trainer(MomentumStepper(learning_rate, 0.9), verbose=False)
    trainer.add_hook(MonitorLoss("validation", name="validation"))
    trainer.add_hook(StopAfterEpoch(EPOCHS))
    trainer.train(net, Minibatches(50, **training), validation=Minibatches(300, **validation))
    return trainer.logs["validation.total_loss"][-1]


def main():
    """Search, and return the best hyperparameters, the same on all ranks."""
    ranks = mpi.find_world() or Team()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, constant_liar=True))
    data = load_data()
    for _ in range(0, TRIALS, ranks.size):
        trials = [study.ask() for _ in range(ranks.size)] if ranks.rank == 0 else []
        chosen = ranks.share([suggest(trial) for trial in trials])
        losses = ranks.gather(train(data, **chosen[ranks.rank]))
        for trial, loss in zip(trials, losses, strict=False):
            study.tell(trial, loss)
    best = ranks.share((study.best_value, study.best_params) if ranks.rank == 0 else None)
    if ranks.rank == 0:
        print(f"{len(study.trials)} trials on {ranks.size} ranks, best loss: {best[0]:.4f}")
        print(f"with {best[1]}")
    return best


if __name__ == "__main__":
    main()
