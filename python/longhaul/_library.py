"""liblonghaul's C interface (longhaul/c_api.h) by ctypes: the library, its functions, its errors."""
import ctypes
import operator
import os
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

C_API = 1  # LONGHAUL_C_API
OUT = POINTER(c_void_p)
SETTINGS = POINTER(c_char_p)
LOG = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_int32)

_CODES = {
    "connect": [SETTINGS, c_size_t, LOG, c_void_p, OUT],
    "leave": [c_void_p, c_int32, c_char_p],
    "status": [c_void_p],
    "rank": [c_void_p, POINTER(c_uint32)],
    "world_size": [c_void_p, POINTER(c_uint32)],
    "stats": [c_void_p, OUT],
    "settings": [c_void_p, OUT],
    "membership": [c_void_p, OUT],
    "declare": [c_void_p, c_char_p, c_uint64, SETTINGS, c_size_t, c_void_p, OUT],
    "set_scores": [c_void_p, c_void_p, POINTER(c_float), c_size_t],
    "clock": [c_void_p, c_void_p, OUT],
    "owed": [c_void_p, c_void_p, c_void_p, c_uint64],
    "push": [c_void_p, c_void_p, c_void_p, c_uint64, c_int32, c_float, OUT],
    "pull": [c_void_p, c_void_p, c_void_p, c_uint64, c_int32, c_uint64, c_int64, OUT],
    "push_pull": [c_void_p, c_void_p, c_void_p, c_void_p, c_uint64, c_int32, c_float, OUT],
    "then": [c_void_p, CALLBACK, c_void_p],
    "operation_stats": [c_void_p, OUT],
    "barrier": [c_void_p, c_char_p],
    "save_state": [c_void_p, c_char_p, c_size_t],
    "loaded_state": [c_void_p, c_char_p, c_size_t, POINTER(c_size_t)],
}


class Error(RuntimeError):
    """What the library says instead of doing it. `code` is a longhaul::StatusCode, `name` its name."""

    def __init__(self, code, message):
        self.code = code
        self.name = lib.longhaul_code_name(code).decode()
        super().__init__(message or self.name)


class InvalidArgument(Error, ValueError):
    """An argument that can never work."""


class NotFound(Error):
    """A file or a tensor of that name does not exist."""


class AlreadyExists(Error):
    """The rank is another worker's."""


class FailedPrecondition(Error):
    """The right call at the wrong time: the client has left, was closed, or is another process'."""


class ResourceExhausted(Error):
    """A named bound is reached; try again when something has drained."""


class Unavailable(Error, ConnectionError):
    """No answer comes from the server."""


class DeadlineExceeded(Error, TimeoutError):
    """The time to wait has passed."""


class ProtocolViolation(Error):
    """The server broke the protocol."""


class PermissionDenied(Error):
    """A key that is not the job's, or that others may read."""


class Cancelled(Error):
    """Given up by this side: the client was closed."""


class Aborted(Error):
    """Given up by the other side, or by a policy of the job."""


class DataLoss(Error):
    """A file is damaged or truncated."""


class VersionMismatch(Error):
    """The server speaks another version of the protocol."""


class PeerDead(Error, ConnectionError):
    """The server was silent for the idle time-out."""


class SettingsMismatch(Error):
    """Worker and server disagree about the job or a tensor."""


class Internal(Error):
    """A system call failed unexpectedly."""


class AeadLimitReached(Error):
    """The cipher may do no more for the connection: connect again."""


# By their codes, from 1 on.
_CLASSES = [InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, ResourceExhausted, Unavailable, DeadlineExceeded,
            ProtocolViolation, PermissionDenied, Cancelled, Aborted, DataLoss, VersionMismatch, PeerDead, SettingsMismatch, Internal,
            AeadLimitReached]


def error_of(code, message):
    return (_CLASSES[code - 1] if 1 <= code <= len(_CLASSES) else Error)(code, message)


def last_error(code):
    """The error of the last function that this thread has called."""
    return error_of(code, lib.longhaul_last_error().decode(errors="replace"))


def check(code):
    if code != 0:
        raise last_error(code)


def text_of(function, *arguments):
    """The text that a function gives in its last argument."""
    given = c_void_p()
    check(function(*arguments, ctypes.byref(given)))
    try:
        return ctypes.string_at(given).decode()
    finally:
        lib.longhaul_free(given)


def text(name, value):
    """A str for C."""
    if not isinstance(value, str):
        raise TypeError("%s is %s; wanted is a str" % (name, type(value).__name__))
    if "\0" in value:
        raise error_of(1, "%s has a character 0" % name)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise error_of(1, "%s %r is not UTF-8" % (name, value)) from None


def number(name, value, first, last):
    """An integer within a range."""
    value = operator.index(value)
    if not first <= value <= last:
        raise error_of(1, "%s %d is not in %d..%d" % (name, value, first, last))
    return value


def settings_of(options):
    """{"world_size": 2} as "world-size=2"; None is left out, a list is given once for each of its elements."""
    words = []
    for name, value in options.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is not None:
                value_text = str(one).lower() if isinstance(one, bool) else str(one)
                words.append(text(name, "%s=%s" % (name.replace("_", "-"), value_text)))
    return (c_char_p * len(words))(*words), len(words)


def _load():
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "liblonghaul.so.0")
    name = os.environ.get("LONGHAUL_LIBRARY") or (here if os.path.exists(here) else "liblonghaul.so.0")
    try:
        library = ctypes.CDLL(name)
        version = library.longhaul_c_api()
        for function in _CODES:
            getattr(library, "longhaul_" + function)
    except (OSError, AttributeError) as error:
        raise ImportError("longhaul: no usable liblonghaul (LONGHAUL_LIBRARY, the package's folder, the system's "
                          "libraries): %s" % error) from error
    if version != C_API:
        raise ImportError("longhaul: %s has version %d of the C interface; this package needs %d" %
                          (name, version, C_API))
    for function, arguments in _CODES.items():
        getattr(library, "longhaul_" + function).argtypes = arguments
        getattr(library, "longhaul_" + function).restype = c_int32
    for function in ("close", "destroy", "release", "free"):
        getattr(library, "longhaul_" + function).argtypes = [c_void_p]
        getattr(library, "longhaul_" + function).restype = None
    library.longhaul_code_name.argtypes = [c_int32]
    for function in ("code_name", "last_error", "version"):
        getattr(library, "longhaul_" + function).restype = c_char_p
    return library


lib = _load()
