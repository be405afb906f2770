#!/usr/bin/python3
"""Useful time of training over all of it, where the link is slow or loses: DiLoCo by longhaul and the same algorithm over gloo.

    bench/accuracy/utilisation.py --loss 0,1,5 --json result.json

Four ranks and the server in sites of their own, a link with its own losses between any two. A step's computing is emulated: it
takes --compute seconds and no processor, so that the ranks of one machine do not share it. Utilisation is steps x --compute over
the wall time from the first step to the last, of the slowest rank: the last, closing outer step is not in it. Needs root (network
namespaces) and python3-torch.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from main import kernel_congestion

RANKS = 4


class GlooDiLoCo:
    """What longhaul.torch.DiLoCo does, by asynchronous all-reduces: outer SGD 0.7 with Nesterov momentum 0.9 on every rank."""

    def __init__(self, parameters, every, fragments, overlap):
        self.every, self.overlap, self.steps = every, overlap, 0
        self.fragments = [parameters[i * len(parameters) // fragments:(i + 1) * len(parameters) // fragments] for i in range(fragments)]
        self.anchors = [[p.clone() for p in part] for part in self.fragments]
        self.momenta = [[p * 0 for p in part] for part in self.fragments]
        self.works = [None] * fragments

    def after_step(self):
        self.steps += 1
        for i in range(len(self.fragments)):
            if self.due(i, self.steps):
                self.begin(i)
            if self.due(i, self.steps - self.overlap):
                self.end(i)

    def due(self, fragment, step):
        return step > 0 and (step + fragment * self.every // len(self.fragments)) % self.every == 0

    def begin(self, i):
        import torch.distributed as dist
        deltas = [anchor - p for anchor, p in zip(self.anchors[i], self.fragments[i])]
        self.works[i] = [(p.clone(), delta, dist.all_reduce(delta, async_op=True)) for p, delta in zip(self.fragments[i], deltas)]

    def end(self, i):
        if not self.works[i]:
            return
        for place, (sent, delta, work) in enumerate(self.works[i]):
            work.wait()
            delta /= RANKS
            momentum, anchor = self.momenta[i][place], self.anchors[i][place]
            momentum.mul_(0.9).add_(delta)
            anchor.sub_(0.7 * (delta + 0.9 * momentum))
            self.fragments[i][place].add_(anchor - sent)  # what was learned meanwhile stays
        self.works[i] = None


def train(options):
    """One rank: its seconds and steps as a line of JSON."""
    import torch
    torch.set_num_threads(1)
    module = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(options.parameters // 8)) for _ in range(8)])
    noise = [torch.randn(p.shape, generator=torch.Generator().manual_seed(options.rank)) for p in module]
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)

    def steps(after):
        begun = time.monotonic()
        for step in range(options.steps):
            for p, g in zip(module, noise):
                p.grad = g if step % 2 else -0.5 * g
            # Until the step would be over on a processor of its own.
            time.sleep(max(0, options.compute))
            optimizer.step()
            after()
        return {"seconds": time.monotonic() - begun, "values": [p[0].item() for p in module]}

    if options.by == "longhaul":
        import longhaul.torch
        diloco = longhaul.torch.DiLoCo(module, optimizer, every=options.every, fragments=options.fragments, overlap=options.overlap)
        longhaul.torch.client().barrier("begin")
        with diloco:
            end = steps(lambda: None)
    else:
        import torch.distributed as dist
        dist.init_process_group("gloo", init_method="tcp://" + options.join, rank=options.rank, world_size=RANKS)
        peer = GlooDiLoCo([p.data for p in module], options.every, options.fragments, options.overlap)
        dist.barrier()
        end = steps(peer.after_step)
        dist.barrier()
    print(json.dumps(end), flush=True)


def run(options, by, every, overlap, loss, folder):
    """Seconds of the slowest rank, and a value of each parameter of the first; None where it did not come to its end."""
    from main import BIN, LIBRARY, ROOT, Wan
    wan = Wan(options, loss, "ABCDE", folder)
    join, key = "10.77.1.1:7700" if by == "longhaul" else "10.77.2.1:7700", folder / "job.key"
    server, ranks = None, []
    fragments = min(options.fragments, every)
    try:
        if by == "longhaul":
            subprocess.run([BIN / "longhaul", "keygen", "--out", key], check=True, stdout=subprocess.DEVNULL)
            with open(folder / "server.log", "w", encoding="utf8") as log:
                server = Wan.enter("A", [BIN / "longhaul-server", "--listen", join, "--workers", RANKS, "--once", "--key", key],
                                   stdout=subprocess.DEVNULL, stderr=log)
            time.sleep(0.5)
        for rank in range(RANKS):
            command = [sys.executable, __file__, "--by", by, "--rank", rank, "--join", join, "--steps", options.steps, "--every", every,
                       "--fragments", fragments, "--overlap", overlap, "--compute", options.compute, "--parameters", options.parameters]
            more = {"LONGHAUL_JOIN": join, "LONGHAUL_KEY": str(key), "LONGHAUL_RANK": str(rank), "LONGHAUL_WORLD_SIZE": str(RANKS),
                    "LONGHAUL_LIBRARY": LIBRARY, "PYTHONPATH": str(ROOT / "python"),
                    "GLOO_SOCKET_IFNAME": "wan0"}
            with open(folder / ("rank%d.log" % rank), "w", encoding="utf8") as log:
                ranks.append(Wan.enter("BCDE"[rank], command, env={**os.environ, **more}, stdout=subprocess.PIPE, stderr=log, text=True))
        deadline = time.monotonic() + options.limit
        while any(r.poll() is None for r in ranks) and not any(r.poll() for r in ranks) and time.monotonic() < deadline:
            time.sleep(0.2)
        lines = [r.stdout.read() if r.poll() == 0 else "" for r in ranks]
        if not all(lines):
            print("%s: %s" % (by, "".join((folder / ("rank%d.log" % r)).read_text()[-500:] for r in range(RANKS)) or "no end in time"), file=sys.stderr)
            return None
        ends = [json.loads(line.splitlines()[-1]) for line in lines]
        return {"seconds": max(end["seconds"] for end in ends), "values": ends[0]["values"]}
    finally:
        for process in ranks + [server] * bool(server):
            if process.poll() is None:
                process.kill()
            process.wait()
        wan.down()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="longhaul:1:0,longhaul:32:0,longhaul:32:8,gloo:32:8", help="by:H:overlap")
    parser.add_argument("--loss", default="0,1,5", help="percent each way")
    parser.add_argument("--burst", type=float, default=0, help="mean length of loss bursts in packets; 0: independent")
    parser.add_argument("--rate", default="100mbit", help="of each link; several: comma")
    parser.add_argument("--delay", default="50ms")
    parser.add_argument("--queue", default="50ms")
    parser.add_argument("--compute", type=float, default=1, help="seconds a step")
    parser.add_argument("--parameters", type=int, default=2_500_000)
    parser.add_argument("--fragments", type=int, default=4)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--limit", type=float, default=900, help="seconds that a run may take")
    parser.add_argument("--json")
    parser.set_defaults(uneven=False)  # what main.Wan asks: each link loses the same
    # A rank's.
    for name in ("--by", "--join"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    for name in ("--rank", "--every", "--overlap"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.by:
        return train(options)
    if not options.json:
        parser.error("--json is needed")
    runs, rates = [], options.rate.split(",")
    for loss in map(float, options.loss.split(",")):
        for options.rate in rates:
            for cell in options.cells.split(","):
                by, every, overlap = cell.split(":")
                with tempfile.TemporaryDirectory() as folder:
                    end = run(options, by, int(every), int(overlap), loss, pathlib.Path(folder))
                seconds = end and end["seconds"]
                line = {"by": by, "every": int(every), "overlap": int(overlap), "loss": loss, "rate": options.rate, "seconds": seconds,
                        "values": end and end["values"],
                        "utilisation": options.steps * options.compute / seconds if seconds else None}
                runs.append(line)
                print(line, flush=True)
                with open(options.json, "w", encoding="utf8") as file:
                    json.dump({"options": vars(options), "kernel_congestion": kernel_congestion(), "runs": runs}, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
