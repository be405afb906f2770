#!/usr/bin/python3
"""Three models of PyTorch under loss, through the learning bench's exchange: what their gradients go through is the real code of
the workers and of the server (exchange.h), their losses have no time.

    tools/dev bench learning --models                    all runs that are missing, three seeds
    bench/learning/models.py --scenario '{"model": "conv", "loss": 0.1}'    one run, its outcome as a line of JSON

conv: two convolutions and two layers on Fashion-MNIST. bytes: a transformer that predicts the next byte of Python's standard
library. embedding: a bag of hashed words and two layers that say of which of 20 modules of the library a piece is; of a table of
8192 rows a batch touches some hundreds. Every run is a line of docs/results/learning/models.jsonl; what is there is not run again.
"""
import argparse
import ctypes
import functools
import glob
import gzip
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import re
import sys
import sysconfig
import time
import zlib

try:
    import numpy
    import torch
    from torch import nn
except ImportError as error:
    sys.exit("bench/learning/models.py: %s; `tools/dev setup torch` installs Debian's python3-torch, which /usr/bin/python3 has" % error)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIBRARY = ROOT / "build/release/lib/liblonghaul_learning_exchange.so"
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
OUTER = "sgd:lr=0.7,momentum=0.9,nesterov"

# What a run depends on. Those that the exchange does not know are the trainer's own: model; and every: 0, or DiLoCo's local
# steps (of AdamW) between two rounds.
DEFAULTS = {"model": "conv", "every": 0, "policy": "residual", "lost_energy": 0.15, "optimizer": "sgd:lr=0.1,momentum=0.9",
            "workers": 8, "batch": 16, "rounds": 300, "skew": 0.9, "transposed": False, "loss": 0.0, "burst": 10.0,
            "uneven": True, "seed": 1}
OWN = ("model", "every", "overlap")
MORE = ("wire_dtype", "result_dtype", "priority", "topk_share")  # settings of the exchange that a scenario may have besides
# And overlap: local steps from a round's begin to when its result is taken, as of longhaul.torch.DiLoCo; 0 where it is not said.


# --- the exchange

class _Stats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("high_chunks", "low_chunks", "low_lost", "filled")]


@functools.lru_cache(maxsize=None)
def _library(path):
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        sys.exit("bench/learning/models.py: %s; `tools/dev build` makes it" % error)
    library.longhaul_exchange_error.restype = ctypes.c_char_p
    library.longhaul_exchange_create.restype = ctypes.c_void_p
    library.longhaul_exchange_create.argtypes = [ctypes.c_char_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p]
    library.longhaul_exchange_destroy.argtypes = [ctypes.c_void_p]
    library.longhaul_exchange_destroy.restype = None
    library.longhaul_exchange_round.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.longhaul_exchange_parameters.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64]
    library.longhaul_exchange_owed.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64]
    library.longhaul_exchange_statistics.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return library


def _addresses(tensors):
    """Of float32 tensors in one piece, which the caller keeps."""
    for tensor in tensors:
        if tensor.dtype != torch.float32 or not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise ValueError("wanted are contiguous float32 tensors of the CPU")
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


class Exchange:
    """A job of one process: its workers and its server. Errors are ValueError."""

    def __init__(self, scenario, initial, library=LIBRARY):
        self._library, self._handle, self._workers = _library(library), None, scenario.get("workers", DEFAULTS["workers"])
        self._shapes = [tensor.shape for tensor in initial]
        counts = (ctypes.c_uint64 * len(initial))(*[tensor.numel() for tensor in initial])
        self._handle = self._library.longhaul_exchange_create(json.dumps(scenario).encode(), len(initial), counts, _addresses(initial))
        if not self._handle:
            raise ValueError(self._library.longhaul_exchange_error().decode())

    def __del__(self):
        if self._handle:
            self._library.longhaul_exchange_destroy(self._handle)

    def _check(self, failed):
        if failed:
            raise ValueError(self._library.longhaul_exchange_error().decode())

    def round(self, gradients):
        """gradients[rank][tensor]"""
        if [[g.shape for g in own] for own in gradients] != [self._shapes] * self._workers:
            raise ValueError("the gradients' ranks, tensors or shapes are not those of the job")
        self._check(self._library.longhaul_exchange_round(self._handle, _addresses([g for own in gradients for g in own])))

    def parameters(self):
        values = [torch.empty(shape) for shape in self._shapes]
        for i, tensor in enumerate(values):
            self._check(self._library.longhaul_exchange_parameters(self._handle, i, tensor.data_ptr(), tensor.numel()))
        return values

    def owed(self, rank):
        """What the server has not taken of a rank's gradients, by tensor."""
        values = [torch.empty(shape) for shape in self._shapes]
        for i, tensor in enumerate(values):
            self._check(self._library.longhaul_exchange_owed(self._handle, rank, i, tensor.data_ptr(), tensor.numel()))
        return values

    def stats(self):
        stats = _Stats()
        self._check(self._library.longhaul_exchange_statistics(self._handle, ctypes.byref(stats)))
        return {name: getattr(stats, name) for name, _ in stats._fields_}


# --- models and their data

class Images:
    """Fashion-MNIST."""
    chance = 0.1

    def __init__(self):
        self.inputs, self.labels = self._load("train")
        self.test = self._load("t10k")

    @staticmethod
    def _load(part):
        with gzip.open("%s/%s-images-idx3-ubyte.gz" % (FASHION_MNIST, part)) as file:
            images = numpy.frombuffer(file.read(), numpy.uint8, offset=16).reshape(-1, 1, 28, 28)
        with gzip.open("%s/%s-labels-idx1-ubyte.gz" % (FASHION_MNIST, part)) as file:
            labels = numpy.frombuffer(file.read(), numpy.uint8, offset=8)
        return torch.from_numpy(images / numpy.float32(255)), torch.from_numpy(labels.astype(numpy.int64))

    def own(self, rank, workers):
        return torch.nonzero(self.labels * workers // 10 == rank).reshape(-1)

    def count(self):
        return len(self.labels)

    def batch(self, indices):
        return self.inputs[indices], self.labels[indices]


def library_files():
    return sorted(glob.glob(sysconfig.get_path("stdlib") + "/*.py"))


class Bytes:
    """Python's standard library, module after module: a worker's own is one piece of it. Held out: every twentieth 4 KiB."""
    LENGTH, BLOCK = 32, 4096
    chance = 1 / 256

    def __init__(self):
        text = b"".join(pathlib.Path(name).read_bytes() for name in library_files())
        text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        blocks = text[:len(text) // self.BLOCK * self.BLOCK].reshape(-1, self.BLOCK)
        held_out = torch.arange(len(blocks)) % 20 == 7
        self.text = blocks[~held_out].reshape(-1)
        self.test = self._windows(blocks[held_out].reshape(-1), torch.arange(0, int(held_out.sum()) * self.BLOCK - self.LENGTH - 1, 97))

    def _windows(self, text, starts):
        windows = text[starts.unsqueeze(1) + torch.arange(self.LENGTH + 1)].long()
        return windows[:, :-1], windows[:, 1:]

    def own(self, rank, workers):
        return torch.arange(self.count() * rank // workers, self.count() * (rank + 1) // workers)

    def count(self):
        return len(self.text) - self.LENGTH - 1

    def batch(self, indices):
        return self._windows(self.text, indices)


class Modules:
    """Pieces of 24 words of the 20 largest modules of Python's standard library. Held out: every fifth."""
    CLASSES, PIECE, ROWS = 20, 24, 8192
    chance = 1 / 20

    def __init__(self):
        largest = sorted(library_files(), key=lambda name: (-os.path.getsize(name), name))[:self.CLASSES]
        pieces, labels = [], []
        for label, name in enumerate(largest):
            words = re.findall(rb"\w+|[^\w\s]", pathlib.Path(name).read_bytes())
            rows = torch.tensor([zlib.crc32(word) % self.ROWS for word in words])
            pieces.append(rows[:len(rows) // self.PIECE * self.PIECE].reshape(-1, self.PIECE))
            labels.append(torch.full((len(pieces[-1]),), label))
        pieces, labels = torch.cat(pieces), torch.cat(labels)
        held_out = torch.arange(len(labels)) % 5 == 2
        self.test = pieces[held_out], labels[held_out]
        self.inputs, self.labels = pieces[~held_out], labels[~held_out]

    def own(self, rank, workers):
        return torch.nonzero(self.labels * workers // self.CLASSES == rank).reshape(-1)

    def count(self):
        return len(self.labels)

    def batch(self, indices):
        return self.inputs[indices], self.labels[indices]


class Transformer(nn.Module):
    WIDTH, LAYERS = 32, 2

    def __init__(self):
        super().__init__()
        self.byte, self.place = nn.Embedding(256, self.WIDTH), nn.Embedding(Bytes.LENGTH, self.WIDTH)
        layer = nn.TransformerEncoderLayer(self.WIDTH, 4, 4 * self.WIDTH, dropout=0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, self.LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(self.WIDTH, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(Bytes.LENGTH), persistent=False)

    def forward(self, text):
        return self.out(self.layers(self.byte(text) + self.place.weight, self.mask))


def conv():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(400, 64), nn.ReLU(), nn.Linear(64, 10))


def embedding():
    return nn.Sequential(nn.EmbeddingBag(Modules.ROWS, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, Modules.CLASSES))


# Of each: what it is, its data, what differs from DEFAULTS, its optimizers, and the rate of AdamW between DiLoCo's rounds.
MODELS = {
    "conv": (conv, Images, {"rounds": 2000, "batch": 32}, ("sgd:lr=0.03,momentum=0.9", "adam:lr=0.002"), 1e-3),
    "bytes": (Transformer, Bytes, {"rounds": 300, "batch": 4}, ("sgd:lr=0.1,momentum=0.9", "adamw:lr=0.004"), 1e-3),
    "embedding": (embedding, Modules, {"rounds": 1500, "batch": 32}, ("sgd:lr=3,momentum=0.9", "adam:lr=0.003"), 3e-3),
}


@functools.lru_cache(maxsize=None)
def data_of(model):
    return MODELS[model][1]()


# --- a run

def turned(tensor, back=False):
    """[out][in] as [in][out], or back; of a convolution [out][in][h][w] as [h][w][in][out], as Flax has it."""
    if tensor.dim() == 2:
        return tensor.t().contiguous()
    if tensor.dim() == 4:
        return tensor.permute((3, 2, 0, 1) if back else (2, 3, 1, 0)).contiguous()
    return tensor


class Batches:
    """A worker's: a share of `skew` of each from its own part of the data, the rest from all."""

    def __init__(self, data, scenario, rank):
        self._data, self._size, self._skew = data, scenario["batch"], scenario["skew"]
        self._own = data.own(rank, scenario["workers"])
        self._random = torch.Generator().manual_seed(scenario["seed"] * 1000 + rank)

    def draw(self):
        own = self._own[torch.randint(len(self._own), (self._size,), generator=self._random)]
        any_of_all = torch.randint(self._data.count(), (self._size,), generator=self._random)
        return self._data.batch(torch.where(torch.rand(self._size, generator=self._random) < self._skew, own, any_of_all))


def loss_of(model, batch):
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())


def evaluate(model, test):
    """Accuracy and cross-entropy in nats."""
    right, loss, count = 0, 0.0, 0
    with torch.no_grad():
        for inputs, labels in zip(*(part.split(500) for part in test)):
            outputs, labels = model(inputs).flatten(0, -2), labels.flatten()
            right += int((outputs.argmax(1) == labels).sum())
            loss += nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
            count += len(labels)
    return right / count, loss / count


class Gradients:
    """What a worker pushes: the gradient of a batch. With SGD its rate falls to zero, by which gradients are multiplied."""

    def __init__(self, scenario, model, batches):
        self._scenario, self._model, self._batches = scenario, model, batches

    def of(self, rank, round_number):
        self._model.zero_grad()
        loss_of(self._model, self._batches[rank].draw()).backward()
        falls = self._scenario["optimizer"].startswith("sgd")
        factor = 1 - round_number / self._scenario["rounds"] if falls else 1
        return [p.grad * factor for p in self._model.parameters()]


class LocalSteps:
    """What a worker pushes: by how much its own steps have changed the parameters, old - new (DiLoCo). They begin at the server's
    less what it has not taken of this worker yet, as longhaul.torch.DiLoCo does; with overlap they went on meanwhile, and that
    stays on top."""

    def __init__(self, scenario, model, batches, owed):
        self._every, self._model, self._batches, self._owed = scenario["every"], model, batches, owed
        self._overlap, self._sent = scenario.get("overlap", 0), [None] * len(batches)
        make, _, _, _, rate = MODELS[scenario["model"]]
        self._own = [make() for _ in batches]
        self._optimizers = [torch.optim.AdamW(own.parameters(), lr=rate) for own in self._own]

    def of(self, rank, _):
        own, sent = self._own[rank], self._sent[rank]
        if sent:
            self._step(rank, self._overlap)
        since = [now.detach() - old for now, old in zip(own.parameters(), sent)] if sent else itertools.repeat(0)
        begin = [p.detach() - owed for p, owed in zip(self._model.parameters(), self._owed(rank))]
        with torch.no_grad():
            for parameter, value, more in zip(own.parameters(), begin, since):
                parameter.copy_(value + more)
        self._step(rank, self._every - self._overlap if sent else self._every)
        self._sent[rank] = [p.detach().clone() for p in own.parameters()]
        return [old - new for old, new in zip(begin, self._sent[rank])]

    def _step(self, rank, steps):
        for _ in range(steps):
            self._own[rank].zero_grad()
            loss_of(self._own[rank], self._batches[rank].draw()).backward()
            self._optimizers[rank].step()


def train(scenario, library=LIBRARY):
    """The outcome of a scenario's run: the same one gives the same outcome."""
    scenario = {**DEFAULTS, **scenario}
    begun = time.process_time()
    torch.set_num_threads(1)
    torch.manual_seed(scenario["seed"])
    model, data = MODELS[scenario["model"]][0](), data_of(scenario["model"])
    parameters, turn = list(model.parameters()), turned if scenario["transposed"] else lambda tensor, back=False: tensor
    exchange = Exchange({k: v for k, v in scenario.items() if k not in OWN}, [turn(p.detach()) for p in parameters], library)
    batches = [Batches(data, scenario, rank) for rank in range(scenario["workers"])]
    pushed = LocalSteps(scenario, model, batches, lambda rank: [turn(owed, back=True) for owed in exchange.owed(rank)]) \
        if scenario["every"] else Gradients(scenario, model, batches)
    tail = max(1, scenario["rounds"] // 5)  # rounds over which the weights are averaged
    mean, diverged = [torch.zeros_like(p) for p in parameters], False
    for number in range(scenario["rounds"]):
        gradients = [[turn(g) for g in pushed.of(rank, number)] for rank in range(scenario["workers"])]
        if not all(bool(g.isfinite().all()) for own in gradients for g in own):
            diverged = True
            break
        exchange.round(gradients)
        with torch.no_grad():
            for parameter, average, value in zip(parameters, mean, exchange.parameters()):
                parameter.copy_(turn(value, back=True))
                if number >= scenario["rounds"] - tail:
                    average += parameter / tail
    with torch.no_grad():
        for parameter, average in zip(parameters, mean):
            parameter.copy_(average)
    accuracy, cross_entropy = (data.chance, None) if diverged else evaluate(model, data.test)
    if not diverged and not math.isfinite(cross_entropy):
        accuracy, cross_entropy, diverged = data.chance, None, True
    stats = exchange.stats()
    chunks = stats["high_chunks"] + stats["low_chunks"]
    return {"scenario": scenario, "accuracy": accuracy, "cross_entropy": cross_entropy, "diverged": diverged,
            "high_share": stats["high_chunks"] / max(1, chunks), "low_lost": stats["low_lost"] / max(1, stats["low_chunks"]),
            "python": sys.version.split()[0], "torch": torch.__version__, "seconds": round(time.process_time() - begun, 1)}


# --- the tables' runs

def lossless(scenario):
    """Nothing is lost and float32 travels: then neither policy nor layout matter, element by element."""
    whole = {setting: value for setting, value in scenario.items() if setting not in MORE}
    return {**whole, "policy": "zero", "lost_energy": 1.0, "loss": 0.0, "burst": 10.0, "uneven": True, "transposed": False}


LOSSES = ({"loss": 0.1}, {"loss": 0.3}, {"loss": 0.6, "burst": 20.0}, {"loss": 0.2}, {"loss": 0.6, "burst": 0.0, "uneven": False})


def runs(seeds):
    """In the order of their importance: a seed of all, then the next one; first what the workers push is gradients, then H local
    steps. Bursts of 10 cannot lose 95 %, as two workers do where the mean is 60 %. Shift without loss is the same but for rounding:
    what differs then is what two runs differ by."""
    gradients = [{**DEFAULTS, "model": model, **changed, "optimizer": optimizer, "transposed": transposed, **loss}
                 for loss in LOSSES for model, (_, _, changed, optimizers, _) in MODELS.items()
                 for optimizer in reversed(optimizers) for transposed in (False, True)]
    local = [{**DEFAULTS, "model": model, **MODELS[model][2], "optimizer": OUTER, "every": every, "rounds": steps // every, "skew": skew,
              "loss": loss} for loss in (0.1, 0.02) for model, steps in (("conv", 640), ("bytes", 320)) for every in (8, 32, 1)
             for skew in (0.9, 0.0)]
    # As many steps for every H, and with overlap: twelve times as many of the transformer, which 320 leave far from its end.
    local += [{**DEFAULTS, "model": model, **MODELS[model][2], "optimizer": OUTER, **how, "rounds": steps // how["every"], "skew": 0.0,
               "loss": 0.02} for model, steps in (("conv", 640), ("bytes", 3840))
              for how in ({"every": 32}, {"every": 32, "overlap": 8}, {"every": 1}, {"every": 8})]
    # The largest 64th, of 2 bits each; the outer optimizer that goes with it, and beside it DiLoCo's own.
    steps = {**DEFAULTS, "model": "bytes", **MODELS["bytes"][2], "every": 8, "rounds": 240, "skew": 0.0, "loss": 0.02}
    compressed = [{**steps, "optimizer": "sgd:lr=1", "wire_dtype": "int2", "priority": "topk", "topk_share": 1 / 64},
                  {**steps, "optimizer": OUTER}]
    rounding = [{**lossless(cell), "policy": "shift"} for cell in gradients[:12:2]]
    first = [*gradients[:12], *rounding, *gradients[12:36]]
    for cells, count in ((first, min(seeds, 2)), (local, 1), (compressed, seeds), (first, seeds), (local, seeds), (gradients, seeds)):
        for seed in range(1, count + 1):
            for cell in cells:
                yield from ({**lossless(cell), "seed": seed}, {**cell, "seed": seed})


def key(scenario):
    return json.dumps({**DEFAULTS, **scenario}, sort_keys=True)


def missing(options):
    known = set()
    if os.path.exists(options.out):
        for number, line in enumerate(open(options.out, encoding="utf8"), 1):
            try:
                known.add(key(json.loads(line)["scenario"]))
            except (ValueError, KeyError, TypeError):
                sys.exit("bench/learning/models.py: %s, line %d: not a result of this bench" % (options.out, number))
    wanted = []
    for scenario in runs(options.seeds):
        if options.quick:
            scenario["rounds"] = 3
        if key(scenario) not in known and re.search(options.only, key(scenario)):
            known.add(key(scenario))
            wanted.append(scenario)
    return wanted


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each of one thread")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so many; the next call goes on")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each cell, and of its lossless one [3]")
    parser.add_argument("--only", default="", help="regular expression for the scenarios' JSON, such as '\"model\": \"conv\"'")
    parser.add_argument("--list", action="store_true", help="only name what is missing")
    parser.add_argument("--quick", action="store_true", help="three rounds a run")
    parser.add_argument("--scenario", type=json.loads, help="only this run, such as '{\"model\": \"bytes\", \"loss\": 0.3}'")
    parser.add_argument("--out", help="file of the outcomes [docs/results/learning/models.jsonl; build/models-quick.jsonl with --quick]")
    parser.add_argument("--library", default=LIBRARY, help="the exchange [%(default)s]")
    options = parser.parse_args()
    if options.scenario is not None:
        unknown = set(options.scenario) - set(DEFAULTS) - set(MORE) - set(OWN) if isinstance(options.scenario, dict) else {"what is no object"}
        if unknown or options.scenario.get("model", "conv") not in MODELS:
            sys.exit("bench/learning/models.py: --scenario: not known: %s; settings are %s, models %s" % (
                ", ".join(sorted(unknown)) or options.scenario["model"], ", ".join(DEFAULTS), ", ".join(MODELS)))
        try:
            print(json.dumps(train(options.scenario, options.library), sort_keys=True))
        except ValueError as error:
            sys.exit("bench/learning/models.py: " + str(error))
        return
    options.out = options.out or str(ROOT / ("build/models-quick.jsonl" if options.quick else "docs/results/learning/models.jsonl"))
    wanted = missing(options)
    print("%d runs to do" % len(wanted), file=sys.stderr, flush=True)
    if options.list:
        print("\n".join(map(key, wanted)))
        return
    _library(options.library)
    os.nice(10)  # runs for long: other work goes first
    end = time.monotonic() + 60 * options.minutes
    work = functools.partial(_train_until, end, options.library)
    outcomes = map(work, wanted) if options.jobs == 1 else multiprocessing.Pool(options.jobs).imap_unordered(work, wanted)
    for number, outcome in enumerate(outcomes, 1):
        if outcome is None:
            break
        with open(options.out, "a", encoding="utf8") as file:
            file.write(json.dumps(outcome, sort_keys=True) + "\n")
        print("%d/%d %s %.2f %%, %s nats (%.0f s)" % (number, len(wanted), key(outcome["scenario"]), 100 * outcome["accuracy"],
                                                      outcome["cross_entropy"], outcome["seconds"]), file=sys.stderr, flush=True)


def _train_until(end, library, scenario):
    return train(scenario, library) if time.monotonic() < end else None


if __name__ == "__main__":
    main()
