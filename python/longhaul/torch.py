"""PyTorch over longhaul: DistributedDataParallel, an optimizer per parameter, and DiLoCo.

    import longhaul.torch
    torch.distributed.init_process_group("longhaul", init_method="longhaul://")
    model = torch.nn.parallel.DistributedDataParallel(model)
    model.register_comm_hook(None, longhaul.torch.ddp_hook)

All of it goes through the parameter server: workers need no connection to each other. The job's settings say what may be
lost of gradients; collectives of the process group and initial parameters arrive whole. Tested with PyTorch 1.13.
"""
import atexit
import concurrent.futures
import contextlib
import itertools
import os
import sys
import threading
import types
import weakref

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.distributed.rendezvous import register_rendezvous_handler
from torch.futures import Future

import longhaul

__all__ = ["client", "ddp_hook", "Gradients", "ProcessGroup", "PerParameter", "broadcast_parameters", "DiLoCo"]

_HALVES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
_WORD = 1 << 16
_PIECE = 1 << 24  # the most elements of a collective's round: 64 MB each way
_FEW = 4096  # numbers of all ranks that a sum gathers bit for bit: control sends so many, and a gather's bytes grow with the ranks

_lock = threading.Lock()
_client = None
_process = None  # whose client it is


def client(**settings):
    """The process' client, which the process group "longhaul" uses too: longhaul.connect(**settings) the first time. It leaves
    the job when the program ends: in order unless an exception ended it or operations are pending. What Python does not say is how
    sys.exit(1) ends it: call client().leave(error) before."""
    global _client, _process
    with _lock:
        if _client is None or _process != os.getpid():  # a child of fork has no part in its parent's
            _client, _process = longhaul.connect(**settings), os.getpid()
            atexit.register(_leave)
        elif settings:
            raise ValueError("this process has connected already: the settings come too late")
        return _client


def _leave():
    why = getattr(sys, "last_value", None)  # an exception that has ended the program
    if why is None and any(operation._handle is _client._handle for operation in list(longhaul._running.values())):
        why = longhaul.Cancelled(10, "the program ended while operations were pending")  # in order it would wait for them
    try:
        _client.leave(why)
    except longhaul.Error:  # it has said so to all that waited
        pass


def _flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def _scatter(flat, tensors):
    """The reverse of _flat."""
    with torch.no_grad():
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors])):
            tensor.copy_(part.view_as(tensor))


def _on_host(like):
    """Memory on the host for values of `like`, which a device copies from and to without a detour."""
    return torch.empty(like.numel(), dtype=like.dtype, pin_memory=like.is_cuda)


_numbers = weakref.WeakKeyDictionary()


def _numbered(of, name):
    """`name` for the first user in this process, name2, name3, ... for the next: on all ranks the same one, in the order in which
    they come. Two models have tensors of their own, whatever their parameters are called."""
    number = next(_numbers.setdefault(of, {}).setdefault(name, itertools.count(1)))
    return name if number == 1 else "%s%d" % (name, number)


_failures = weakref.WeakKeyDictionary()  # of a client: how its first round of this module failed


def _push_pull(of, tensor, value, out, weight):
    """Client.push_pull, unless an earlier one has failed: the other ranks are a round further or less far then, and each later
    mean would be of different steps."""
    if of in _failures:
        raise longhaul.FailedPrecondition(
            4, "an earlier round of this process failed, and the other ranks' next ones would be averaged with it: %s" % _failures[of])
    try:
        operation = of.push_pull(tensor, value, out, weight)
    except Exception as error:
        _failures[of] = error
        raise
    operation.add_done_callback(lambda done: done.exception() and _failures.setdefault(of, done.exception()))
    return operation


# --- Sums of everything, exactly: what control and initial parameters need ---


_exchanges = weakref.WeakKeyDictionary()


def _clock(of, tensor):
    try:
        return of.clock(tensor)
    except longhaul.FailedPrecondition:  # through a site, whose ranks start together
        return {"own": 0, "fastest": 0}


class _Exchange:
    """Collectives of exact bits, by rounds that lose nothing: each element is 16 bits as a float, so that the mean of one
    worker's number and the others' zeros gives the number back. A round that lacks a worker's part is seen by its mark."""

    def __init__(self, of, name):
        self._client, self._name, self._tensors = of, name, {}
        self.rank, self.size = of.rank, of.world_size
        self._start()

    def _start(self):
        """Two rounds in which nothing is said. They show a process that begins when the others have begun before: they are past
        what it would wait for, and it past what they wait for."""
        settings = self._client.settings()
        if settings["norm_guard"] != 0 or settings["close_ratio_high"] < 1:
            raise longhaul.FailedPrecondition(
                4, "collectives need every chunk: not in a job with --norm-guard or --close-ratio-high, which leave some out")
        begun = self._client.declare("torch/%s/0" % self._name, self.size, high_share=1, staleness=0, quorum=0)  # as _sum does
        if _clock(self._client, begun)["fastest"] > 1:
            raise longhaul.FailedPrecondition(
                4, "rank %d was started again in a job whose other ranks go on, or whose server still has the job of the processes "
                "before: what was broadcast and averaged at the start is over. This job ends; start all of its ranks again" % self.rank)
        self._tensors[self._name, 0] = begun
        self._round(0, lambda words: None)
        self._round(0, lambda words: None)

    @classmethod
    def of_client(cls, of, name):
        """One for each name in a process: what the others have begun is seen once."""
        exchanges = _exchanges.setdefault(of, {})
        if name not in exchanges:
            exchanges[name] = cls(of, name)
        return exchanges[name]

    def sums(self, name, values):
        """The sum over all workers of their `values`, float32 on the host; None where one of them cannot travel at any worker.
        Each round has a mark of every rank, which says that its part is in the sum."""
        parts = [self._sum(name, part) for part in values.split(_PIECE)]
        return None if any(part is None for part in parts) else torch.cat(parts)

    def _sum(self, name, part):
        # Of the next power of two: else every length would be a tensor that the server keeps.
        count, held = part.numel(), 1 << (part.numel() - 1).bit_length() if part.numel() else 0
        key = name, held
        if key not in self._tensors:
            self._tensors[key] = self._client.declare("torch/%s/%d" % key, held + self.size, high_share=1, staleness=0, quorum=0)
        value, out = torch.zeros(held + self.size), torch.empty(held + self.size)
        travels = bool((part.abs() < 1e36 / self.size).all())
        value[held + self.rank] = self.rank + 1 if travels else -self.rank - 1
        if travels:
            value[:count] = part
        pushed = _push_pull(self._client, self._tensors[key], value, out, 1)
        pushed.wait()
        stats = pushed.stats()
        left_out = [stats["lost_chunks"], *((stats.get("report") or {}).get(which, 0) for which in
                                            ("rejected_chunks", "filled_chunks", "tolerated_chunks", "lost_chunks"))]
        if any(left_out):
            raise longhaul.FailedPrecondition(4, "a collective lacks parts of some ranks: chunks of it were lost or refused")
        sums = out.mul_(self.size)
        marks = sums[held:].round().to(torch.int64).tolist()
        missing = [r for r in range(self.size) if marks[r] == 0]
        if missing or any(abs(mark) != r + 1 for r, mark in enumerate(marks)):
            raise longhaul.FailedPrecondition(
                4, "a collective %s: the job leaves workers out, or weighs or aggregates them in a way that no sum is made of "
                "(--aggregation, --weight)" % ("lacks the parts of ranks %s" % missing if missing else "is no sum of all ranks"))
        return sums[:count] if min(marks) > 0 else None

    def _round(self, count, fill):
        """The sum over all workers of what each fills in: `count` words."""
        words = torch.zeros(count)
        fill(words)
        return self.sums(self._name, words).round_().to(torch.int64)

    @staticmethod
    def _words(tensor):
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        if flat.numel() % 2:
            flat = torch.cat([flat, flat.new_zeros(1)])
        return flat.view(torch.int16).to(torch.int32).bitwise_and_(_WORD - 1)

    @staticmethod
    def _write(words, tensor):
        bits = torch.where(words >= _WORD // 2, words - _WORD, words).to(torch.int16).view(torch.uint8)
        with torch.no_grad():
            values = bits[:tensor.numel() * tensor.element_size()].clone().view(tensor.dtype)
            tensor.copy_(values.view_as(tensor))

    def broadcast(self, tensor, source):
        words = self._words(tensor)

        def fill(to):
            if self.rank == source:
                to[:words.numel()] = words

        self._write(self._round(words.numel(), fill), tensor)

    def gather(self, tensor):
        """The tensors of all ranks."""
        words = self._words(tensor)
        n = words.numel()

        def fill(to):
            to[self.rank * n:(self.rank + 1) * n] = words

        parts = self._round(self.size * n, fill)
        all_of_them = [torch.empty_like(tensor) for _ in range(self.size)]
        for r, part in enumerate(all_of_them):
            self._write(parts[r * n:(r + 1) * n], part)
        return all_of_them


# --- The process group ---


_REDUCTIONS = {
    dist.ReduceOp.SUM: lambda all_of_them: all_of_them.sum(0),
    dist.ReduceOp.PRODUCT: lambda all_of_them: all_of_them.prod(0),
    dist.ReduceOp.MIN: lambda all_of_them: all_of_them.amin(0),
    dist.ReduceOp.MAX: lambda all_of_them: all_of_them.amax(0),
}


class ProcessGroup(dist.ProcessGroup):
    """torch.distributed's backend "longhaul": broadcast, all_reduce, all_gather and barrier through the server. What it lacks
    (send, recv, scatter, ...) raises. Each collective costs a round, which its call waits for, also with async_op: it is for
    start-up and control; gradients take ddp_hook. A sum of floats is exact to float32's rounding, and to the bit with at most
    4096 numbers over all ranks."""

    def __init__(self, rank, size, of):
        super().__init__(rank, size)
        self._exchange, self._client = _Exchange.of_client(of, "group"), of

    def getBackendName(self):
        return "longhaul"

    @staticmethod
    def _done(result):
        # Collectives are over when they return: a work of C++ swallows how it failed, and of one in Python C++ would keep the
        # C++ part only.
        future = Future()
        future.set_result(result)
        return _create_work_from_future(future)

    def broadcast(self, tensors, opts=None):
        source = opts.rootRank if opts else 0
        for tensor in tensors:
            self._exchange.broadcast(tensor, source)
        return self._done(tensors)

    def _reduce(self, tensor, op):
        if op not in _REDUCTIONS:
            raise ValueError("this all_reduce is none of those that longhaul knows: sum, product, min and max")
        if tensor.numel() == 0:
            return
        result = None
        if op == dist.ReduceOp.SUM and (tensor.dtype == torch.float32 or tensor.dtype in _HALVES) and \
                tensor.numel() * self._exchange.size > _FEW:
            result = self._exchange.sums("sum", tensor.detach().to("cpu", torch.float32).contiguous().reshape(-1))
        if result is None:  # few, of another type or reduction, or with an infinity or NaN at some rank
            result = _REDUCTIONS[op](torch.stack(self._exchange.gather(tensor)))
        with torch.no_grad():
            tensor.copy_(result.view_as(tensor))

    def allreduce(self, tensors, opts=None):
        op = opts.reduceOp if opts else dist.ReduceOp.SUM
        for tensor in tensors:
            self._reduce(tensor, op)
        return self._done(tensors)

    def allgather(self, outputs, inputs, opts=None):
        for output, given in zip(outputs, inputs):
            for to, value in zip(output, self._exchange.gather(given)):
                to.copy_(value)
        return self._done(outputs)

    def barrier(self, opts=None):
        self._client.barrier("torch/barrier")
        return self._done([])


class _Store(dist.Store):
    """What torch asks of a store when a group is made; all workers are in the job by then."""

    def __init__(self, size):
        super().__init__()
        self._size, self._values = size, {}

    def add(self, key, value):
        return self._size

    def set(self, key, value):
        self._values[key] = value

    def get(self, key):
        return self._values[key]


_stores = []  # C++ keeps their C++ part only


def _rendezvous(url, timeout=None, **_):
    if url.partition("?")[0] not in ("longhaul://", "longhaul:///"):
        raise ValueError("init_method is %r; wanted is longhaul://: the job is in the environment, or in an earlier "
                         "longhaul.torch.client(join=...)" % url)
    ours = client()
    _stores.append(_Store(ours.world_size))
    yield _stores[-1], ours.rank, ours.world_size


def _make_group(store, rank, size, timeout):
    ours = client()
    if (rank, size) != (ours.rank, ours.world_size):
        raise ValueError("a group of %d with this process as rank %d: the job's %d workers, of whom this is %d, are the only "
                         "group" % (size, rank, ours.world_size, ours.rank))
    return ProcessGroup(rank, size, ours)


register_rendezvous_handler("longhaul", _rendezvous)
dist.Backend.register_backend("longhaul", _make_group)


# --- Gradients ---


class _Slot:
    """A tensor of the job with the memory on the host that its values go through."""

    def __init__(self, of, name, like, settings):
        if like.layout != torch.strided:
            raise TypeError("%s is sparse, which does not travel: make its layer with sparse=False" % name)
        if like.dtype != torch.float32 and like.dtype not in _HALVES:
            raise TypeError("%s is %s; float32, float16 and bfloat16 travel" % (name, like.dtype))
        if like.dtype in _HALVES:
            # What comes back ends in 16 bits in any case: on the wire already it is the same bits.
            settings = {"wire_dtype": _HALVES[like.dtype], "result_dtype": _HALVES[like.dtype], **settings}
        # All ranks take the same means in the same order: none is left behind by a quorum or by staleness.
        self.tensor = of.declare(name, like.numel(), **{"quorum": 0, "staleness": 0, **settings})
        self._round = _clock(of, self.tensor)["own"]  # that the next push counts in
        self.out = _on_host(like)
        self.staged = _on_host(like) if like.device.type != "cpu" else None

    def average(self, of, gradient, weight, then):
        """Begins; then(error, average), on some thread. gradient: flat and contiguous, left alone until the end."""
        if self.staged is None:
            self._begin(of, gradient, weight, lambda error: then(error, self.out))
            return
        # Of a device: the copy is in the device's queue, behind what computes the gradient.
        self.staged.copy_(gradient, non_blocking=True)
        copied = torch.cuda.current_stream(gradient.device).record_event()

        def upload(error):
            if error is not None:
                then(error, None)
                return
            try:
                gradient.copy_(self.out)
            except BaseException as failure:
                then(failure, None)
            else:
                then(None, gradient)

        def go():
            try:
                copied.synchronize()
                self._begin(of, self.staged, weight, upload)
            except BaseException as error:  # of a thread of its own: what waits is to hear of it
                then(error, None)

        threading.Thread(target=go, daemon=True).start()

    def _begin(self, of, gradient, weight, then):
        def end(done):
            error = done.exception()
            round_ = error is None and done.stats()["pushed_round"]  # 0 through a site
            if error is None and round_ > self._round:
                error = longhaul.FailedPrecondition(
                    4, "the job went on without this rank, in rounds %d to %d of %s: its parameters are no longer those of the others "
                    "(--round-patience, --idle-timeout)" % (self._round, round_ - 1, self.tensor.name))
                _failures.setdefault(of, error)
            self._round += 1
            then(error)

        _push_pull(of, self.tensor, gradient, self.out, weight).add_done_callback(end)


# Of the buckets of a client, in the order in which they come first: on all workers the same one.
_bucket_numbers = weakref.WeakKeyDictionary()


class Gradients:
    """The state of ddp_hook where None does not do: a client, a weight of this worker's contributions (its samples), and
    settings of Client.declare for all buckets, such as high_share, wire_dtype and result_dtype (those of 16-bit buckets are
    the buckets' by default)."""

    def __init__(self, of=None, weight=None, **settings):
        self._client, self.weight, self._settings = of, weight, settings
        self._slots = {}

    def _slot(self, bucket):
        # DDP cuts other buckets after the first backward pass: what a bucket is, its parameters say.
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        if key not in self._slots:
            # An id is one's as long as it lives; a model that is gone takes its memory along.
            self._slots[key] = [], [weakref.ref(p, lambda _, slots=self._slots: slots.pop(key, None)) for p in parameters]
        uses = self._slots[key][0]
        if len(uses) < 2:
            # Nothing is owed in a tensor that may never be used again: the first time all of it travels reliably. The front
            # layers, in the last buckets, are what the next forward pass needs first.
            settings = {"priority": -bucket.index(), **self._settings, **({} if uses else {"high_share": 1})}
            number = next(_bucket_numbers.setdefault(self._client, itertools.count()))
            uses.append(_Slot(self._client, "torch/ddp/%d" % number, bucket.buffer(), settings))
        return uses[-1]

    def average(self, bucket):
        if self._client is None:
            self._client = client()
        future = Future() if bucket.buffer().device.type == "cpu" else Future(devices=[bucket.buffer().device])

        def end(error, average):
            if error is None:
                future.set_result(average)
            else:
                future.set_exception(error)

        self._slot(bucket).average(self._client, bucket.buffer(), self.weight, end)
        return future.then(lambda done: done.value())  # which raises the error as it is; C++ would take it for a wrong value


_default = Gradients()


def ddp_hook(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DistributedDataParallel.register_comm_hook(state, longhaul.torch.ddp_hook): the gradients' mean over the workers, by the
    job's loss policy. state: None, a longhaul.Client or Gradients. A failure is an exception of backward()."""
    return _state_of(state).average(bucket)


_of_clients = weakref.WeakKeyDictionary()


def _state_of(state):
    if state is None:
        return _default
    if isinstance(state, Gradients):
        return state
    if isinstance(state, longhaul.Client):
        return _of_clients.setdefault(state, Gradients(state))
    raise TypeError("the hook's state is %s; wanted is None, a longhaul.Client or longhaul.torch.Gradients" %
                    type(state).__name__)


def broadcast_parameters(module, source=0, of=None):
    """Gives all workers rank `source`'s parameters and buffers, bit for bit."""
    of = of or client()
    if not isinstance(source, int) or not 0 <= source < of.world_size:
        raise ValueError("source is %r; wanted is a rank, 0 to %d" % (source, of.world_size - 1))
    exchange = _Exchange.of_client(of, "parameters")
    for value in module.state_dict().values():
        exchange.broadcast(value, source)


class PerParameter:
    """An optimizer's steps, on the mean of the workers' gradients: each parameter's gradient leaves as soon as the backward pass
    has it, those of the front layers first where several wait.

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        longhaul.torch.PerParameter(optimizer, model)

    module: each of its parameters is a tensor of the job, under its name; all start as rank 0's. optimizer.step() waits for the
    means, which are in the place of the gradients then; zeros where a parameter had no part in the loss of any rank. What changes
    gradients (clipping, unscaling) does so after wrapper.synchronize(), which waits as well. weight and settings as of
    Gradients."""

    def __init__(self, optimizer, module, of=None, weight=None, **settings):
        self._client, self._weight, self._synchronizes = of or client(), weight, True
        self._slots, self._pending, self._nodes, self._averaged = {}, {}, [], False
        prefix = _numbered(self._client, "torch/parameter")
        broadcast_parameters(module, of=self._client)
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for index, (name, parameter) in enumerate(module.named_parameters()):
            if not parameter.requires_grad or id(parameter) not in stepped or parameter.numel() == 0:
                continue
            self._slots[parameter] = _Slot(self._client, prefix + "/" + name, parameter, {"priority": index, **settings})
            # The node that adds up a parameter's gradient: its hook runs once .grad has it.
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(lambda *_, p=parameter: self._on_gradient(p))
            self._nodes.append(node)
        step = optimizer.step

        def averaged(_, closure=None):
            if closure is not None:
                raise ValueError("a closure calls backward() again: longhaul averages once a step")
            if not self._averaged:
                self.synchronize()
            self._averaged = False
            return step()

        optimizer.step = types.MethodType(averaged, optimizer)  # schedulers count the calls of a method

    def _on_gradient(self, parameter):
        if self._synchronizes:
            self._begin(parameter)

    def _begin(self, parameter):
        if parameter in self._pending or self._averaged:
            raise RuntimeError("a second backward() before step(): accumulate in `with wrapper.no_sync():`")
        # A parameter that had no part in the loss contributes nothing to those of the others.
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if gradient.layout != torch.strided:
            raise TypeError("the gradient of %s is sparse, which does not travel: make its layer with sparse=False" %
                            self._slots[parameter].tensor.name)
        ended = concurrent.futures.Future()
        self._pending[parameter] = ended, parameter.grad, gradient._version

        def end(error, average):
            if error is None:
                ended.set_result(average)
            else:
                ended.set_exception(error)

        # A copy: the gradient's own memory is the program's, which may write to it while it is on its way.
        self._slots[parameter].average(self._client, gradient.detach().reshape(-1).clone(), self._weight, end)

    @contextlib.contextmanager
    def no_sync(self):
        """Gradients of backward() in here add up at this worker."""
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before

    def synchronize(self):
        """Waits for the means, which are in the place of the gradients then: for what looks at them or changes them before
        optimizer.step()."""
        if self._averaged:
            return
        for parameter in self._slots.keys() - self._pending.keys():
            if parameter.requires_grad:
                self._begin(parameter)
        pending, self._pending = self._pending, {}
        for parameter, (_, gradient, version) in pending.items():
            if parameter.grad is not gradient or (gradient is not None and gradient._version != version):
                raise RuntimeError("gradients have changed since backward(), and what was sent has not: call "
                                   "wrapper.synchronize() first, then change them, then step()")
        for parameter, (ended, _, _) in pending.items():
            average = ended.result().view_as(parameter)
            with torch.no_grad():
                if parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)
                parameter.grad.copy_(average)
        self._averaged = True


# --- Local steps ---


class _Fragment:
    def __init__(self, of, name, parameters, weight, settings):
        self._client, self._parameters, self._weight = of, parameters, weight
        self.base = _flat(parameters).to("cpu", torch.float32)  # what the server has
        self._tensor = of.declare(name, initial=self.base, **settings)
        of.pull(self._tensor, self.base).wait()  # all workers start from the values of one
        _scatter(self.base, parameters)
        # What the local steps began at: rounded as the parameters are, so that their rounding is not learned.
        self._start = _flat(parameters).to("cpu", torch.float32)
        self._delta, self._out = torch.empty_like(self.base), torch.empty_like(self.base)
        self._sent, self._owed = torch.empty_like(self.base), torch.empty_like(self.base)
        self._running = None
        self.steps = 0  # local ones since the last outer one began

    def begin(self):
        self.steps = 0
        self._sent.copy_(_flat(self._parameters))
        torch.sub(self._start, self._sent, out=self._delta)  # since the last one: what is owed comes by itself
        self._running = _push_pull(self._client, self._tensor, self._delta, self._out, self._weight)

    def end(self):
        """Takes the outer result; what was learned since it began stays on top of it, and so does what the server has not taken
        yet: without it a worker would learn that again, and the server take it twice."""
        if self._running is None:
            return
        running, self._running = self._running, None
        running.wait()
        since = _flat(self._parameters).to("cpu", torch.float32).sub_(self._sent)
        self.base.copy_(self._out)
        self._client.owed(self._tensor, self._owed)
        _scatter(torch.add(since, self.base, out=self._start).sub_(self._owed), self._parameters)
        torch.sub(_flat(self._parameters).to("cpu", torch.float32), since, out=self._start)

    def same(self):
        """The server's parameters alone, as all workers have them. REQUIRES: no step since the last outer one, which has ended."""
        _scatter(self.base, self._parameters)
        self._start.copy_(_flat(self._parameters))


class DiLoCo:
    """DiLoCo (Douillard et al. 2023), streaming (Douillard et al. 2025): local steps of `optimizer`, and every so many an outer
    step at the server on the mean of what they changed.

        with longhaul.torch.DiLoCo(model, optimizer, every=32, fragments=4, overlap=8):
            for batch in batches:
                ...
                optimizer.step()

    every: H, local steps between two outer ones. outer: the server's optimizer. fragments: parts of the model, of whole
    parameters and about equally long, that take their outer step in turn. overlap: local steps from an outer step's begin to
    when its result is taken, in which nothing waits for it; below every. weight: of this worker's contributions. settings: of
    Client.declare, such as wire_dtype and result_dtype. At the end, without an exception, all workers take a last outer step of
    all fragments that stepped since theirs, and have the same parameters; what the server has not taken then of a share (topk_share)
    is lost, so let the rate of learning fall before. Frozen parameters and buffers start as rank 0's; buffers
    are each worker's own from then on."""

    def __init__(self, module, optimizer, every, outer="sgd:lr=0.7,momentum=0.9,nesterov", fragments=1, overlap=0, of=None,
                 weight=None, **settings):
        parameters = [p for p in module.parameters() if p.requires_grad]
        if not parameters:
            raise ValueError("the module has no parameter that is trained")
        if any(p.is_complex() for p in parameters):
            raise TypeError("complex parameters do not travel")
        if every < 1 or not 0 <= overlap < every or not 1 <= fragments <= min(every, len(parameters)):
            raise ValueError("wanted are every >= 1, 0 <= overlap < every and 1 <= fragments <= every and the parameters' "
                             "number; given are %d, %d and %d" % (every, overlap, fragments))
        self._optimizer, self._every, self._overlap, self._steps = optimizer, every, overlap, 0
        of = of or client()
        total = sum(p.numel() for p in parameters)
        parts, seen = [[] for _ in range(fragments)], 0
        for left, parameter in zip(range(len(parameters), 0, -1), parameters):
            fullest = next((i for i, part in enumerate(parts) if not part), fragments)
            place = min(seen * fragments // total, fragments - 1)
            if fullest < fragments and (place > fullest or fragments - fullest >= left):
                place = fullest
            parts[place].append(parameter)
            seen += parameter.numel()
        prefix = _numbered(of, "torch/diloco")
        self._fragments = [_Fragment(of, "%s/%d" % (prefix, i), part, weight, {"optimizer": outer, **settings})
                           for i, part in enumerate(parts)]
        exchange = _Exchange.of_client(of, "parameters")
        for value in itertools.chain((p for p in module.parameters() if not p.requires_grad), module.buffers()):
            exchange.broadcast(value, 0)

    def __enter__(self):
        self._step = self._optimizer.step

        def counted(_, *arguments, **named):
            result = self._step(*arguments, **named)
            self._after_step()
            return result

        self._optimizer.step = types.MethodType(counted, self._optimizer)  # schedulers count the calls of a method
        return self

    def __exit__(self, kind, error, _):
        self._optimizer.step = self._step
        if kind is None:
            self.synchronize()

    def _due(self, fragment, step):
        return (step + fragment * self._every // len(self._fragments)) % self._every == 0

    def _after_step(self):
        self._steps += 1
        for i, fragment in enumerate(self._fragments):
            fragment.steps += 1
            if self._due(i, self._steps):
                fragment.begin()
            if self._due(i, self._steps - self._overlap):
                fragment.end()

    def synchronize(self):
        """An outer step, now, of all fragments that stepped since theirs: all workers call it at the same step."""
        for fragment in self._fragments:
            fragment.end()
            if fragment.steps:
                fragment.begin()
        for fragment in self._fragments:
            fragment.end()
            fragment.same()
