"""Whatever happened to a network before, it computes the bits of a new one with the same values.

A life is a sequence of changes in random order: other sizes, handlers, memory, modifiers, options,
steppers, copies. After each computation of the network a new one is built from its description and
its values, computes the same, and all numbers are compared.
"""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from brainstorm import layers as bl
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import NetworkValidationError
from brainstorm.handlers import DebugHandler, NativeHandler, NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.network import Network
from brainstorm.network.generators import get_generator_states, set_generator_states
from brainstorm.training import ParameterGroup
from brainstorm.value_modifiers import ClipValues, ConstrainL2Norm
from tests.networks import WIRINGS, classifier, data_for, forward, run_passes
from tests.trainings import LEARNING

LIVING = {
    **WIRINGS,
    "dropout": lambda: classifier(bl.Dropout(0.4), bl.Lstm(4), bl.Dropout(0.3)),
    "norms": lambda: classifier(bl.BatchNorm(), bl.LayerNorm(), bl.Gru(4)),
    "attention": lambda: classifier(bl.MultiHeadSelfAttention(2), bl.Reverse()),
}
HANDLERS = {
    "float32": lambda: NumpyHandler(np.float32),
    "float64": lambda: NumpyHandler(np.float64),
    "one thread": lambda: NativeHandler(threads=1),
    "two threads": lambda: NativeHandler(threads=2),
    "debug": lambda: DebugHandler(NumpyHandler(np.float64)),
}
#: How the arrays of a batch lie in memory.
FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as they are": lambda a: a,
    "float32": lambda a: a.astype(np.float32),
    "by columns": np.asfortranarray,
    "with gaps": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
}
BATCHES = st.tuples(
    st.sampled_from([1, 2, 3, 5, 8]),
    st.sampled_from([2, 3, 4, 7]),
    st.integers(0, 99),
    st.sampled_from(list(FORMS)),
)
Found = dict[str, Any]


def values_of(net: Network) -> Found:
    """Return parameters and running statistics."""
    return {path: net.get(path) for path in ("parameters", *net.persistent_paths)}


def passes(net: Network, data: Found, **options: Any) -> Found:
    """Do both passes; return losses and gradients."""
    gradients = run_passes(net, data, **options)
    return {"losses": net.get_loss_values(), "gradients": gradients}


class Life(RuleBasedStateMachine):
    """The life of a network."""

    @initialize(
        kind=st.sampled_from(list(LIVING)),
        memory=st.sampled_from(["inspectable", "compact"]),
        handler=st.sampled_from(list(HANDLERS)),
        stepper=st.sampled_from(list(LEARNING)),
    )
    def begin(self, kind, memory, handler, stepper):
        self.net = Network.from_layer(LIVING[kind](), 1, HANDLERS[handler](), memory)
        self.net.initialize(Gaussian(0.3), seed=2)
        self.train_with(stepper)

    def data(self, batch) -> Found:
        T, B, seed, form = batch
        data = data_for(self.net, T, B, seed)
        return {name: FORMS[form](array) for name, array in data.items()}

    def compare(self, compute: Callable[[Network, Any], Found]) -> None:
        """Compare what the network and its stepper compute with what new ones do."""
        net, stepper = self.net, self.stepper
        new = Network._from_description(get_description(net))
        for path, values in values_of(net).items():
            new.handler.set_from_numpy(new.buffer[path], values)
        set_generator_states(new, get_generator_states(net), "the twin")
        new.keep_input_deltas = net.keep_input_deltas
        twin = create_from_description(get_description(stepper))
        twin.set_state(stepper.get_state())
        twin.start(new)
        found, expected = compute(net, stepper), compute(new, twin)
        np.testing.assert_equal({**found, **values_of(net)}, {**expected, **values_of(new)})
        np.testing.assert_equal(stepper.get_state(), twin.get_state())
        new.close()

    def restart(self, net: Network) -> None:
        """Go on with another network, or on another handler."""
        stepper, self.net = self.stepper, net
        self.stepper = create_from_description(get_description(stepper))
        self.stepper.set_state(stepper.get_state())
        self.stepper.start(net)

    # -- what it computes ------------------------------------------------------------------------

    @rule(batch=BATCHES, training_pass=st.booleans())
    def go_forward(self, batch, training_pass):
        def compute(net, stepper):
            forward(net, data=data, training_pass=training_pass)
            return {"losses": net.get_loss_values()}

        data = self.data(batch)
        self.compare(compute)

    @rule(batch=BATCHES)
    def go_back(self, batch):
        data = self.data(batch)
        self.compare(lambda net, stepper: passes(net, data))

    @rule(batch=BATCHES)
    def go_on_in_time(self, batch):
        def compute(net, stepper):
            passes(net, data)
            return passes(net, data, context=net.get_context())

        data = self.data(batch)
        self.compare(compute)

    @rule(batch=BATCHES)
    def predict(self, batch):
        layers = [n for n, layer in self.net.layers.items() if "default" in layer.out_shapes]
        data = self.data(batch)
        self.compare(lambda net, _: {"rows": net.predict(data, f"{layers[-1]}.outputs.default")})

    @rule(batches=st.lists(BATCHES, min_size=1, max_size=4))
    def train(self, batches):
        def compute(net, stepper):
            for batch in batches:
                net.provide_external_data(self.data(batch))
                stepper.run()
            return {"losses": net.get_loss_values(), "gradients": net.get("gradients")}

        self.compare(compute)

    # -- what happens to it ----------------------------------------------------------------------

    @rule(handler=st.sampled_from(list(HANDLERS)))
    def move(self, handler):
        self.net.set_handler(HANDLERS[handler]())
        self.restart(self.net)

    @rule()
    def copy(self):
        self.restart(self.net.copy())

    @rule()
    def pickle(self):
        self.restart(pickle.loads(pickle.dumps(self.net)))

    @rule()
    def keep_or_drop_input_deltas(self):
        self.net.keep_input_deltas = not self.net.keep_input_deltas

    @rule(seed=st.integers(0, 9))
    def forget_everything(self, seed):
        self.net.initialize(Gaussian(0.4), seed=seed)

    @rule(factor=st.sampled_from([0.5, -1.0]))
    def change_parameters(self, factor):
        values = self.net.get("parameters")
        self.net.handler.set_from_numpy(self.net.buffer.parameters, factor * values)

    @rule(
        weights=st.sampled_from([{}, {"*": {"*": ConstrainL2Norm(1.0)}}]),
        gradients=st.sampled_from([{}, {"*": {"*": ClipValues(-0.01, 0.01)}}]),
    )
    def modify(self, weights, gradients):
        if self.net.parameters_size:
            self.net.set_weight_modifiers(weights)
            self.net.set_gradient_modifiers(gradients)

    @rule(value=st.sampled_from([0.1, 0.5]))
    def change_options(self, value):
        for layer in self.net.layers.values():
            for option in layer.changeable_kwargs:
                setattr(layer, option, value)

    @rule(name=st.sampled_from(list(LEARNING)))
    def train_with(self, name):
        self.stepper = LEARNING[name](0.05)
        self.stepper.start(self.net)

    @rule(
        rate=st.sampled_from([0.01, 0.1]), most=st.sampled_from([None, 0.01]), group=st.booleans()
    )
    def change_the_stepper(self, rate, most, group):
        self.stepper.learning_rate, self.stepper.max_gradient_norm = rate, most
        path = next(iter(self.net.parameter_slices))
        self.stepper.groups = [ParameterGroup(path, learning_rate_factor=0.5)] if group else []

    @precondition(lambda self: self.net.batch_size)
    @rule(training_pass=st.booleans())
    def look(self, training_pass):
        self.net.plan(training_pass)
        self.net.tree(values=True)
        self.net.memory(3, 5, 2 if "source" in self.net.input_names else None)

    @rule()
    def refuse_data(self):
        try:
            self.net.provide_external_data({"default": np.zeros((1, 1, 99))})
        except NetworkValidationError:
            return
        raise AssertionError("data of another shape were accepted")


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=15, stateful_step_count=20, phases=set(Phase) - {Phase.explain}
)
