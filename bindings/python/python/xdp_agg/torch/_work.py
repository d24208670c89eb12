"""A call in flight, as PyTorch wants it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import torch
from torch._C import _distributed_c10d as c10d
from torch.futures import Future

import xdp_agg


def _value(future: Future[Any]) -> Any:
    """The future's value; an exception in its place is raised."""
    value = future.value()
    if isinstance(value, BaseException):
        raise value
    return value


def tell_autograd(wait: Callable[[], object]) -> None:
    """Lets the caller of `backward` wait in this way for a call that is made in a backward pass.

    Futures carry errors to C++ as text. So where the reducer of DDP waits for one, at the end of
    the pass, the caller gets a RuntimeError. Calls that were queued for that end earlier are still
    made first.
    """
    if torch._C._current_graph_task_id() != -1:
        torch.autograd.Variable._execution_engine.queue_callback(cast(Any, wait))


class Work(c10d.Work):
    """A call in flight, or one that has ended.

    `Future.set_exception` is of no use here: it sets a function of Python's side alone, and for C++
    the exception is a *value*: the reducer of DDP would go on with gradients that nobody has
    summed. So the future that is given out is the second of two: `raw.then(_value)` has a real
    error.
    """

    def __init__(
        self,
        result: Any,
        finish: Callable[[], None] | None = None,
        devices: list[torch.device] | None = None,
    ) -> None:
        super().__init__()
        self._result = result
        self._finish = finish
        self._devices = devices
        self._error: BaseException | None = None
        self._over = False
        #: Held until the call has ended. A lock and not an event: it is waited for with signals
        #: handled, and costs a tenth.
        self._gate = threading.Lock()
        self._gate.acquire()
        self._guard = threading.Lock()
        self._raw: Future[Any] | None = None
        self._future: Future[Any] | None = None
        self._listeners: list[Callable[[], None]] = []
        #: None: they are being called.
        self._before: list[Callable[[], None]] | None = []
        #: Is told of an error.
        self.owner: Callable[[BaseException], None] | None = None
        #: What the streams of accelerators wait for once the call has ended.
        self._events: list[torch.Event] = []

    @classmethod
    def of(cls, work: Any) -> Work:
        """The same work, or one of ours for another backend's."""
        if isinstance(work, cls):
            return work
        ours = cls(None)

        def ended(future: Future[Any]) -> None:
            try:
                ours._result = future.value()
            except BaseException as error:
                ours.done(error)
            else:
                ours.done(None)

        work.get_future().add_done_callback(ended)
        return ours

    @staticmethod
    def ended(result: Any) -> Work:
        """One that has ended well."""
        return _Ended(result)

    def done(self, error: BaseException | None, report: object = None) -> None:
        """Tells that the call has ended. On whatever thread: finishes it, and runs callbacks."""
        del report
        if error is None and self._finish is not None:
            try:
                self._finish()
            except BaseException as failure:
                error = failure
        self._finish = None
        if error is not None and self.owner is not None:
            self.owner(error)
        with self._guard:
            before, self._before = self._before or [], None
        for listener in before:
            listener()
        with self._guard:
            self._error, self._over = error, True
            raw, self._raw = self._raw, None
            listeners, self._listeners = self._listeners, []
        self._gate.release()
        for listener in listeners:
            listener()
        if raw is not None:
            raw.set_result(self._result if error is None else error)

    def when_over(self, listener: Callable[[], None]) -> None:
        """Calls once the call has ended: at once if it has."""
        with self._guard:
            if not self._over:
                self._listeners.append(listener)
                return
        listener()

    def before_waits_end(self, listener: Callable[[], None]) -> None:
        """Calls when the call has ended, before anybody can know: at once if it has ended.

        So ends what must not outlive a wait, such as a span of PyTorch's profiler: its memory is
        freed by the thread that stops the profiler.
        """
        with self._guard:
            if self._before is not None:
                self._before.append(listener)
                return
        listener()

    def after(self, event: torch.Event) -> None:
        """A caller that waits for this work waits for this event on its stream, too."""
        self._events.append(event)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the call, for `timeout` at most if that is above zero, and raises its
        error.
        """
        seconds = timeout.total_seconds()
        if not self._gate.acquire(timeout=seconds if seconds > 0 else -1):
            raise xdp_agg.Deadline(
                f"no result within the {seconds:g} s that were to be waited; the call goes on, and "
                "its own time is the group's"
            )
        self._gate.release()
        if self._error is not None:
            raise self._error.with_traceback(None)
        for event in self._events:
            torch.accelerator.current_stream(event.device).wait_event(event)
        return True

    def get_future(self) -> Future[Any]:
        if not self._over:
            tell_autograd(self.wait)
        with self._guard:
            if self._future is not None:
                return self._future
            raw: Future[Any] = Future(devices=cast(Any, self._devices))
            self._future = raw.then(_value)
            if not self._over:
                self._raw = raw
                return self._future
        raw.set_result(self._result if self._error is None else self._error)
        return self._future

    # Only a holder of this very object sees these: PyTorch's wrapper of it does not pass them on.

    def is_completed(self) -> bool:
        return self._over

    def is_success(self) -> bool:
        return self._over and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        self.wait()
        return self._result

    def synchronize(self) -> None:
        self.wait()


class _Ended(Work):
    """A call that has ended well before anybody could ask: nothing of it is ever waited for."""

    _error = None
    _over = True
    _events: list[torch.Event] = []  # noqa: RUF012  (a call that has ended gets none)

    def __init__(self, result: Any) -> None:
        c10d.Work.__init__(self)
        self._result = result

    def when_over(self, listener: Callable[[], None]) -> None:
        listener()

    before_waits_end = when_over

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def get_future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self._result)
        return future


def all_of(works: list[Work], result: Any) -> Work:
    """One work for several: it ends when all have ended, with the first error."""
    whole = Work(result)
    left = len(works)
    guard = threading.Lock()

    def one_is_over() -> None:
        nonlocal left
        with guard:
            left -= 1
            if left > 0:
                return
        for work in works:
            whole._events.extend(work._events)
        errors = (work._error for work in works if work._error is not None)
        whole.done(next(errors, None))

    if not works:
        whole.done(None)
    for work in works:
        work.when_over(one_is_over)
    return whole
