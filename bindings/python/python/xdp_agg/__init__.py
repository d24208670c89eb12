"""All-reduce through an aggregator in the network.

>>> import numpy, xdp_agg
>>> with xdp_agg.Communicator() as comm:      # settings: arguments, or the environment
...     gradients = numpy.ones(1000, "float32")
...     comm.all_reduce(gradients, op="mean")  # in place
Report(precision='exact', path='aggregator', blocks=..., redone=0)

* :class:`Communicator`: a worker's membership in a job, and its collectives on arrays.
* :class:`Handle`: a call in flight. :class:`Report`: what became of a call.
* :class:`Error` and the exceptions derived from it.
* :mod:`xdp_agg.torch`, :mod:`xdp_agg.jax`, :mod:`xdp_agg.mpi`: PyTorch, JAX and MPI.
* ``python -m xdp_agg doctor``: what is wrong with this worker's network, and its cure.
"""

from xdp_agg._errors import (
    Aborted,
    AggregatorLost,
    CallMismatch,
    Closed,
    Config,
    Deadline,
    Error,
    Forked,
    MemberLost,
    Refused,
    Unreachable,
    Unsupported,
)
from xdp_agg._xdp_agg import Communicator, Handle, Report, __version__

__all__ = [
    "Aborted",
    "AggregatorLost",
    "CallMismatch",
    "Closed",
    "Communicator",
    "Config",
    "Deadline",
    "Error",
    "Forked",
    "Handle",
    "MemberLost",
    "Refused",
    "Report",
    "Unreachable",
    "Unsupported",
    "__version__",
]

# People see the public names, in messages and in pickles.
for _class in (
    Aborted,
    AggregatorLost,
    CallMismatch,
    Closed,
    Config,
    Deadline,
    Error,
    Forked,
    MemberLost,
    Refused,
    Unreachable,
    Unsupported,
):
    _class.__module__ = "xdp_agg"
del _class
