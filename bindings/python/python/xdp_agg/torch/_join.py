"""How a group becomes a job: at its first native call, under a name that its rank 0 chose."""

from __future__ import annotations

import logging
import os
import secrets
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import Store

import xdp_agg
from xdp_agg import _xdp_agg

from . import _place
from ._engine import Aggregated, Alone, Engine

log = logging.getLogger("xdp_agg.torch")

#: Slots of all processes of a host in the default group: the daemon's own default.
HOST_SLOTS = 1024
#: Slots of any other group: 32 of them fit beside the default group into a daemon as it comes.
GROUP_SLOTS = 128
#: The longest that ranks take to join once all of them have called, in seconds, where
#: XDP_AGG_JOIN_DEADLINE does not say otherwise.
JOIN = 30.0
#: For how long a rank that could not join looks whether another one was refused, in seconds.
REFUSAL = 5.0
#: Seconds after which the ranks that are waited for are named.
SILENCE = 10.0

_has_warned = False


class Membership:
    """A group before it is a job, and what its ranks have to tell each other to become one."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        name: str,
        is_default: bool,
        inner: Callable[[], Engine] | None,
        settings: dict[str, Any],
    ) -> None:
        """`inner` carries calls out where the daemon has no room; None: then it is an error.

        All ranks of the group make theirs.
        """
        self.rank, self.size, self.name = rank, size, name
        self._is_default = is_default
        self._inner = inner
        self._settings = settings
        # A group of the same name may have been there before: its keys are still in the store.
        life = store.add(f"xdp-agg/life/{rank}", 1)
        self._store = c10d.PrefixStore(f"xdp-agg/{life}", store)
        self._store.set(f"host/{rank}", _place.identity())
        if rank == 0:
            prefix = os.environ.get("XDP_AGG_JOB", "torch")[:40]
            self._store.set("job", f"{prefix}-{secrets.token_hex(6)}")

    @property
    def store(self) -> Store:
        """The group's part of the store, which no earlier group of the name has used."""
        return self._store

    def hosts(self) -> list[str]:
        """The identities of all ranks' hosts."""
        return [self._store.get(f"host/{rank}").decode() for rank in range(self.size)]

    def join(self, timeout: float, is_closed: Callable[[], bool]) -> Engine:
        """Waits for all ranks, and joins. `timeout` is in seconds."""
        if self.size == 1:
            return Alone()
        self._arrive(timeout, is_closed)
        hosts = self.hosts()
        job = self._store.get("job").decode()
        own = os.environ.get("XDP_AGG_JOIN_DEADLINE")
        refusals = []
        for number, place in enumerate(self._places(hosts)):
            local_rank, local_size = place or (None, None)
            settings = {
                "job": f"{job}-{number}",
                "in_host": place is not None,
                "local_rank": local_rank,
                "local_size": local_size,
                "slots": self._slots(hosts),
                "deadline": timeout,
                "join_deadline": None if own else min(timeout, JOIN),
                **self._settings,
            }
            try:
                communicator = _xdp_agg.Communicator(
                    rank=self.rank, world_size=self.size, **settings
                )
            except xdp_agg.Error as error:
                refusals.append(self._refusal(error, number))
                continue
            log.info("group %s: rank %d joined, %s", self.name, self.rank, communicator.engine)
            return Aggregated(communicator)
        if self._inner is None:
            raise refusals[0]
        if self.rank == 0:
            _warn(self.name, refusals[-1])
        return self._inner()

    def _places(self, hosts: list[str]) -> list[tuple[int, int] | None]:
        """Local ranks and sizes to join with, the best first; None: each process for itself.

        With them a group takes a job for each process of a host, and one without: too much for
        groups of a mesh that lie on one host, where it would save nothing.
        """
        place = _place.placement(hosts, self.rank)
        if self._is_default:
            return [place]
        return [None] if place is None or place[1] == self.size else [place, None]

    def _slots(self, hosts: list[str]) -> int | None:
        if not self._is_default:
            return GROUP_SLOTS
        if os.environ.get("XDP_AGG_JOB_SLOTS"):
            return None
        share = HOST_SLOTS // _place.most_on_a_host(hosts)
        return max(GROUP_SLOTS, 1 << (share.bit_length() - 1) if share else 0)

    def _arrive(self, timeout: float, is_closed: Callable[[], bool]) -> None:
        """Waits until all ranks have made a call.

        The daemon would wait as well, but it keeps a job's slots meanwhile, and ends the job when
        its own time is over.
        """
        store, began = self._store, time.monotonic()
        store.set(f"here/{self.rank}", "1")
        if store.add("here", 1) == self.size:
            store.set("all", "1")
        pause, said = 0.0002, 0.0
        # Asked again and again: a wait would keep others from the store's only connection.
        while not store.check(["all"]):
            waited = time.monotonic() - began
            if is_closed():
                raise xdp_agg.Closed("the group was destroyed before all its ranks had called")
            if waited > timeout:
                missing = self._missing()
                error = xdp_agg.Deadline(
                    f"group {self.name}: Timed out after {timeout:g} s: no call of ranks {missing}"
                )
                error.ranks = tuple(missing)
                raise error
            if waited > said + SILENCE:
                said = waited
                log.warning(
                    "group %s: after %.0f s waiting for the first call of ranks %s, for at most "
                    "the group's timeout of %g s",
                    self.name,
                    waited,
                    self._missing(),
                    timeout,
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)

    def _missing(self) -> list[int]:
        return [rank for rank in range(self.size) if not self._store.check([f"here/{rank}"])]

    def _refusal(self, error: Exception, number: int) -> Exception:
        """That a rank was refused at this try. Any other error is raised.

        A job starts when all ranks have joined. So where one was refused, none has got in, and all
        come here.
        """
        key = f"refused/{number}"
        if _is_refusal(error):
            self._store.set(key, str(error))
            return error
        if isinstance(error, xdp_agg.Config | xdp_agg.Unreachable):
            raise error
        # Of the processes of a host one asks for all; and a rank that was let in waits in vain.
        until = time.monotonic() + REFUSAL
        try:
            while not self._store.check([key]):
                if time.monotonic() > until:
                    raise error
                time.sleep(0.02)
            return xdp_agg.Refused(self._store.get(key).decode())
        except dist.DistError:
            # The store is gone, with the rank that has it.
            raise error from None


def _is_refusal(error: Exception) -> bool:
    """The daemon has no room, or the topology is for another set of hosts."""
    if isinstance(error, xdp_agg.Config):
        return bool(os.environ.get("XDP_AGG_TOPOLOGY"))
    return isinstance(error, xdp_agg.Refused) and error.code in ("no_room", "limit")


def _warn(name: str, refusal: Exception) -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        warnings.warn(
            f"group {name} goes over gloo, as may others: {refusal}", RuntimeWarning, stacklevel=2
        )
