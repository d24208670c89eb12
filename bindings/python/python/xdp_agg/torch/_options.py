"""What a group can be told when it is made."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as c10d

from ._numbers import Precision, checked

_TIMEOUT = timedelta(minutes=30)


class Options(c10d.Backend.Options):
    """Settings of a group, for `init_process_group(..., pg_options=Options(precision="exact"))`.

    What is not given comes from the environment. Groups that are made without options of their own
    have those of the default group, but for the slots. All ranks of a group give the same.
    """

    def __init__(
        self,
        *,
        precision: Precision | None = None,
        slots: int | None = None,
        address: str | None = None,
        timeout: timedelta = _TIMEOUT,
        **communicator: Any,
    ) -> None:
        """
        Args:
            precision: Of sums of floats: ``"exact"`` or ``"gradient"``. Without it exact up to
                64 KiB, and gradient above.
            slots: Of the job's pool, a power of two. Without it 1024, divided by the processes of
                a host, for the default group, and 128 for others.
            address: Of the daemon, ``host`` or ``host:port``; else ``XDP_AGG_ADDR``.
            timeout: What PyTorch wants to find here; the group's is the argument of
                `init_process_group` or `new_group`.
            communicator: Other arguments of `xdp_agg.Communicator`, such as ``lanes=16``.
        """
        super().__init__("xdp-agg", timeout)
        own = {"rank", "world_size", "local_rank", "local_size", "in_host", "job", "deadline"}
        if wrong := sorted(own & communicator.keys()):
            raise TypeError(f"the group chooses {', '.join(wrong)}; leave it out of its options")
        #: Arguments of the group's communicator.
        self.settings: dict[str, Any] = dict(communicator)
        if precision is not None:
            self.settings["precision"] = checked(precision)
        if slots is not None:
            self.settings["slots"] = slots
        if address is not None:
            self.settings["address"] = address

    def of_subgroups(self) -> dict[str, Any]:
        """The settings of groups without options."""
        return {name: value for name, value in self.settings.items() if name != "slots"}
