"""Steppers and schedules against those of PyTorch: the same numbers, step by step."""

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from brainstorm import training as bt
from tests.training.test_steppers import gradient_of, network

STEPS = 30
RATE = 0.03

#: Ours, and the optimiser with the same numbers. Momentum keeps the rate in the velocity here: that
#: makes a difference only where the rate changes.
STEPPERS = {
    "sgd": (lambda: bt.SgdStepper(RATE), lambda p: torch.optim.SGD(p, RATE)),
    "momentum": (
        lambda: bt.MomentumStepper(RATE, 0.9, scale_learning_rate=False),
        lambda p: torch.optim.SGD(p, RATE, momentum=0.9),
    ),
    "nesterov": (
        lambda: bt.NesterovStepper(RATE, 0.9, scale_learning_rate=False),
        lambda p: torch.optim.SGD(p, RATE, momentum=0.9, nesterov=True),
    ),
    "rmsprop": (lambda: bt.RMSPropStepper(RATE), lambda p: torch.optim.RMSprop(p, RATE)),
    "rmsprop, centered": (
        lambda: bt.CenteredRMSPropStepper(RATE, momentum=0.7),
        lambda p: torch.optim.RMSprop(p, RATE, centered=True, momentum=0.7),
    ),
    "adagrad": (lambda: bt.AdagradStepper(RATE), lambda p: torch.optim.Adagrad(p, RATE)),
    "adadelta": (lambda: bt.AdadeltaStepper(), lambda p: torch.optim.Adadelta(p)),
    "adam": (lambda: bt.AdamStepper(RATE), lambda p: torch.optim.Adam(p, RATE)),
    "amsgrad": (
        lambda: bt.AmsGradStepper(RATE, beta2=0.7),
        lambda p: torch.optim.Adam(p, RATE, (0.9, 0.7), amsgrad=True),
    ),
    "adamw": (
        lambda: bt.AdamWStepper(RATE, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, RATE, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("name", STEPPERS)
def test_a_stepper_goes_the_way_of_its_peer(name):
    ours, theirs = STEPPERS[name]
    net, stepper, gradient = network(), ours(), gradient_of()
    start = net.get("parameters")
    p = torch.tensor(start, requires_grad=True)
    peer = theirs([p])
    stepper.start(net)
    for _ in range(STEPS):
        stepper.run()
        p.grad = torch.tensor(gradient(p.detach().numpy()))
        peer.step()
        found = net.get("parameters")
        if name == "nesterov":  # PyTorch's parameters are those at which gradients are taken next
            found = found + stepper.momentum * stepper.get_state()["velocity"]
        np.testing.assert_allclose(found, p.detach().numpy(), rtol=1e-9)
    assert not np.allclose(found, start, atol=1e-3)


#: Ours, and the scheduler with the same numbers. PyTorch's one cycle reaches the top one step
#: earlier than at its share of all steps.
SCHEDULES = {
    "linear": (
        bt.Linear(1.0, 0.25, 20),
        lambda o: lr_scheduler.LinearLR(o, 1.0, 0.25, total_iters=20),
    ),
    "cosine": (bt.Cosine(1.0, 0.1, STEPS), lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS, 0.1)),
    "cosine, restarts": (
        bt.CosineRestarts(1.0, 0.1, 4, growth=2),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4, 2, 0.1),
    ),
    "exponential": (bt.Exponential(1.0, 0.9), lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
    "steps": (
        bt.MultiStep(1.0, [7, 20], [0.1, 0.01]),
        lambda o: lr_scheduler.MultiStepLR(o, [7, 20]),
    ),
    "decrease": (
        bt.DecreaseAfterEpoch(1.0, 4),
        lambda o: lr_scheduler.LambdaLR(o, lambda k: 4 / max(k + 1, 4)),
    ),
    "warm-up": (
        bt.Warmup(5, bt.Exponential(1.0, 0.9), 0.1),
        lambda o: lr_scheduler.SequentialLR(
            o,
            [lr_scheduler.LinearLR(o, 0.1, 1.0, 5), lr_scheduler.ExponentialLR(o, 0.9)],
            [5],
        ),
    ),
    "one cycle": (
        bt.OneCycle(1.0, STEPS - 1, rise=(0.3 * STEPS - 1) / (STEPS - 1)),
        lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=STEPS),
    ),
}


def optimiser():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], 1.0)


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*before")
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_gives_what_its_peer_gives(name):
    ours, theirs = SCHEDULES[name]
    peer = optimiser()
    scheduler = theirs(peer)
    for k in range(STEPS):
        assert ours(k, k, "epoch", 1) == pytest.approx(peer.param_groups[0]["lr"], rel=1e-9)
        if k < STEPS - 1:
            scheduler.step()


def test_nothing_is_left_out():
    public = [getattr(bt, name) for name in bt.__all__]
    classes = [cls for cls in public if isinstance(cls, type)]
    steppers = {c for c in classes if issubclass(c, bt.TrainingStepper) and c.learns}
    assert steppers - {type(ours()) for ours, _ in STEPPERS.values()} == {bt.TrainingStepper}
    schedules = {cls for cls in classes if issubclass(cls, bt.Schedule)}
    rest = schedules - {type(ours) for ours, _ in SCHEDULES.values()}
    assert rest == {bt.Schedule, bt.ReduceOnPlateau}  # compared below


@pytest.mark.parametrize("criterion", ["min", "max"])
@pytest.mark.parametrize(("patience", "cooldown"), [(0, 0), (2, 0), (1, 3), (3, 1)])
def test_plateaus_are_those_of_the_peer(criterion, patience, cooldown):
    ours = bt.ReduceOnPlateau(
        "log", 1.0, 0.5, patience, cooldown=cooldown, minimum=0.01, criterion=criterion
    )
    peer = optimiser()
    scheduler = lr_scheduler.ReduceLROnPlateau(
        peer, criterion, 0.5, patience, cooldown=cooldown, min_lr=0.01, eps=0.0
    )
    sign = 1.0 if criterion == "min" else -1.0
    values = sign * np.maximum(5 - np.arange(60) / 10, 2) + np.random.RandomState(1).rand(60)
    for k, value in enumerate(values):
        scheduler.step(value)
        assert ours.after(values[: k + 1]) == pytest.approx(peer.param_groups[0]["lr"])
