"""Reading HDF5 without libhdf5, which crashes on damaged and malicious files.

Only features that h5py writes by default are supported: groups, data sets of numbers and texts
(contiguous, or in chunks with or without gzip and shuffle), and texts as attributes of the root
group. Links to other locations and files, data in other files, virtual data sets, other filters
(which may be plugins) and second names of one object are not supported. The file is untrusted:
every address and size is checked against the file, and at most a few times its size is read
altogether, so that neither cycles nor bombs take more time or memory than the size allows for.

The format: "HDF5 File Format Specification Version 3.0", The HDF Group.
"""

from __future__ import annotations

from brainstorm.hdf5.data_sets import DataSet
from brainstorm.hdf5.messages import MalformedError
from brainstorm.hdf5.reader import Group, open_hdf5

__all__ = ["DataSet", "Group", "MalformedError", "open_hdf5"]
