"""What a training step, an import and a layout cost; run by ``make bench``."""

import os

#: For everybody who is measured. Libraries read it when they are loaded, so it is set here.
THREADS = 2

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PJRT_NPROC"):
    os.environ[_name] = str(THREADS)
