"""What an HDF5 file may hold that no file of the package does."""

import h5py
import numpy as np


def _virtual(file, path):
    layout = h5py.VirtualLayout((10,), "u1")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (10,))
    file.create_virtual_dataset(path, layout)


def _data_set(*args, **options):
    return lambda file, path: file.create_dataset(path, *args, **options)


#: What it is, and a function that puts it at a path of a file.
HOSTILE = {
    "external link": lambda file, path: file.update({path: h5py.ExternalLink("/etc/passwd", "/")}),
    "soft link": lambda file, path: file.update({path: h5py.SoftLink("/parameters")}),
    "cycle": lambda file, path: file.update({path: file[path.rpartition("/")[0] or "/"]}),
    "terabytes": _data_set((10**7, 10**7), "f4", chunks=(100, 100)),
    "bomb": _data_set(data=np.zeros(10**6, "u1"), chunks=(10**6,), compression="gzip"),
    "external data": _data_set((10,), "u1", external=[("/etc/passwd", 0, 10)]),
    "virtual": _virtual,
    "filter": _data_set(data=np.arange(99), compression="lzf"),
    "scaled": _data_set(data=np.arange(99), scaleoffset=0),
    "checked": _data_set(data=np.arange(99), fletcher32=True),
    "records": _data_set(data=np.zeros(3, "i4,f8")),
    "references": lambda file, path: _data_set(data=[file.ref], dtype=h5py.ref_dtype)(file, path),
    "nothing": _data_set(data=h5py.Empty("f4")),
    "deep": lambda file, path: file.create_dataset("/".join(["g"] * 200), data=0),
    "texts": _data_set(data=["a"] * 9, dtype=h5py.string_dtype()),
}
