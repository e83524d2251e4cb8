"""Batch optimisers of SciPy as steppers: L-BFGS over the flat buffer of all parameters.

    trainer = Trainer(LbfgsStepper(iterations=20))
    trainer.train(net, Undivided(default=x, targets=t))

The loss must be a function of the parameters only, so give them all data at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from brainstorm.constraints import number
from brainstorm.errors import TrainingError
from brainstorm.network.generators import streams_of
from brainstorm.optional import require
from brainstorm.training.base_stepper import TrainingStepper

__all__ = ["LbfgsStepper"]


@dataclass(eq=False, repr=False)
class LbfgsStepper(TrainingStepper):
    """Limited-memory BFGS with a line search (Byrd et al. 1995; `scipy.optimize.minimize`).

    One step is a whole minimisation on the present batch, of so many iterations, which starts
    without knowledge of the curvature. So no state is kept between steps: a run that is resumed
    between two steps continues exactly. SciPy computes in float64; parameters and gradients are
    copied back and forth.

    Args:
        iterations: Maximum number of iterations of a step; each takes one or a few passes.
        history: Number of changes of the gradients from which the curvature is estimated.

    Attributes:
        message: SciPy's reason for the end of the last step.
        passes: Number of forward and backward passes in the last step.
    """

    iterations: int = 20
    history: int = 10

    __undescribed__ = {"message", "passes"}

    message = ""
    passes = 0

    hyperparameters = {"iterations": number(1), "history": number(1)}

    def start(self, net: Any) -> None:
        """Attach to a network.

        Raises:
            MissingDependencyError: SciPy is not installed.
            TrainingError: Loss or gradients are not functions of the parameters, because of a
                layer that draws random numbers, a gradient modifier, a limit of the gradients'
                norm, or a scale.
        """
        require("scipy.optimize", "scipy")
        self._check(net)
        super().start(net)

    def _check(self, net: Any) -> None:
        for name, layer in net.layers.items():
            if streams_of(layer):
                raise TrainingError(
                    f"LbfgsStepper, layer {name!r}: with {layer.type_name} the loss is "
                    f"another function in every pass. Take the layer out, or another stepper."
                )
        if net.gradient_modifiers:
            raise TrainingError(
                f"LbfgsStepper: expected gradients of the loss, got gradient modifiers of "
                f"{', '.join(net.gradient_modifiers)}. Wire penalties as layers: layer - "
                f"'..parameters.W' >> L2Decay() - 'loss' >> Loss()."
            )
        if net.weight_modifiers:
            raise TrainingError(
                f"LbfgsStepper: expected parameters without constraints, got modifiers "
                f"of {', '.join(net.weight_modifiers)}: the line search would not see them."
            )
        for option in ("max_gradient_norm", "loss_scaling", "accumulation", "groups", "reducer"):
            if getattr(self, option):
                raise TrainingError(
                    f"LbfgsStepper: expected no {option}: the line search needs the "
                    f"gradients of all parameters, as they are."
                )

    def run(self) -> None:
        """Minimise the loss on the data in the network.

        Raises:
            TrainingError: Something was set that `start` would have refused.
        """
        self._do(self._minimise)

    def _minimise(self) -> None:
        self._check(self.net)
        self.passes = 0
        start = self.handler.get_numpy_copy(self.parameters)
        try:
            with self.net.separate_statistics():  # of the points that are tried
                result = require("scipy.optimize", "scipy").minimize(
                    self._loss_and_gradients,
                    start.astype(np.float64),
                    jac=True,
                    method="L-BFGS-B",
                    options={"maxiter": int(self.iterations), "maxcor": int(self.history)},
                )
            self._loss_and_gradients(result.x)  # the last point tried need not be the best
        except BaseException:
            self.handler.set_from_numpy(self.parameters, start)
            raise
        self.message = str(result.message)

    def _loss_and_gradients(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the loss and a copy of the gradients at a point."""
        self.passes += 1
        self.handler.set_from_numpy(self.parameters, parameters)
        self.do_traced("do_passes")
        gradients = self.handler.get_numpy_copy(self.gradients)
        return self.net.get_loss_values()["total_loss"], gradients.astype(np.float64)
