"""Exceptions: what the worker library's errors are in Python.

After an error of a call the communicator is of no use any more: every later call raises the same.
"""

from __future__ import annotations


class Error(RuntimeError):
    """Whatever ends a call without a result; the family of all exceptions of this package."""


class Config(Error, ValueError):
    """A setting is missing or out of its range."""

    #: Name of the environment variable that is wrong, or would be if it were set.
    name: str = ""
    #: What is wrong with it, and what is expected.
    problem: str = ""


class Unsupported(Error, ValueError):
    """What was called cannot be done with this type, these values or these settings."""


class Unreachable(Error):
    """No daemon answers, or its data path is closed."""

    #: Where nobody answered, ``host:port``.
    address: str = ""


class Refused(Error):
    """The daemon refused this worker."""

    #: Why, for programs: ``"rank_taken"``, ``"world_size"``, ``"no_room"``, ``"unauthorised"``,
    #: ``"version"``, ``"tls"``, ``"busy"``, ``"invalid"``, ``"limit"``, ``"engine"``, …
    code: str = ""


class Deadline(Error):
    """A call did not end in time, or workers did not come."""

    #: The ranks that are waited for, in ascending order; empty: nobody could say.
    ranks: tuple[int, ...] = ()
    #: Seconds that the call was waited for, if it was a call.
    waited: float | None = None


class MemberLost(Error):
    """Another worker is gone, and with it what the call needed."""

    #: Its rank; None: the message says what is known.
    rank: int | None = None
    #: All ranks that are lost, where there are several.
    ranks: tuple[int, ...] = ()


class CallMismatch(Error):
    """The workers do not make the same calls in the same order; the message names both."""

    #: The rank that found out; None: this one.
    rank: int | None = None


class Closed(Error):
    """The communicator was closed, or given up by Ctrl-C, before the call ended."""


class Forked(Error):
    """This process was forked from the one whose communicator this is."""


class AggregatorLost(Error):
    """The daemon is gone, and what was to take its place failed as well."""


class Aborted(Error):
    """The job was ended: by a worker that gave up, or by its operator."""

    #: The worker that gave up; None: somebody else ended it.
    rank: int | None = None
