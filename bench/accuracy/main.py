#!/usr/bin/env python3
"""Seconds of training until a test accuracy: longhaul, TCP parameter servers and torch's DDP over gloo, on the same links.

    bench/accuracy/main.py --loss 0,1,5,20 --repeat 3 --json result.json

One rank in each of four sites and the server in a fifth; a link with its own losses, each way, between any two. All train the
same network (784-128-10 on Fashion-MNIST, SGD with momentum) on the same batches by the same schedule of the learning rate. Needs
root (network namespaces) and python3-torch; runs are in blocks: all runners at one loss rate and seed, then the next.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BIN = ROOT / "build/release/bin"
RUNNERS = {
    "longhaul": ("longhaul", []),
    "tcp-cubic": ("tcp", ["--congestion", "cubic", "--parts", "1"]),
    "tcp-bbr": ("tcp", ["--congestion", "bbr", "--parts", "1"]),
    "tcp-bbr-parts": ("tcp", ["--congestion", "bbr", "--parts", "16"]),
    "gloo": ("gloo", []),
}
SITES = "ABCDE"


class Wan:
    def __init__(self, options, loss, folder):
        command = [str(BIN / "longhaul-wan"), "up", "--sites", ",".join(SITES), "--rate", options.rate, "--delay", options.delay,
                   "--queue", options.queue]
        if loss:
            command += ["--gemodel", "%g%% burst %g" % (loss, options.burst)] if options.burst else ["--loss", "%g%%" % loss]
        self.process = subprocess.Popen(command, stdout=open(folder / "wan.log", "w", encoding="utf8"), stderr=subprocess.STDOUT)
        for _ in range(100):
            time.sleep(0.1)
            if self.enter("E", ["true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait() == 0:
                return
        sys.exit("bench accuracy: no WAN: " + (folder / "wan.log").read_text())

    @staticmethod
    def enter(site, command, **more):
        return subprocess.Popen([str(BIN / "longhaul-wan"), "exec", site, "--", *map(str, command)], **more)

    def down(self):
        self.process.terminate()
        self.process.wait(30)


def run(options, runner, loss, seed, folder):
    """The points of one training; None where none came."""
    by, words = RUNNERS[runner]
    wan = Wan(options, loss, folder)
    processes, server = [], None
    join = "10.77.1.1:7700"
    environment = {**os.environ, "LONGHAUL_LIBRARY": str(ROOT / "build/release/lib/liblonghaul.so"), "PYTHONPATH": str(ROOT / "python"),
                   "PYTHONDONTWRITEBYTECODE": "1"}
    key = folder / "job.key"
    try:
        if by == "longhaul":
            subprocess.run([BIN / "longhaul", "keygen", "--out", key], check=True, stdout=subprocess.DEVNULL)
            server = wan.enter("A", [BIN / "longhaul-server", "--listen", join, "--workers", "4", "--once", "--key", key],
                               stdout=subprocess.DEVNULL, stderr=open(folder / "server.log", "w", encoding="utf8"))
            time.sleep(0.5)
        elif by == "tcp":
            server = wan.enter("A", [sys.executable, HERE / "tcp_server.py", "--listen", join, "--ranks", "4", *words])
        else:
            join = "10.77.2.1:7700"  # rank 0's
        for rank in range(4):
            out = folder / ("rank%d.json" % rank)
            command = [sys.executable, HERE / "train.py", "--by", by, "--rank", rank, "--ranks", 4, "--join", join, "--steps",
                       options.steps, "--limit", options.limit, "--skew", options.skew, "--seed", seed, "--json", out, *words]
            more = {"LONGHAUL_JOIN": join, "LONGHAUL_KEY": str(key), "LONGHAUL_RANK": str(rank), "LONGHAUL_WORLD_SIZE": "4"}
            # gloo looks for its interface by the host's name, which is not of the site.
            processes.append(wan.enter(SITES[1 + rank], command, env={**environment, **more, "GLOO_SOCKET_IFNAME": "wan0"},
                                       stderr=open(folder / ("rank%d.log" % rank), "w", encoding="utf8")))
        deadline = time.monotonic() + options.limit + 60
        while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
            time.sleep(0.2)
            if any(p.poll() for p in processes):
                time.sleep(1)
                break
    finally:
        for process in processes + [server] * bool(server):
            if process.poll() is None:
                process.kill()
            process.wait()
        wan.down()
        key.unlink(missing_ok=True)
    try:
        result = json.loads((folder / "rank0.json").read_text())
        (folder / "rank0.json").unlink()
        return result
    except (OSError, ValueError):
        print((folder / "rank0.log").read_text()[-2000:], file=sys.stderr)
        return None


def seconds_to(points, accuracy):
    """When the mean of three evaluations in a row first had it."""
    for i in range(2, len(points)):
        if sum(point[2] for point in points[i - 2:i + 1]) / 3 >= accuracy:
            return points[i][1]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runners", default=",".join(RUNNERS))
    parser.add_argument("--loss", default="0,1,5,20", help="percent each way")
    parser.add_argument("--burst", type=float, default=0, help="mean length of loss bursts in packets; 0: independent")
    parser.add_argument("--rate", default="50mbit", help="of each link")
    parser.add_argument("--delay", default="25ms")
    parser.add_argument("--queue", default="50ms")
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--limit", type=float, default=300, help="seconds that a training may take")
    parser.add_argument("--skew", type=float, default=0, help="share of a rank's images from its own classes")
    parser.add_argument("--targets", default="86,87", help="percent")
    parser.add_argument("--repeat", type=int, default=1, help="seeds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    runs = []
    for seed in range(options.seed, options.seed + options.repeat):
        for loss in map(float, options.loss.split(",")):
            for runner in options.runners.split(","):
                with tempfile.TemporaryDirectory() as folder:
                    result = run(options, runner, loss, seed, pathlib.Path(folder))
                points = result["points"] if result else []
                line = {"runner": runner, "loss": loss, "seed": seed, "steps": points[-1][0] if points else 0,
                        "seconds": points[-1][1] if points else None, "finished": bool(result and result["finished"]),
                        "accuracy": points[-1][2] if points else None,
                        "to": {t: seconds_to(points, float(t) / 100) for t in options.targets.split(",")},
                        # A point a curve's width: the list of all would make the file large.
                        "curve": [[p[1], round(p[2], 4)] for p in points[::max(1, len(points) // 20)]]}
                runs.append(line)
                print("loss %g %%, seed %d, %-14s %s" % (loss, seed, runner, {k: line[k] for k in ("steps", "seconds", "accuracy", "to")}),
                      flush=True)
                with open(options.json, "w", encoding="utf8") as file:
                    json.dump({"options": vars(options), "runs": runs}, file)


if __name__ == "__main__":
    main()
