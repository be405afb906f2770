#!/usr/bin/env python3
"""A transformer that predicts the next byte of a text, by DiLoCo: most steps are each worker's own, and every --every-th all
of them take a common one at the server, of the parameters' halves in turn and without waiting for it.

    longhaul run --workers 2 --rate 20mbit --loss 2% -- python3 examples/diloco.py
"""
import argparse
import glob
import sysconfig

import torch
from torch import nn

import longhaul.torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--every", type=int, default=32, help="local steps between two outer ones")
parser.add_argument("--fragments", type=int, default=2)
parser.add_argument("--overlap", type=int, default=8, help="local steps that an outer one may be on its way")
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--outer", default="sgd:lr=0.7,momentum=0.9,nesterov", help="the server's optimizer")
parser.add_argument("--wire-dtype", default="float32", help="of what changed, for example int8 or int2")
parser.add_argument("--topk-share", type=float, help="of what changed, the largest of which travel, for example 0.015625")
parser.add_argument("--result-dtype", default="float32")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--text", nargs="+", default=sorted(glob.glob(sysconfig.get_path("stdlib") + "/*.py")),
                    help="files; the standard library of Python")
options = parser.parse_args()
LENGTH, WIDTH, LAYERS, BYTES = 64, 128, 2, 256


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.byte, self.place = nn.Embedding(BYTES, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS)
        self.out = nn.Linear(WIDTH, BYTES)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, text):
        return self.out(self.layers(self.byte(text) + self.place.weight[:text.shape[1]], self.mask))


torch.set_num_threads(1)
worker = longhaul.torch.client()
torch.manual_seed(options.seed)
model = Model()

text = bytearray().join(open(name, "rb").read() for name in options.text)
text = torch.frombuffer(text, dtype=torch.uint8)
held_out, text = text[:len(text) // 20], text[len(text) // 20:]
own = text[worker.rank * len(text) // worker.world_size:(worker.rank + 1) * len(text) // worker.world_size]
random = torch.Generator().manual_seed(options.seed * 1000 + worker.rank)


def predict(data, count):
    starts = torch.randint(len(data) - LENGTH - 1, (count,), generator=random)
    windows = torch.stack([data[s:s + LENGTH + 1] for s in starts]).long()
    return model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()


settings = {"wire_dtype": options.wire_dtype, "result_dtype": options.result_dtype}
if options.topk_share:
    settings["topk_share"] = options.topk_share
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with longhaul.torch.DiLoCo(model, optimizer, every=options.every, outer=options.outer, fragments=options.fragments,
                           overlap=options.overlap, **settings):
    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(*predict(own, options.batch))
        loss.backward()
        optimizer.step()
        if worker.rank == 0 and step % 50 == 0:
            print("step %d of %d: loss %.3f" % (step, options.steps, loss.item()), flush=True)

if worker.rank == 0:
    random.manual_seed(options.seed)
    with torch.no_grad():
        scores, right = zip(*(predict(held_out, 256) for _ in range(8)))
        scores, right = torch.cat(scores), torch.cat(right)
        print("held-out loss %.4f nats a byte, %.2f %% of the bytes right" % (
            nn.functional.cross_entropy(scores, right).item(), 100 * (scores.argmax(1) == right).float().mean().item()))
    print("sent %.2f MB of chunks" % (worker.stats()["chunk_bytes_sent"] / 1e6))
