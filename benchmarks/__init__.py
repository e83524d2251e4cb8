"""What a training step, an import and a layout cost; run by ``make bench``."""

import os

#: For everybody who is measured. Libraries read it when they are loaded, so it is set here.
THREADS = 2

for _name in ("OMP", "MKL", "OPENBLAS"):
    os.environ[f"{_name}_NUM_THREADS"] = str(THREADS)
