#!/usr/bin/python3
"""One rank of the training of bench/accuracy/main.py: writes, as JSON, the test accuracy over the seconds of training."""
import argparse
import gzip
import json
import socket
import time

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tcp_server import exchange_parts

DATA = "/usr/share/datasets/fashion-mnist"
EVERY = 10  # steps between two snapshots


def load(part):
    with gzip.open("%s/%s-images-idx3-ubyte.gz" % (DATA, part)) as file:
        images = numpy.frombuffer(file.read(), numpy.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open("%s/%s-labels-idx1-ubyte.gz" % (DATA, part)) as file:
        labels = numpy.frombuffer(file.read(), numpy.uint8, offset=8)
    return torch.from_numpy(images / numpy.float32(255)), torch.from_numpy(labels.astype(numpy.int64))


class Longhaul:
    def __init__(self, model, rank, ranks, options):
        import longhaul.torch
        dist.init_process_group("longhaul", init_method="longhaul://")
        self.model = DistributedDataParallel(model)
        self.model.register_comm_hook(None, longhaul.torch.ddp_hook)

    def average(self):
        pass


class Gloo:
    def __init__(self, model, rank, ranks, options):
        host, port = options.join.rsplit(":", 1)
        dist.init_process_group("gloo", init_method="tcp://%s:%s" % (host, port), rank=rank, world_size=ranks)
        self.model = DistributedDataParallel(model)

    def average(self):
        pass


class Tcp:
    """A parameter server over TCP: the gradient in --parts connections, each part back as soon as all have sent it."""

    def __init__(self, model, rank, ranks, options):
        self.model = model
        self.parameters = list(model.parameters())
        host, port = options.join.rsplit(":", 1)
        self.sockets = []
        for part in range(options.parts):
            for _ in range(200):
                try:
                    self.sockets.append(socket.create_connection((host, int(port)), 30))
                    break
                except ConnectionRefusedError:
                    time.sleep(0.05)
            self.sockets[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, options.congestion.encode())
            self.sockets[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sockets[-1].settimeout(None)
            self.sockets[-1].sendall(bytes([rank, part]))

    def average(self):
        flat = torch.cat([p.grad.reshape(-1) for p in self.parameters])
        exchange_parts(self.sockets, flat.numpy())
        start = 0
        for parameter in self.parameters:
            parameter.grad.copy_(flat[start:start + parameter.numel()].view_as(parameter))
            start += parameter.numel()


class Normalized(nn.Module):
    """To mean 0 and standard deviation 1 over the training images."""

    def forward(self, images):
        return (images - 0.286) / 0.353


def momentum(parameters, rate):
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9)


# The networks, their optimizers and first learning rates.
MODELS = {
    "mlp": (torch.optim.Adam, 0.004, lambda: nn.Sequential(Normalized(), nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))),
    # That of examples/torch_ddp.py.
    "conv": (momentum, 0.05, lambda: nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10))),
}


def shard(labels, rank, ranks, skew, generator):
    """Indices of a rank: a share of `skew` from its own classes, the rest from all."""
    own = torch.nonzero((labels * ranks // 10) == rank).reshape(-1)

    def draw(count):
        mine = torch.rand(count, generator=generator) < skew
        return torch.where(mine, own[torch.randint(len(own), (count,), generator=generator)],
                           torch.randint(len(labels), (count,), generator=generator))

    return draw


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--by", choices=["longhaul", "gloo", "tcp"], required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--join", required=True)
    parser.add_argument("--congestion", default="bbr")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--model", choices=MODELS, default="mlp")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--limit", type=float, default=600, help="seconds")
    parser.add_argument("--skew", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", required=True)
    parser.add_argument("--progress", action="store_true", help="rank 0 prints steps, seconds and loss")
    options = parser.parse_args()
    rank, ranks = options.rank, options.ranks
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    images, labels = load("train")
    make_optimizer, rate, make = MODELS[options.model]
    model = make()
    by = {"longhaul": Longhaul, "gloo": Gloo, "tcp": Tcp}[options.by](model, rank, ranks, options)
    optimizer = make_optimizer(model.parameters(), rate)
    draw = shard(labels, rank, ranks, options.skew, torch.Generator().manual_seed(options.seed * 1000 + rank))
    snapshots, begun = [], None
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - step / options.steps)
        batch = draw(options.batch)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(by.model(images[batch]), labels[batch])
        loss.backward()
        by.average()
        optimizer.step()
        if step == 2:  # connections, declarations and DDP's second set of buckets are there
            begun = time.monotonic()
        if begun is None:
            continue
        seconds = time.monotonic() - begun
        if step % EVERY == 0 or step == options.steps - 1 or seconds > options.limit:
            snapshots.append((step + 1, seconds, [p.detach().clone() for p in model.parameters()]))
            if options.progress and rank == 0:
                print(step + 1, seconds, loss.item(), flush=True)
        if seconds > options.limit:
            break
    if rank == 0:
        images, labels = load("t10k")
        points = []
        with torch.no_grad():
            for step, seconds, parameters in snapshots:
                for parameter, value in zip(model.parameters(), parameters):
                    parameter.copy_(value)
                scores = torch.cat([model(part) for part in images.split(1000)])
                points.append([step, round(seconds, 3), (scores.argmax(1) == labels).float().mean().item(),
                               round(nn.functional.cross_entropy(scores, labels).item(), 5)])
        with open(options.json, "w", encoding="utf8") as file:
            json.dump({"points": points, "finished": snapshots[-1][0] == options.steps}, file)


if __name__ == "__main__":
    main()
