"""Trainers in notebooks: stepper, hooks, logs and network, escaped."""

import numpy as np

import brainstorm as bs
from brainstorm.data_iterators import Minibatches
from brainstorm.hooks import MonitorScores
from brainstorm.training import SgdStepper
from tests.trainings import make_trainer


def test_a_new_trainer_is_short():
    trainer = bs.Trainer(SgdStepper(0.1))
    assert repr(trainer.tree()) == (
        "Trainer: 0 epochs, 0 updates\n"
        "  stepper  SgdStepper(learning_rate=0.1)\n"
        "  hooks  none\n"
        "  logs  none"
    )
    assert trainer._repr_html_() == trainer.tree(values=True)._repr_html_()


def test_a_trained_one_shows_logs_and_the_network_with_shapes_and_values():
    net = bs.tools.create_net_from_spec("classification", 4, 3, "Ft5")
    net.initialize(0.5)
    x = np.ones((1, 6, 4))
    data = Minibatches(3, default=x, targets=np.zeros((1, 6, 1)), shuffle=False)
    trainer = make_trainer(MonitorScores("valid", [], name="<script>"), epochs=3)
    trainer.train(net, data, valid=data)
    lines = [line.strip() for line in repr(trainer.tree(values=True)).split("\n")]
    assert lines[0] == "Trainer: 3 epochs, 6 updates"
    assert "StopAfterEpoch  StopAfterEpoch(max_epochs=3)" in lines
    loss = trainer.logs["rolling_training.total_loss"][-1]
    assert f"rolling_training.total_loss  3 entries, last {loss:.6g}" in lines
    assert "StopAfterEpoch  1 entries, last 'reached max_epochs=3'" in lines
    assert "net  Network of 5 layers, 43 parameters" in lines
    html = trainer._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script" not in html
    assert "float32[5, 4]" in html
    assert ">mean<" in html


def test_hooks_stay_visible_beside_a_large_network():
    spec = " ".join(["Ft2"] * 60)
    trainer = make_trainer(epochs=3)
    trainer.net = bs.tools.create_net_from_spec("classification", 4, 3, spec)
    shown = repr(trainer.tree().folded()).split("\n")
    assert "    StopAfterEpoch  StopAfterEpoch(max_epochs=3)" in shown
    assert shown[-1].startswith("  net  Network of 64 layers")
    assert len(trainer._repr_html_()) < 2000
