"""Steppers that scale the step of every parameter by the size of its gradients so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.training.base_stepper import TrainingStepper
from brainstorm.training.hyperparameters import FRACTION, NON_NEGATIVE


@formula
def rmsprop(
    p: Any, g: Any, square: Any, rate: Any, decay: Any, rest: Any, epsilon: Any
) -> list[Any]:
    """Return the parameters and the mean square; ``rest`` is ``1 - decay``."""
    square = decay * square + rest * fn.square(g)
    return [p - rate * (g / (fn.sqrt(square) + epsilon)), square]


@dataclass(eq=False, repr=False)
class RMSPropStepper(TrainingStepper):
    """RMSProp: steps are divided by a running root mean square of the gradients.

    ``s = decay * s + (1 - decay) * g²; p -= learning_rate * g / (sqrt(s) + epsilon)``
    (Tieleman and Hinton, COURSERA lecture 6.5, 2012; defaults as in PyTorch).
    """

    learning_rate: float = 0.01
    decay: float = 0.99
    epsilon: float = 1e-8

    is_traceable = True
    hyperparameters = {"learning_rate": NON_NEGATIVE, "decay": FRACTION, "epsilon": NON_NEGATIVE}
    rule = rmsprop
    state_names: ClassVar[tuple[str, ...]] = ("mean_square",)

    def scalars(self) -> dict[str, float]:
        return {
            "rate": self.learning_rate,
            "decay": self.decay,
            "rest": 1.0 - self.decay,
            "epsilon": self.epsilon,
        }


@formula
def centered_rmsprop(
    p: Any, g: Any, square: Any, mean: Any, velocity: Any,
    rate: Any, decay: Any, rest: Any, epsilon: Any, momentum: Any,
) -> list[Any]:  # fmt: skip
    """Return the parameters, mean square, mean and velocity; ``rest`` is ``1 - decay``."""
    square = decay * square + rest * fn.square(g)
    mean = decay * mean + rest * g
    variance = fn.maximum(square - fn.square(mean), 0.0)  # rounding may make it negative
    velocity = momentum * velocity + g / (fn.sqrt(variance) + epsilon)
    return [p - rate * velocity, square, mean, velocity]


@dataclass(eq=False, repr=False)
class CenteredRMSPropStepper(RMSPropStepper):
    """RMSProp with the standard deviation of the gradients, and with momentum.

    ``s = decay * s + (1 - decay) * g²; m = decay * m + (1 - decay) * g;
    v = momentum * v + g / (sqrt(s - m²) + epsilon); p -= learning_rate * v``
    (Graves, arXiv:1308.0850, eq. 38 to 45; defaults as in `RMSPropStepper`).
    """

    momentum: float = 0.9

    is_traceable = True
    hyperparameters = {**RMSPropStepper.hyperparameters, "momentum": FRACTION}
    rule = centered_rmsprop
    state_names = ("mean_square", "mean", "velocity")

    def scalars(self) -> dict[str, float]:
        return {**super().scalars(), "momentum": self.momentum}


@formula
def adagrad(p: Any, g: Any, squares: Any, rate: Any, epsilon: Any) -> list[Any]:
    """Return the parameters and the sum of squares."""
    squares = squares + fn.square(g)
    return [p - rate * (g / (fn.sqrt(squares) + epsilon)), squares]


@dataclass(eq=False, repr=False)
class AdagradStepper(TrainingStepper):
    """Adagrad: steps are divided by the root of the sum of all squared gradients so far.

    ``s += g²; p -= learning_rate * g / (sqrt(s) + epsilon)``
    (Duchi, Hazan and Singer, JMLR 12, 2011; defaults as in PyTorch).
    """

    learning_rate: float = 0.01
    epsilon: float = 1e-10

    is_traceable = True
    hyperparameters = {"learning_rate": NON_NEGATIVE, "epsilon": NON_NEGATIVE}
    rule = adagrad
    state_names = ("sum_of_squares",)

    def scalars(self) -> dict[str, float]:
        return {"rate": self.learning_rate, "epsilon": self.epsilon}


@formula
def adadelta(
    p: Any, g: Any, square: Any, change_square: Any, rate: Any, decay: Any, rest: Any, epsilon: Any
) -> list[Any]:
    """Return the parameters, and the mean squares of gradients and of changes."""
    square = decay * square + rest * fn.square(g)
    change = fn.sqrt((change_square + epsilon) / (square + epsilon)) * g
    return [p - rate * change, square, decay * change_square + rest * fn.square(change)]


@dataclass(eq=False, repr=False)
class AdadeltaStepper(TrainingStepper):
    """Adadelta: the step size follows from the sizes of the gradients and steps so far.

    ``s = decay * s + (1 - decay) * g²; d = g * sqrt(u + epsilon) / sqrt(s + epsilon);
    u = decay * u + (1 - decay) * d²; p -= learning_rate * d``
    (Zeiler, arXiv:1212.5701, whose learning rate is 1; defaults as in PyTorch).
    """

    learning_rate: float = 1.0
    decay: float = 0.9
    epsilon: float = 1e-6

    is_traceable = True
    hyperparameters = {"learning_rate": NON_NEGATIVE, "decay": FRACTION, "epsilon": NON_NEGATIVE}
    rule = adadelta
    state_names = ("mean_square", "mean_square_change")

    scalars = RMSPropStepper.scalars


@formula
def adam(
    p: Any, g: Any, first: Any, second: Any, rate: Any, correction: Any,
    beta1: Any, rest1: Any, beta2: Any, rest2: Any, epsilon: Any,
) -> list[Any]:  # fmt: skip
    """Return the parameters and both moments, given the values of `scalars`, corrected."""
    first = beta1 * first + rest1 * g
    second = beta2 * second + rest2 * fn.square(g)
    change = first / (correction * fn.sqrt(second) + epsilon)
    return [p - rate * change, first, second]


@formula
def adam_correction(
    weight1: Any, weight2: Any, rate: Any, correction: Any,
    beta1: Any, rest1: Any, beta2: Any, rest2: Any, *others: Any,
) -> list[Any]:  # fmt: skip
    """Return the weights, which are 1 - beta^t after t updates, and the corrected numbers."""
    weight1 = beta1 * weight1 + rest1
    weight2 = beta2 * weight2 + rest2
    return [weight1, weight2, rate / weight1, correction / fn.sqrt(weight2)]


@dataclass(eq=False, repr=False)
class AdamStepper(TrainingStepper):
    """Adam: momentum and root mean square of the gradients, both with bias correction.

    ``m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g²;
    p -= learning_rate * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)`` at step t
    (Kingma and Ba, arXiv:1412.6980, with its defaults). Steps in which parameters were frozen, or
    that `LossScaling` skipped, do not count in t.
    """

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    is_traceable = True
    hyperparameters = {
        "learning_rate": NON_NEGATIVE,
        "beta1": FRACTION,
        "beta2": FRACTION,
        "epsilon": NON_NEGATIVE,
    }
    rule = adam
    state_names: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")
    correction = adam_correction
    weight_names = ("first_weight", "second_weight")
    corrected_names = ("rate", "correction")

    def scalars(self) -> dict[str, float]:
        return {
            "rate": self.learning_rate,
            "correction": 1.0,
            "beta1": self.beta1,
            "rest1": 1.0 - self.beta1,
            "beta2": self.beta2,
            "rest2": 1.0 - self.beta2,
            "epsilon": self.epsilon,
        }


@formula
def amsgrad(
    p: Any, g: Any, first: Any, second: Any, largest: Any, rate: Any, correction: Any,
    beta1: Any, rest1: Any, beta2: Any, rest2: Any, epsilon: Any,
) -> list[Any]:  # fmt: skip
    """Return the parameters, both moments and the largest second one, like `adam`."""
    first = beta1 * first + rest1 * g
    second = beta2 * second + rest2 * fn.square(g)
    largest = fn.maximum(largest, second)
    change = first / (correction * fn.sqrt(largest) + epsilon)
    return [p - rate * change, first, second, largest]


class AmsGradStepper(AdamStepper):
    """Adam with the largest mean square so far in place of the present one.

    So steps do not grow where large gradients are rare. (Reddi, Kale and Kumar, ICLR 2018; both
    moments have bias correction, as in PyTorch.)
    """

    is_traceable = True
    rule = amsgrad
    state_names = (*AdamStepper.state_names, "largest_second_moment")


@formula
def adamw(p: Any, g: Any, first: Any, second: Any, *numbers: Any) -> list[Any]:
    """Multiply the parameters by the last number, then do the update of Adam."""
    *numbers_of_adam, keep = numbers
    return adam(keep * p, g, first, second, *numbers_of_adam)


@dataclass(eq=False, repr=False)
class AdamWStepper(AdamStepper):
    """Adam with decoupled weight decay: ``p *= 1 - learning_rate * weight_decay`` before Adam.

    The decay applies to all parameters, including biases. (Loshchilov and Hutter,
    arXiv:1711.05101; the default decay is that of PyTorch.)
    """

    weight_decay: float = 0.01

    is_traceable = True
    hyperparameters = {**AdamStepper.hyperparameters, "weight_decay": NON_NEGATIVE}
    rule = adamw

    def scalars(self) -> dict[str, float]:
        return {**super().scalars(), "keep": 1.0 - self.learning_rate * self.weight_decay}
