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
import itertools
import json
import os
import threading
import weakref

from ._library import (CALLBACK, LOG, Aborted, AeadLimitReached, AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, Error,
                       FailedPrecondition, Internal, InvalidArgument, NotFound, PeerDead, PermissionDenied, ProtocolViolation,
                       ResourceExhausted, SettingsMismatch, Unavailable, VersionMismatch, check, error_of, last_error, lib, number,
                       settings_of, text, text_of)
from ._memory import FLOAT32, Memory

__all__ = ["connect", "Client", "Tensor", "Operation", "Error", "InvalidArgument", "NotFound", "AlreadyExists", "FailedPrecondition",
           "ResourceExhausted", "Unavailable", "DeadlineExceeded", "ProtocolViolation", "PermissionDenied", "Cancelled", "Aborted",
           "DataLoss", "VersionMismatch", "PeerDead", "SettingsMismatch", "Internal", "AeadLimitReached", "__version__"]
__version__ = lib.longhaul_version().decode()

_SLICE = 0.2  # seconds between two looks at signals: control-C ends every wait
_OK, _FAILED_PRECONDITION, _DEADLINE_EXCEEDED, _CANCELLED = 0, 4, 7, 10


class _Alone:
    """What belongs to one place in memory."""

    def __copy__(self):
        raise TypeError("%s cannot be copied" % type(self).__name__)

    def __deepcopy__(self, _):
        return self.__copy__()

    def __reduce__(self):
        return self.__copy__()


class _Call:
    """What waits in the library: in a thread of its own where this one takes the signals, so that none is held. The thread
    keeps all that the call needs; abandoned is called in it where the caller has not waited for the end."""

    def __init__(self, function, *arguments, abandoned=lambda: None):
        self._function, self._arguments, self._abandoned = function, arguments, abandoned
        self._left = False
        self._outcome = None

    def _run(self):
        try:
            code = self._function(*self._arguments)
            self._outcome = last_error(code) if code != _OK else None
        except BaseException as error:  # is the caller's
            self._outcome = error
        if self._left and self._outcome is None:
            self._abandoned()

    def wait(self):
        if threading.current_thread() is not threading.main_thread():
            self._run()
        else:
            thread = threading.Thread(target=self._run, daemon=True)
            try:
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is ending, and begins no thread
                    self._run()
                while thread.is_alive():
                    thread.join(_SLICE)
            except BaseException:
                self._left = True
                raise
        if self._outcome is not None:
            raise self._outcome


# Of the library's threads: whether a callback runs.
_here = threading.local()


@ctypes.CFUNCTYPE(None, ctypes.py_object)
def _exception_of_a_callback(error):
    """An exception that has no caller: what a function of ctypes raises goes to sys.unraisablehook, and the library goes on."""
    try:
        raise error
    finally:
        del error  # whose traceback has this frame


class _Handle(_Alone):
    """The library's client: closed at the interpreter's end, freed with its last user."""

    def __init__(self):
        self.pointer = ctypes.c_void_p()
        self.process = os.getpid()
        self.log = None

    def __del__(self):
        if self.pointer and self.process == os.getpid():
            lib.longhaul_destroy(self.pointer)

    def close(self):
        if self.pointer and self.process == os.getpid():
            lib.longhaul_close(self.pointer)


def _log_callback(log):
    if log is None:
        return LOG()
    if not callable(log):
        raise TypeError("log is %s; wanted is a function of a level and a text" % type(log).__name__)

    def line(_, level, words):
        before = getattr(_here, "in_callback", False)
        _here.in_callback = True
        try:
            log(level, words.decode(errors="replace"))
        except BaseException as error:
            _exception_of_a_callback(error)
        finally:
            _here.in_callback = before

    return LOG(line)


def connect(*, log=None, **settings):
    """Joins a job and returns its Client once the server has accepted this worker.

    settings: options of longhaul-worker with _ for -: join, rank, world_size, key, insecure, reconnect_timeout, ... What
    is not given comes from the environment: LONGHAUL_<NAME>, then what torchrun, Open MPI and ps-lite set. log(level,
    text) is called on any thread: 0 debug, 1 information, 2 warning.
    """
    handle = _Handle()
    handle.log = _log_callback(log)
    words, count = settings_of(settings)
    _Call(lib.longhaul_connect, words, count, handle.log, None, ctypes.byref(handle.pointer), abandoned=handle.close).wait()
    return Client(handle)


def _weight(weight):
    """For the library, where 0 is that of the connection: a 0 that was given is none."""
    return 0.0 if weight is None else ctypes.c_float(weight).value or float("nan")


class Tensor(_Alone):
    """A tensor that the server knows: Client.declare."""

    def __init__(self, name, count, pointer, handle):
        self.name, self.count, self._pointer, self._handle = name, count, pointer, handle

    def __repr__(self):
        return "longhaul.Tensor(%r, count=%d)" % (self.name, self.count)


# Operations that are on their way, with the memory that they borrow, by the number that the library gives back.
_running = {}
_numbers = itertools.count(1)


def _on_end(key, code):
    error = None if code == _OK else last_error(code)
    operation = _running.pop(key, None)
    if operation is not None:
        before = getattr(_here, "in_callback", False)
        _here.in_callback = True
        try:
            operation._end(error)
        finally:
            _here.in_callback = before


_ON_END = CALLBACK(_on_end)


class Operation(_Alone):
    """Something that is on its way: a future. Its arrays are kept until it is done."""

    def __init__(self, handle, arrays, output):
        self._pointer = ctypes.c_void_p()
        self._handle = handle
        self._arrays = arrays
        self._output = output
        self._done = threading.Event()
        self._error = None
        self._lock = threading.Lock()
        self._callbacks = []

    def __del__(self):
        if self._pointer:
            lib.longhaul_release(self._pointer)

    def _end(self, error):
        self._error = error
        self._arrays = None
        with self._lock:
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for function in callbacks:
            try:
                function(self)
            except BaseException as error:
                _exception_of_a_callback(error)

    def _here(self):
        if self._handle.process != os.getpid() and not self._done.is_set():
            raise error_of(_FAILED_PRECONDITION, "the operation is of process %d, which has forked this one" %
                           self._handle.process)

    def done(self):
        """Whether it has ended and borrows nothing."""
        return self._done.is_set()

    def wait(self, timeout=None):
        """Waits for the end, at most `timeout` seconds: DeadlineExceeded then, and it goes on. Raises how it failed."""
        self._here()
        if timeout is not None and not timeout >= 0:
            raise ValueError("a time-out is 0 or more seconds")
        if getattr(_here, "in_callback", False) and not self._done.is_set():
            raise error_of(_FAILED_PRECONDITION, "a callback must not wait")
        if not self._done.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
            raise error_of(_DEADLINE_EXCEEDED, "the operation is not done within %g s" % timeout)
        if self._error is not None:
            raise self._error
        return self

    def result(self, timeout=None):
        """wait, then the array that receives the values; None of a push."""
        self.wait(timeout)
        return self._output

    def exception(self, timeout=None):
        """wait, then how it failed as an Error; None when it did not."""
        try:
            self.wait(timeout)
        except Error:
            if not self.done():
                raise
        return self._error

    def add_done_callback(self, function):
        """Calls function(self) when it is done: on a thread of the library, where nothing may wait, or at once. What it raises goes
        to sys.unraisablehook."""
        self._here()
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(function)
                return
        try:
            function(self)
        except Exception as error:  # SystemExit and control-C are this thread's
            _exception_of_a_callback(error)

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
        self._here()
        return json.loads(text_of(lib.longhaul_operation_stats, self._pointer))


def _why(error):
    """For Leave: the code and the words of an exception that ends a worker."""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return _OK, None
    try:
        words = "%s: %s" % (type(error).__name__, error)
    except Exception:
        words = type(error).__name__
    code = error.code if isinstance(error, Error) else _CANCELLED
    return code, words[:200].encode(errors="replace").replace(b"\0", b"?")


class Client(_Alone):
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

    def _number_of(self, function):
        value = ctypes.c_uint32()
        check(function(self._handle.pointer, ctypes.byref(value)))
        return value.value

    @property
    def rank(self):
        return self._number_of(lib.longhaul_rank)

    @property
    def world_size(self):
        return self._number_of(lib.longhaul_world_size)

    def check(self):
        """Raises why the client does not work any more, if it does not."""
        check(lib.longhaul_status(self._handle.pointer))

    def declare(self, name, count=None, initial=None, **settings):
        """Makes a tensor of `count` elements known, or finds it. Waits until all workers are in.

        initial: float32 values, those of one worker count. settings: optimizer ("sgd:lr=0.1", "adam:lr=0.001", "aggregate"),
        wire_dtype (float32, bfloat16, float16, int8, int4, int2), result_dtype, topk_share (of the elements, the largest of which
        travel), priority, high_share, high_energy, high ("FIRST:COUNT" or a list of them), staleness, quorum.
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
        count = number("count", count, 0, 2**64 - 1)
        words, words_count = settings_of(settings)
        pointer = ctypes.c_void_p()
        handle, of_name = self._handle, text("the name", name)

        def declare():  # keeps the memory for as long as the call takes
            return lib.longhaul_declare(handle.pointer, of_name, count, words, words_count, memory.address if memory else None,
                                        ctypes.byref(pointer))

        _Call(declare).wait()
        return Tensor(name, count, pointer, handle)

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
        of_tensor = self._of(tensor)
        operation = Operation(self._handle, arrays, output)
        key = next(_numbers)
        # Before it begins: wherever a signal's exception comes out, the memory is kept.
        _running[key] = operation
        code = function(self._handle.pointer, of_tensor, *[memory.address for memory in arrays], first.count, first.dtype,
                        *more, ctypes.byref(operation._pointer))
        if code == _OK:
            code = lib.longhaul_then(operation._pointer, _ON_END, key)
        if code != _OK:
            error = last_error(code)
            del _running[key]
            raise error
        return operation

    def push(self, tensor, gradient, weight=None):
        """Contributes to the tensor's next round. weight: of this contribution, e.g. its samples; None: the connection's."""
        return self._begin(lib.longhaul_push, tensor, [Memory(gradient, written=False)], None, _weight(weight))

    def pull(self, tensor, out, min_round=0, max_staleness=None):
        """Fetches the parameters into `out`."""
        staleness = -1 if max_staleness is None else number("max_staleness", max_staleness, 0, 2**32 - 1)
        return self._begin(lib.longhaul_pull, tensor, [Memory(out, written=True)], out,
                           number("min_round", min_round, 0, 2**64 - 1), staleness)

    def push_pull(self, tensor, gradient, out, weight=None):
        """Contributes to the next round and receives its result in `out`: the fast path."""
        arrays = [Memory(gradient, written=False), Memory(out, written=True)]
        return self._begin(lib.longhaul_push_pull, tensor, arrays, out, _weight(weight))

    def set_scores(self, tensor, scores):
        """One score for each of len(scores) equal parts of the tensor: what matters most travels reliably."""
        values = (ctypes.c_float * len(scores))(*scores)
        check(lib.longhaul_set_scores(self._handle.pointer, self._of(tensor), values, len(values)))

    def owed(self, tensor, out):
        """Writes to `out` (float32) what the server has not taken of this worker's gradients, and a later push brings; zeros
        where nothing is owed. To be called when no push of the tensor is on its way."""
        memory = Memory(out, written=True)
        if memory.dtype != FLOAT32:
            raise TypeError("what is owed is float32")
        check(lib.longhaul_owed(self._handle.pointer, self._of(tensor), memory.address, memory.count))

    def clock(self, tensor):
        """{"own", "slowest", "fastest", "members"}: pushes of the tensor that have counted."""
        return json.loads(text_of(lib.longhaul_clock, self._handle.pointer, self._of(tensor)))

    def barrier(self, name):
        """Waits until every worker has arrived at the barrier of this name."""
        handle, of_name = self._handle, text("the name", name)
        _Call(lambda: lib.longhaul_barrier(handle.pointer, of_name)).wait()

    def stats(self):
        """ClientStats as a dict (docs/reference/counters.md)."""
        return json.loads(text_of(lib.longhaul_stats, self._handle.pointer))

    def settings(self):
        """The job's settings, as the server has them, as a dict."""
        return json.loads(text_of(lib.longhaul_settings, self._handle.pointer))

    def membership(self):
        """{"epoch", "ranks", "shard_index", "shard_count"}: which ranks are in, and this worker's part of the data."""
        return json.loads(text_of(lib.longhaul_membership, self._handle.pointer))

    def save_state(self, blob=b""):
        """Keeps in state_dir what this worker owes, and `blob`."""
        data = bytes(memoryview(blob))
        check(lib.longhaul_save_state(self._handle.pointer, data, len(data)))

    def loaded_state(self):
        """The blob that the last process with this state_dir and rank kept; empty: none."""
        size = ctypes.c_size_t()
        check(lib.longhaul_loaded_state(self._handle.pointer, None, 0, ctypes.byref(size)))
        blob = ctypes.create_string_buffer(size.value)
        check(lib.longhaul_loaded_state(self._handle.pointer, blob, size.value, ctypes.byref(size)))
        return blob.raw

    def leave(self, error=None):
        """The orderly end. With an error the others learn that this worker did not finish."""
        code, words = (_OK, None) if error is None else _why(error)
        handle = self._handle
        _Call(lambda: lib.longhaul_leave(handle.pointer, code, words)).wait()

    def close(self):
        """Ends what is pending and the client, in whatever thread waits in it; nothing after an orderly leave. From a callback,
        while another thread waits in it, the client ends with that call. May be called twice."""
        self._finalizer()
