"""Criteria: what is better follows from the log, and is asked for where it does not."""

import pytest

import brainstorm as bs
from brainstorm import hooks
from brainstorm.errors import TrainingError, UnknownPathError
from brainstorm.hooks.criteria import criterion_of
from brainstorm.layers import FullyConnected, Input, Loss
from brainstorm.scorers import Accuracy, Hamming, MeanSquaredError, Scorer
from brainstorm.training import ReduceOnPlateau
from tests.trainings import Call, given


class Cost(Scorer):
    criterion = "min"


class Gain(Scorer):
    criterion = "max"


class Mute(Scorer):
    pass


def values_of(numbers, scorers=(), name="validation"):
    """Return a hook that logs numbers under any names, as a monitor with its scorers would."""
    names = [scorer.__name__ for scorer in scorers] or ["total_loss"]
    log = Call(lambda epoch_nr, *_: dict.fromkeys(names, numbers[epoch_nr]), name, "epoch")
    return given(log, scorers=scorers)


LOGS = [
    ("total_loss", (), "min"),
    ("ErrorRate", [Mute(name="ErrorRate")], "min"),
    ("top5_accuracy", [Mute(name="top5_accuracy")], "max"),
    ("Accuracy", [Accuracy()], "max"),
    ("right", [Accuracy(name="right")], "max"),
    ("Hamming", [Hamming()], "max"),
    ("MeanSquaredError", [MeanSquaredError()], "min"),
    ("mse", [MeanSquaredError(name="mse")], "min"),
    ("Cost", [Cost()], "min"),
    ("loss_avoided", [Gain(name="loss_avoided")], "max"),
    ("AntiGain", [Gain(name="Gain"), Cost(name="AntiGain")], "min"),
]


@pytest.mark.parametrize(("name", "scorers", "criterion"), LOGS, ids=[row[0] for row in LOGS])
def test_hooks_know_what_is_better_from_the_log(train, name, scorers, criterion, tmp_path):
    values = [2.0, 3.0, 1.0, 2.0]
    best = hooks.SaveBestNetwork(f"validation.{name}")
    saver = hooks.SaveCheckpoint(tmp_path / "run", best=f"validation.{name}")
    stopper = hooks.EarlyStopper(f"validation.{name}", patience=2)
    rate = hooks.ModifyStepperAttribute(ReduceOnPlateau(f"validation.{name}", 0.1, 0.5, 1))
    trainer = train(values_of(values, scorers), best, saver, stopper, rate, epochs=3)
    assert trainer.stepper.learning_rate == {"min": 0.1, "max": 0.05}[criterion]
    assert best.best_so_far == {"min": 1.0, "max": 3.0}[criterion]
    assert saver.best_so_far == {"min": 1.0, "max": 3.0}[criterion]
    ended = trainer.logs.get("EarlyStopper")
    assert ended == {"min": None, "max": [f"validation.{name} was best 2 values ago"]}[criterion]
    trainer = train(
        values_of(values, scorers), hooks.StopAfterThresholdReached(f"validation.{name}", 2.5)
    )
    assert trainer.current_epoch_nr == {"min": 0, "max": 1}[criterion]  # 2.0, and then 3.0


def test_training_scores_and_those_of_wrapped_hooks_are_known(train):
    best = hooks.SaveBestNetwork("averaged.right")
    monitor = hooks.MonitorScores("valid", [Accuracy(name="right")], name="averaged")
    train(hooks.AverageWeights(0.5), hooks.WithAverages(monitor), hooks.WithAverages(best))
    assert best.best_so_far == max(best.trainer.logs["averaged.right"])
    trainer = bs.Trainer(bs.training.SgdStepper(0.1))
    trainer.train_scorers = [Cost(name="rate")]
    stopper = hooks.EarlyStopper("rolling_training.rate")
    trainer.add_hook(stopper)
    stopper.start(None, None, False, {})


def test_of_scorers_with_one_name_that_of_the_log_decides(train):
    gains = values_of([2.0, 3.0, 1.0], [Gain(name="score")], name="a")
    costs = values_of([2.0, 3.0, 1.0], [Cost(name="score")], name="b")
    most = hooks.SaveBestNetwork("a.score", name="most")
    least = hooks.SaveBestNetwork("b.score")
    train(gains, costs, most, least, epochs=2)
    assert (most.best_so_far, least.best_so_far) == (3.0, 1.0)


def test_the_names_of_loss_layers_are_losses():
    inp = Input({"default": ("T", "B", 3)})
    hidden = inp >> FullyConnected(2, "tanh")
    hidden >> Loss(name="First")
    hidden >> Loss(name="Second")
    net = bs.Network.from_layer(inp)
    best = hooks.SaveBestNetwork("validation.Second")
    net.initialize(0)
    for value in (2.0, 1.0, 3.0):
        best(1, 1, net, None, {"validation": {"Second": [value]}})
    assert best.best_so_far == 1.0


@pytest.mark.parametrize(
    "hook",
    [
        hooks.EarlyStopper("validation.F1"),
        hooks.StopAfterThresholdReached("validation.F1", 0.9),
        hooks.SaveBestNetwork("validation.F1"),
        hooks.SaveCheckpoint("run.hdf5", best="validation.F1"),
    ],
    ids=lambda hook: type(hook).__name__,
)
def test_what_nothing_says_is_asked_for_before_the_training(train, hook, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kind = type(hook).__name__
    with pytest.raises(
        TrainingError,
        match=rf"hook '{kind}' \({kind}\), criterion: expected 'min' or 'max', because it is "
        r"unknown which values of 'validation.F1' are better, got None\.\n",
    ):
        train(hook, hooks.MonitorScores("valid", [Mute(name="F1")], name="validation"))
    assert hook.trainer.current_update_nr == 0
    hook.criterion = "max"
    hook.start(hook.trainer.net, hook.trainer.stepper, False, {})


def test_a_misspelled_name_is_compared_with_those_of_the_scorers(train):
    text = (
        r"log_name: unknown scorer 'Acuracy'. Choices are: Accuracy. Did you mean 'Accuracy'\? For "
    )
    with pytest.raises(TrainingError, match=text):
        train(hooks.MonitorScores("valid", [Accuracy()], name="a"), hooks.EarlyStopper("a.Acuracy"))


@pytest.mark.parametrize("name", ["validaton.right", "right"])
def test_a_log_of_no_hook_is_compared_with_all_logs(train, name):
    monitor = hooks.MonitorScores("valid", [Accuracy(name="right")], name="validation")
    with pytest.raises(UnknownPathError, match=f"unknown log '{name}'. Choices are: validation.to"):
        train(monitor, hooks.EarlyStopper(name))


@pytest.mark.parametrize(
    ("criterion", "names"),
    [
        ("min", "validation.total_loss MeanSquaredError error_rate trainingLoss"),
        ("min", "validation.total_loss_per_step"),
        ("max", "validation.Accuracy top5_accuracy"),
        (None, "inaccuracy neg_loss error_free_rate glossary_size loss_scale perplexity"),
        (None, "one_minus_accuracy"),
    ],
)
def test_what_the_name_of_a_log_says(criterion, names):
    assert {criterion_of(name) for name in names.split()} == {criterion}
    assert criterion_of("") is None
