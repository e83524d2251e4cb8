"""Everything for a script in one flat namespace: ``from brainstorm.all import *``.

It holds the public names of the packages below and of `brainstorm` itself, and no modules.

Where a layer shares its name with something else (Accuracy with a scorer, L1Decay and L2Decay with
gradient modifiers), the plain name is that of the other; the layer is AccuracyLayer, L1DecayLayer
or L2DecayLayer.
"""

from __future__ import annotations

from brainstorm import *
from brainstorm.data_iterators import *
from brainstorm.handlers import *
from brainstorm.hooks import *
from brainstorm.initializers import *
from brainstorm.layers import *
from brainstorm.layers import Accuracy as AccuracyLayer
from brainstorm.layers import L1Decay as L1DecayLayer
from brainstorm.layers import L2Decay as L2DecayLayer
from brainstorm.scorers import *  # type: ignore[assignment]  # Accuracy is the scorer
from brainstorm.tools import *
from brainstorm.training import *
from brainstorm.value_modifiers import *  # type: ignore[assignment]  # L1Decay, L2Decay as well

__all__ = [
    "AccuracyLayer",
    "L1DecayLayer",
    "L2DecayLayer",
    "Network",
    "Trainer",
    "__version__",
    "create_from_description",
    "generate_architecture",
    "get_description",
    "global_rnd",
]
__all__ += data_iterators.__all__
__all__ += handlers.__all__
__all__ += hooks.__all__
__all__ += initializers.__all__
__all__ += layers.__all__
__all__ += scorers.__all__
__all__ += tools.__all__
__all__ += training.__all__
__all__ += value_modifiers.__all__
