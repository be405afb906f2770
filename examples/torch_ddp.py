#!/usr/bin/env python3
"""A convolutional network on Fashion-MNIST by PyTorch's DistributedDataParallel. Three lines are longhaul's.

    longhaul run --workers 4 --loss 2% -- python3 examples/torch_ddp.py
"""
import argparse
import gzip

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import longhaul.torch  # (1)

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--batch", type=int, default=64, help="images of a rank in a step")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
options = parser.parse_args()


def load(part):
    with gzip.open("%s/%s-images-idx3-ubyte.gz" % (options.data, part)) as file:
        images = numpy.frombuffer(file.read(), numpy.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open("%s/%s-labels-idx1-ubyte.gz" % (options.data, part)) as file:
        labels = numpy.frombuffer(file.read(), numpy.uint8, offset=8)
    return torch.from_numpy(images / numpy.float32(255)), torch.from_numpy(labels.astype(numpy.int64))


torch.set_num_threads(1)
dist.init_process_group("longhaul", init_method="longhaul://")  # (2), for dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()

torch.manual_seed(options.seed)
model = DistributedDataParallel(nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10)))
model.register_comm_hook(None, longhaul.torch.ddp_hook)  # (3)

optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0, 1 - step / options.steps))
images, labels = load("train")
order = torch.Generator().manual_seed(options.seed)

for step in range(1, options.steps + 1):
    batch = torch.randint(len(images), (ranks, options.batch), generator=order)[rank]
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
    loss.backward()
    optimizer.step()
    schedule.step()
    if rank == 0 and step % 50 == 0:
        print("step %d of %d: loss %.3f" % (step, options.steps, loss.item()), flush=True)

if rank == 0:
    images, labels = load("t10k")
    with torch.no_grad():
        scores = torch.cat([model.module(part) for part in images.split(1000)])
    print("accuracy %.2f %%, cross-entropy %.4f" % (
        100 * (scores.argmax(1) == labels).float().mean().item(), nn.functional.cross_entropy(scores, labels).item()))
dist.barrier()
