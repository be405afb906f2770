"""longhaul: gradients across a WAN that loses packets.

    import longhaul, numpy
    with longhaul.connect(join="127.0.0.1:7700", rank=0, world_size=2, key="job.key") as client:
        w = client.declare("w", initial=weights, optimizer="sgd:lr=0.1")
        for gradient in gradients:
            client.push_pull(w, gradient, weights).wait()

Names, meanings and errors are those of the C++ library (longhaul/client.h). Arrays are numpy's, torch's tensors on the
CPU, or buffers of floats: float32, float16 or bfloat16, contiguous; their memory is used in place and kept until the
operation is done. Every failure is a longhaul.Error with the library's words; what no library call can be made of is a
TypeError or a ValueError. A client belongs to the process that connected it: after a fork the child connects its own.
"""
import ctypes
import json
import os
import threading
import weakref

from ._library import (CALLBACK, LOG, DeadlineExceeded, Error, FailedPrecondition, InvalidArgument, PeerDead,
                       PermissionDenied, Unavailable, check, error_of, last_error, lib, settings_of, text_of)
from ._memory import Memory

__all__ = ["connect", "Client", "Tensor", "Operation", "Error", "InvalidArgument", "FailedPrecondition",
           "DeadlineExceeded", "PeerDead", "Unavailable", "PermissionDenied", "__version__"]
__version__ = lib.longhaul_version().decode()

_SLICE = 0.2  # seconds between two looks at signals: control-C ends every wait
_OK, _CANCELLED = 0, 10


def _interruptibly(function, *arguments):
    """What waits in the library, in a thread of its own where this one takes the signals."""
    if threading.current_thread() is not threading.main_thread():
        return check(function(*arguments))
    outcome = []

    def run():
        code = function(*arguments)
        outcome.append(last_error(code) if code != _OK else None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_SLICE)
    if outcome[0] is not None:
        raise outcome[0]
    return None


class _Handle:
    """The library's client. It is freed when no call is in it, at the latest at the interpreter's end."""

    def __init__(self):
        self.pointer = ctypes.c_void_p()
        self.process = os.getpid()
        self.calls = 0
        self.closed = False
        self.quiet = threading.Condition()
        self.pending = set()  # operations, with the memory that they borrow
        self.log = None

    def __enter__(self):
        if self.process != os.getpid():
            raise error_of(4, "the client is of process %d: a child of it connects a client of its own" % self.process)
        with self.quiet:
            if self.closed:
                raise error_of(4, "the client was closed")
            self.calls += 1
        return self.pointer

    def __exit__(self, *_):
        with self.quiet:
            self.calls -= 1
            self.quiet.notify_all()

    def close(self):
        if self.process != os.getpid():
            return
        with self.quiet:
            if self.closed:
                return
            self.closed = True
            busy = self.calls > 0
        if busy:  # what waits in it ends
            lib.longhaul_leave(self.pointer, _CANCELLED, b"the client was closed")
        with self.quiet:
            self.quiet.wait_for(lambda: self.calls == 0)
        lib.longhaul_close(self.pointer)
        self.pending.clear()


def _log_callback(log):
    if log is None:
        return LOG()

    def line(_, level, text):
        try:
            log(level, text.decode(errors="replace"))
        except Exception:  # has no caller here; the library goes on
            pass

    return LOG(line)


def connect(log=None, **settings):
    """Joins a job and returns its Client once the server has accepted this worker.

    settings: options of longhaul-worker with _ for -: join, rank, world_size, key, insecure, reconnect_timeout, ... What
    is not given comes from the environment: LONGHAUL_<NAME>, then what torchrun, Open MPI and ps-lite set. log(level,
    text) is called on any thread: 0 debug, 1 information, 2 warning.
    """
    handle = _Handle()
    handle.log = _log_callback(log)
    words, count = settings_of(settings)
    _interruptibly(lib.longhaul_connect, words, count, handle.log, None, ctypes.byref(handle.pointer))
    return Client(handle)


def _weight(weight):
    """For the library, where 0 is that of the connection: a 0 that was given is none."""
    return 0.0 if weight is None else float(weight) or float("nan")


class Tensor:
    """A tensor that the server knows: Client.declare."""

    def __init__(self, name, count, pointer, handle):
        self.name, self.count, self._pointer, self._handle = name, count, pointer, handle

    def __repr__(self):
        return "longhaul.Tensor(%r, count=%d)" % (self.name, self.count)


class Operation:
    """Something that is on its way: a future. Its arrays are kept until it is done."""

    def __init__(self, handle, arrays, output):
        self._pointer = ctypes.c_void_p()
        self._handle = handle
        self._arrays = arrays
        self._output = output
        self._callbacks = []

    def __del__(self):
        if self._pointer:
            lib.longhaul_release(self._pointer)

    def done(self):
        """Whether it has ended and borrows nothing."""
        return lib.longhaul_done(self._pointer) == 1

    def wait(self, timeout=None):
        """Waits for the end, at most `timeout` seconds: DeadlineExceeded then, and it goes on. Raises how it failed."""
        left = float("inf") if timeout is None else float(timeout)
        while True:
            code = lib.longhaul_wait(self._pointer, min(_SLICE, max(0.0, left)))
            left -= _SLICE
            if code != 7 or self.done() or left <= 0:
                break
        if code == 7 and not self.done():
            raise error_of(7, "the operation is not done within %g s" % timeout)
        self._handle.pending.discard(self)
        check(code)
        return self

    def result(self, timeout=None):
        """wait, then the array that receives the values; None of a push."""
        self.wait(timeout)
        return self._output

    def exception(self, timeout=None):
        """wait, then how it failed as an Error; None when it did not."""
        try:
            self.wait(timeout)
        except Error as error:
            if isinstance(error, DeadlineExceeded) and not self.done():
                raise
            return error
        return None

    def add_done_callback(self, function):
        """Calls function(self) when it is done: on a thread of the library, where nothing may wait, or at once."""
        def ended(_, __):
            try:
                function(self)
            except Exception:  # has no caller here; the library goes on
                pass

        callback = CALLBACK(ended)
        self._callbacks.append(callback)
        check(lib.longhaul_then(self._pointer, callback, None))

    def __await__(self):
        import asyncio
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.add_done_callback(
            lambda _: loop.call_soon_threadsafe(lambda: future.done() or future.set_result(None)))
        yield from future.__await__()
        return self.result(0)

    def stats(self):
        """OperationStats as a dict; zeros until done."""
        return json.loads(text_of(lib.longhaul_operation_stats, self._pointer))


class Client:
    """One worker of a job: connect makes it. Of use in any thread; `with` leaves the job in order at its end."""

    def __init__(self, handle):
        self._handle = handle
        self._finalizer = weakref.finalize(self, _Handle.close, handle)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        try:
            self.leave(error)
        except Error:
            if kind is None:
                raise
        finally:
            self.close()

    @property
    def rank(self):
        with self._handle as pointer:
            return lib.longhaul_rank(pointer)

    @property
    def world_size(self):
        with self._handle as pointer:
            return lib.longhaul_world_size(pointer)

    def check(self):
        """Raises why the client does not work any more, if it does not."""
        with self._handle as pointer:
            check(lib.longhaul_status(pointer))

    def declare(self, name, count=None, initial=None, **settings):
        """Makes a tensor of `count` elements known, or finds it. Waits until all workers are in.

        initial: float32 values, those of one worker count. settings: optimizer ("sgd:lr=0.1", "adam:lr=0.001", "aggregate"),
        wire_dtype, priority, high_share, high_energy, high ("FIRST:COUNT" or a list of them), staleness, quorum.
        """
        memory = None
        if initial is not None:
            memory = Memory(initial, written=False)
            if memory.dtype != 0:
                raise TypeError("initial values are float32")
            if count is None:
                count = memory.count
            if count != memory.count:
                raise ValueError("count is %d and there are %d initial values" % (count, memory.count))
        if count is None:
            raise TypeError("count or initial is needed")
        words, words_count = settings_of(settings)
        pointer = ctypes.c_void_p()
        with self._handle as client:
            _interruptibly(lib.longhaul_declare, client, str(name).encode(), count, words, words_count,
                           memory.address if memory else None, ctypes.byref(pointer))
        return Tensor(str(name), count, pointer, self._handle)

    def _of(self, tensor):
        if not isinstance(tensor, Tensor):
            raise TypeError("%s is no longhaul.Tensor" % type(tensor).__name__)
        if tensor._handle is not self._handle:
            raise error_of(1, "tensor %s is another client's" % tensor.name)
        return tensor._pointer

    def _begin(self, function, tensor, arrays, output, *more):
        first = arrays[0]
        for memory in arrays[1:]:
            if (memory.dtype, memory.count) != (first.dtype, first.count):
                raise ValueError("the two arrays differ in type or length")
        operation = Operation(self._handle, arrays, output)
        with self._handle as client:
            self._handle.pending.difference_update([one for one in list(self._handle.pending) if one.done()])
            addresses = [memory.address for memory in arrays]
            check(function(client, self._of(tensor), *addresses, first.count, first.dtype, *more,
                           ctypes.byref(operation._pointer)))
            self._handle.pending.add(operation)
        return operation

    def push(self, tensor, gradient, weight=None):
        """Contributes to the tensor's next round. weight: of this contribution, e.g. its samples; None: the connection's."""
        return self._begin(lib.longhaul_push, tensor, [Memory(gradient, written=False)], None, _weight(weight))

    def pull(self, tensor, out, min_round=0, max_staleness=None):
        """Fetches the parameters into `out`."""
        staleness = -1 if max_staleness is None else max_staleness
        return self._begin(lib.longhaul_pull, tensor, [Memory(out, written=True)], out, min_round, staleness)

    def push_pull(self, tensor, gradient, out, weight=None):
        """Contributes to the next round and receives its result in `out`: the fast path."""
        arrays = [Memory(gradient, written=False), Memory(out, written=True)]
        return self._begin(lib.longhaul_push_pull, tensor, arrays, out, _weight(weight))

    def set_scores(self, tensor, scores):
        """One score for each of len(scores) equal parts of the tensor: what matters most travels reliably."""
        values = (ctypes.c_float * len(scores))(*scores)
        with self._handle as client:
            check(lib.longhaul_set_scores(client, self._of(tensor), values, len(values)))

    def clock(self, tensor):
        """{"own", "slowest", "fastest", "members"}: pushes of the tensor that have counted."""
        with self._handle as client:
            return json.loads(text_of(lib.longhaul_clock, client, self._of(tensor)))

    def barrier(self, name):
        """Waits until every worker has arrived at the barrier of this name."""
        with self._handle as client:
            _interruptibly(lib.longhaul_barrier, client, str(name).encode())

    def stats(self):
        """ClientStats as a dict (docs/reference/counters.md)."""
        with self._handle as client:
            return json.loads(text_of(lib.longhaul_stats, client))

    def settings(self):
        """The job's settings, as the server has them, as a dict."""
        with self._handle as client:
            return json.loads(text_of(lib.longhaul_settings, client))

    def membership(self):
        """{"epoch", "ranks", "shard_index", "shard_count"}: who is in, and this worker's part of the data."""
        with self._handle as client:
            return json.loads(text_of(lib.longhaul_membership, client))

    def save_state(self, blob=b""):
        """Keeps in state_dir what this worker owes, and `blob`."""
        with self._handle as client:
            check(lib.longhaul_save_state(client, bytes(blob), len(blob)))

    def loaded_state(self):
        """The blob that the last process with this state_dir and rank kept; empty: none."""
        size = ctypes.c_size_t()
        with self._handle as client:
            check(lib.longhaul_loaded_state(client, None, 0, ctypes.byref(size)))
            blob = ctypes.create_string_buffer(size.value)
            check(lib.longhaul_loaded_state(client, blob, size.value, ctypes.byref(size)))
        return blob.raw

    def leave(self, error=None):
        """The orderly end. With an error the others learn that this worker did not finish."""
        code = _OK if error is None else getattr(error, "code", _CANCELLED)
        why = None if error is None else ("%s: %s" % (type(error).__name__, error)).encode()[:200]
        with self._handle as client:
            _interruptibly(lib.longhaul_leave, client, code, why)

    def close(self):
        """Ends what is pending and frees the client; nothing after an orderly leave. May be called twice."""
        self._finalizer()
