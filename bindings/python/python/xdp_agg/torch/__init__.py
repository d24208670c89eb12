"""PyTorch's collectives through the aggregator.

A backend of `torch.distributed`::

    import xdp_agg.torch                      # torch 2.14 and later find it by themselves
    dist.init_process_group("xdp-agg")

or a hook for DDP, beside any backend::

    ddp.register_comm_hook(xdp_agg.torch.State(), xdp_agg.torch.allreduce_hook)

docs/pytorch.md says what goes through the aggregator, and what does not.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ._backend import group_of, register
from ._hooks import State, allreduce_hook, hierarchical_hook
from ._numbers import Precision, precision
from ._options import Options

__all__ = [
    "Options",
    "Precision",
    "State",
    "allreduce_hook",
    "hierarchical_hook",
    "precision",
    "register",
    "stats",
]


def stats(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """What this rank has called in a group (the default one), and what carried it out.

    ``engine`` is ``"xdp-agg"``, or ``"gloo"`` where the daemon had no room for a subgroup, or None
    before the first native call. ``calls`` counts calls by their names; those that gloo did begin
    with ``gloo``. ``communicator`` is what `xdp_agg.Communicator.stats` says.
    """
    ours = group_of(group)
    if ours is None:
        raise ValueError("this group's backend is not xdp-agg")
    return ours.stats()


register()
