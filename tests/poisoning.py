"""The hardest legal use of memory: whatever the plan no longer keeps is spoiled at once."""

import numpy as np

from brainstorm.structure.placement import without_sharing


def poison(net):
    """Give every buffer memory of its own, and fill it with NaN after steps it need not survive.

    Args:
        net: A network with memory strategy `compact` on a NumpyHandler.
    """
    manager, end = net._buffer_manager, 2 * len(net.layers) - 1
    ends = (len(net.layers) - 1, end)  # of the passes: there it can still be read
    lifetimes = [hub.lifetime for hub in manager.hubs]
    manager.set_layout(manager.layout, without_sharing(manager.hubs), manager.handler)

    def survives(lifetime, position):
        if lifetime is None:
            return True
        first, last = lifetime
        return first <= position < last or position == last in ends

    def spoil(position):
        for lifetime, buffer in zip(lifetimes, manager.buffers, strict=True):
            if not survives(lifetime, position):
                buffer[...] = np.nan

    def after(function, position_of):
        def wrapped(*args):
            function(*args)
            spoil(position_of(*args))

        return wrapped

    names = list(net.layers)
    for position, layer in enumerate(net.layers.values()):
        layer.forward_pass = after(layer.forward_pass, lambda *_, p=position: p)
    net._passes._backward_step = after(
        net._passes._backward_step,
        lambda step: end - names.index(step.layer) if step.layer else end,
    )
