"""Steppers that scale the step of every parameter by the size of its gradients so far."""

from __future__ import annotations

import math

from brainstorm.training.steppers import FRACTION, NON_NEGATIVE, TrainingStepper

__all__ = [
    "AdadeltaStepper",
    "AdagradStepper",
    "AdamStepper",
    "AdamWStepper",
    "RMSPropStepper",
]


class RMSPropStepper(TrainingStepper):
    """RMSProp: steps are divided by a running root mean square of the gradients.

    ``s = decay * s + (1 - decay) * g²; p -= learning_rate * g / (sqrt(s) + epsilon)``
    (Tieleman and Hinton, COURSERA lecture 6.5, 2012; defaults as in PyTorch).
    """

    hyperparameters = {"learning_rate": NON_NEGATIVE, "decay": FRACTION, "epsilon": NON_NEGATIVE}
    state_names = ("mean_square",)
    scratch_names = ("change",)

    def __init__(
        self, learning_rate: float = 0.01, decay: float = 0.99, epsilon: float = 1e-8
    ) -> None:
        self.learning_rate = learning_rate
        self.decay = decay
        self.epsilon = epsilon

    def scalars(self) -> dict[str, float]:
        """Return the numbers of the formula."""
        return {
            "minus_rate": -self.learning_rate,
            "decay": self.decay,
            "rest": 1.0 - self.decay,
            "epsilon": self.epsilon,
        }

    def update(self) -> None:
        """Do the formula."""
        h, change, square = self.handler, self.scratch["change"], self.state["mean_square"]
        h.mult_tt(self.gradients, self.gradients, change)
        self._average(change, "decay", "rest", square)
        h.sqrt_t(square, change)
        h.add_st(self.numbers["epsilon"], change, change)
        h.divide_tt(self.gradients, change, change)
        h.mult_add_st(self.numbers["minus_rate"], change, self.parameters)


class AdagradStepper(TrainingStepper):
    """Adagrad: steps are divided by the root of the sum of all squared gradients so far.

    ``s += g²; p -= learning_rate * g / (sqrt(s) + epsilon)``
    (Duchi, Hazan and Singer, JMLR 12, 2011; defaults as in PyTorch).
    """

    hyperparameters = {"learning_rate": NON_NEGATIVE, "epsilon": NON_NEGATIVE}
    state_names = ("sum_of_squares",)
    scratch_names = ("change",)

    def __init__(self, learning_rate: float = 0.01, epsilon: float = 1e-10) -> None:
        self.learning_rate = learning_rate
        self.epsilon = epsilon

    def scalars(self) -> dict[str, float]:
        """Return the numbers of the formula."""
        return {"minus_rate": -self.learning_rate, "epsilon": self.epsilon}

    def update(self) -> None:
        """Do the formula."""
        h, change, squares = self.handler, self.scratch["change"], self.state["sum_of_squares"]
        h.mult_add_tt(self.gradients, self.gradients, squares)
        h.sqrt_t(squares, change)
        h.add_st(self.numbers["epsilon"], change, change)
        h.divide_tt(self.gradients, change, change)
        h.mult_add_st(self.numbers["minus_rate"], change, self.parameters)


class AdadeltaStepper(TrainingStepper):
    """Adadelta: the size of the steps follows from the sizes of gradients and steps so far.

    ``s = decay * s + (1 - decay) * g²; d = g * sqrt(u + epsilon) / sqrt(s + epsilon);
    u = decay * u + (1 - decay) * d²; p -= learning_rate * d``
    (Zeiler, arXiv:1212.5701, whose learning rate is 1; defaults as in PyTorch).
    """

    hyperparameters = {"learning_rate": NON_NEGATIVE, "decay": FRACTION, "epsilon": NON_NEGATIVE}
    state_names = ("mean_square", "mean_square_change")
    scratch_names = ("change", "divisor")

    def __init__(
        self, learning_rate: float = 1.0, decay: float = 0.9, epsilon: float = 1e-6
    ) -> None:
        self.learning_rate = learning_rate
        self.decay = decay
        self.epsilon = epsilon

    scalars = RMSPropStepper.scalars

    def update(self) -> None:
        """Do the formula."""
        h, epsilon = self.handler, self.numbers["epsilon"]
        change, divisor = self.scratch["change"], self.scratch["divisor"]
        square, square_change = self.state["mean_square"], self.state["mean_square_change"]
        h.mult_tt(self.gradients, self.gradients, change)
        self._average(change, "decay", "rest", square)
        h.add_st(epsilon, square_change, change)
        h.add_st(epsilon, square, divisor)
        h.divide_tt(change, divisor, change)
        h.sqrt_t(change, change)
        h.mult_tt(change, self.gradients, change)
        h.mult_add_st(self.numbers["minus_rate"], change, self.parameters)
        h.mult_tt(change, change, change)
        self._average(change, "decay", "rest", square_change)


class AdamStepper(TrainingStepper):
    """Adam: momentum and root mean square of the gradients, both corrected for their start.

    ``m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g²;
    p -= learning_rate * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)`` at step t
    (Kingma and Ba, arXiv:1412.6980, with its defaults).
    """

    hyperparameters = {
        "learning_rate": NON_NEGATIVE,
        "beta1": FRACTION,
        "beta2": FRACTION,
        "epsilon": NON_NEGATIVE,
    }
    state_names = ("first_moment", "second_moment")
    scratch_names = ("change",)

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
    ) -> None:
        self.learning_rate = learning_rate
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon

    def scalars(self) -> dict[str, float]:
        """Return the numbers of the formula; those of both corrections change with the step."""
        step = max(self.steps, 1)
        return {
            "minus_rate": -self.learning_rate / (1.0 - self.beta1**step),
            "second_correction": 1.0 / math.sqrt(1.0 - self.beta2**step),
            "beta1": self.beta1,
            "rest1": 1.0 - self.beta1,
            "beta2": self.beta2,
            "rest2": 1.0 - self.beta2,
            "epsilon": self.epsilon,
        }

    def update(self) -> None:
        """Do the formula."""
        h, change = self.handler, self.scratch["change"]
        first, second = self.state["first_moment"], self.state["second_moment"]
        self._average(self.gradients, "beta1", "rest1", first)
        h.mult_tt(self.gradients, self.gradients, change)
        self._average(change, "beta2", "rest2", second)
        h.sqrt_t(second, change)
        h.mult_st(self.numbers["second_correction"], change, change)
        h.add_st(self.numbers["epsilon"], change, change)
        h.divide_tt(first, change, change)
        h.mult_add_st(self.numbers["minus_rate"], change, self.parameters)


class AdamWStepper(AdamStepper):
    """Adam with decoupled weight decay: ``p *= 1 - learning_rate * weight_decay`` before Adam.

    The decay reaches all parameters, biases too. (Loshchilov and Hutter, arXiv:1711.05101;
    the default decay as in PyTorch.)
    """

    hyperparameters = {**AdamStepper.hyperparameters, "weight_decay": NON_NEGATIVE}

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon)
        self.weight_decay = weight_decay

    def scalars(self) -> dict[str, float]:
        """Return the numbers of Adam and the factor of the parameters."""
        return {**super().scalars(), "keep": 1.0 - self.learning_rate * self.weight_decay}

    def update(self) -> None:
        """Shrink the parameters, then do Adam's update."""
        self.handler.mult_st(self.numbers["keep"], self.parameters, self.parameters)
        super().update()
