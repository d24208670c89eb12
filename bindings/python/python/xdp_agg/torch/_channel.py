"""The one way of a group's calls to their engine, in the order in which they come."""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import torch
from torch.futures import Future

import xdp_agg

from ._engine import Aggregated, Call, Engine
from ._join import Membership
from ._staging import Copies, DeviceCopies, Stage, StagedCall
from ._work import Work

#: How long a thread that issues calls stays for the next one, in seconds.
IDLE = 5.0
#: What the names of spans begin with, as PyTorch has them of its own backends.
SPANS = "xdp-agg"
#: How long the end of the process waits for such a thread: it may be joining the job.
LAST = 35.0


#: PyTorch's profiler looks on.
_profiler_enabled: Callable[[], bool] = torch._C._autograd._profiler_enabled


def _shown(call: Call, issue: Callable[[], Work]) -> Work:
    """Issues the call; PyTorch's profiler, if it looks on, sees it from beginning to end."""
    if not _profiler_enabled():
        return issue()
    with torch.autograd.profiler.record_function(f"{SPANS}:{call.task}") as span:
        work = issue()
        over: Future[None] = Future()
        span._call_end_callbacks_on_future(over)
        work.before_waits_end(lambda: over.set_result(None))
    return work


class _Queue:
    """Calls that cannot be issued at once, and the thread that issues them one after the other."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()
        #: Jobs that are not over.
        self.left = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def put(self, job: Callable[[], None]) -> None:
        """Runs the job, which must not raise, after those that were put before."""
        with self._changed:
            self._jobs.append(job)
            self.left += 1
            if self._thread is None:
                # No end of the process waits for it: `close` does, which gives it work up before.
                self._thread = threading.Thread(
                    target=self._serve, name="xdp-agg calls", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._is_closed, IDLE)
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs.popleft()
            job()
            del job
            with self._changed:
                self.left -= 1

    def close(self) -> None:
        """Waits for the jobs that are there; they end soon, for their engine is closed."""
        with self._changed:
            thread, self._is_closed = self._thread, True
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(LAST)


class Channel:
    """Joins the job at the first call, and carries calls out.

    A call is issued by the thread that makes it, unless it would have to wait: an asynchronous one
    for the other ranks to join, one of an accelerator's memory for copies. Those, and all that are
    made meanwhile, are issued by a thread of the channel's own.
    """

    def __init__(
        self,
        membership: Membership | None,
        timeout: float,
        *,
        engine: Engine | None = None,
        copies: Callable[[torch.device], Copies] = DeviceCopies,
    ) -> None:
        """`timeout` in seconds: of a call, and of the way into the job."""
        self.timeout = timeout
        self._membership = membership
        self._engine = engine
        #: Of joining: no call can be made.
        self._error: BaseException | None = None
        #: Of a call.
        self._failure: BaseException | None = None
        self._joining = threading.Lock()
        self._queue = _Queue()
        self._is_closed = False
        #: Why it was aborted.
        self._reason: str | None = None
        self._pid = os.getpid()
        self._stages: dict[torch.device, Stage] = {}
        self._copies = copies
        #: Calls by task.
        self.calls: Counter[str] = Counter()

    @property
    def engine(self) -> Engine | None:
        """The engine that carries calls out; None: there has been none yet."""
        return self._engine

    def at_once(self) -> Aggregated | None:
        """The engine that may be given a call now, on this thread. None: `issue` has something else
        to do with it, or an error to tell.
        """
        engine = self._engine
        if (
            not isinstance(engine, Aggregated)
            or self._queue.left
            or _profiler_enabled()
            or self._is_over()
            or os.getpid() != self._pid
        ):
            return None
        return engine

    @property
    def error(self) -> BaseException | None:
        """The first error of joining or of a call."""
        return self._error or self._failure

    def failed(self, error: BaseException) -> None:
        """Remembers the first error of a call."""
        self._failure = self._failure or error

    def join(self) -> Engine:
        """The engine that carries calls out. Waits for all ranks to come here, once."""
        with self._joining:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._engine is None:
                assert self._membership is not None
                try:
                    engine = self._membership.join(self.timeout, self._is_over)
                except BaseException as error:
                    # The others may be in by now, so not all would make a second try.
                    self._error = (
                        error
                        if isinstance(error, Exception)
                        else xdp_agg.Error("this rank gave up while it was to join its job")
                    )
                    raise
                if self._is_over():
                    engine.close()
                    self.check()
                self._engine = engine
            return self._engine

    def issue(
        self,
        call: Call,
        result: Any,
        finish: Callable[[], None] | None = None,
        *,
        is_synchronous: bool = False,
    ) -> Work:
        """Makes a call; `finish` comes when it has ended well, before anybody is told."""
        return _shown(call, lambda: self._issue(call, result, finish, is_synchronous))

    def _issue(
        self, call: Call, result: Any, finish: Callable[[], None] | None, is_synchronous: bool
    ) -> Work:
        self.calls[call.task] += 1
        if self._queue.left or (self._engine is None and not is_synchronous):
            work = self._work(result, finish)
            self._put(lambda engine: engine.start(call, work), work)
            return work
        engine = self._ready()
        try:
            if not is_synchronous:
                work = self._work(result, finish)
                engine.start(call, work)
                return work
            engine.run(call)
        except BaseException as error:
            self.failed(error)
            raise
        if finish is not None:
            finish()
        return Work.ended(result)

    def issue_staged(
        self, staged: StagedCall, result: Any, finish: Callable[[], None] | None = None
    ) -> Work:
        """Makes a call on an accelerator's memory."""
        self.calls[staged.call.task] += 1
        return _shown(staged.call, lambda: self._issue_staged(staged, result, finish))

    def _issue_staged(
        self, staged: StagedCall, result: Any, finish: Callable[[], None] | None
    ) -> Work:
        work = self._work(result, finish, staged.device)
        stage = self._stages.get(staged.device)
        if stage is None:
            stage = self._stages[staged.device] = Stage(self._copies(staged.device))
        stage.copies.follow()
        self._put(lambda engine: stage.carry_out(engine, staged, work), work)
        return work

    def _work(
        self, result: Any, finish: Callable[[], None] | None, device: torch.device | None = None
    ) -> Work:
        # Whatever has no number has no streams.
        devices = [device] if device is not None and device.index is not None else None
        work = Work(result, finish, devices)
        work.owner = self.failed
        return work

    def _put(self, begin: Callable[[Engine], None], work: Work) -> None:
        self.check()

        def job() -> None:
            try:
                begin(self._ready())
            except BaseException as error:
                work.done(error)

        self._queue.put(job)

    def _ready(self) -> Engine:
        self.check()
        return self._engine or self.join()

    def check(self) -> None:
        """Raises if no call may be made here."""
        if os.getpid() != self._pid:
            raise xdp_agg.Forked(
                "this process was forked from the one that has the group; start it without fork "
                "(spawn, forkserver) and let it make a group of its own"
            )
        if self._is_closed:
            raise xdp_agg.Closed("the group was destroyed; no call of it can be made any more")
        if self._reason is not None:
            raise xdp_agg.Aborted(f"the group was aborted: {self._reason}")

    def _is_over(self) -> bool:
        return self._is_closed or self._reason is not None

    def abort(self, reason: str) -> None:
        """Ends all calls in flight with an error, and lets none be made any more."""
        if os.getpid() != self._pid:
            return
        self._reason = reason
        if self._engine is not None:
            self._engine.abort(reason)

    def close(self) -> None:
        """Ends calls in flight, leaves the job, and waits for the channel's thread."""
        if os.getpid() != self._pid or self._is_closed:
            return
        self._is_closed = True
        if self._engine is not None:
            self._engine.close()
        self._queue.close()

    def stats(self) -> dict[str, Any]:
        """What was called, and what carried it out."""
        engine = self._engine
        stats: dict[str, Any] = {
            "engine": None if engine is None else engine.name,
            "calls": dict(self.calls),
        }
        if isinstance(engine, Aggregated):
            stats["communicator"] = engine.communicator.stats()
        return stats
