#!/usr/bin/python3
"""Seconds of training until a test accuracy: longhaul, TCP parameter servers and torch's DDP over gloo, on the same links.

    bench/accuracy/main.py --loss 0,1,5,20 --repeat 3 --json result.json

One rank in each of four sites and the server in a fifth; a link with its own losses, each way, between any two. All train the
same network (784-128-10 on Fashion-MNIST, Adam) on the same batches by the same schedule of the learning rate. Needs root (network
namespaces) and python3-torch; runs are in blocks: all runners at one loss rate and seed, then the next. A run that the file has
already, with the same options, is not repeated: an interrupted measurement goes on.
"""
import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BIN = pathlib.Path(os.environ.get("LONGHAUL_PROGRAMS", ROOT / "build/release/bin"))
LIBRARY = os.environ.get("LONGHAUL_LIBRARY", str(ROOT / "build/release/lib/liblonghaul.so"))
RUNNERS = {
    "longhaul": ("longhaul", []),
    "tcp-cubic": ("tcp", ["--congestion", "cubic", "--parts", "1"]),
    "tcp-bbr": ("tcp", ["--congestion", "bbr", "--parts", "1"]),
    "tcp-bbr-parts": ("tcp", ["--congestion", "bbr", "--parts", "16"]),
    "gloo": ("gloo", []),
}
RANKS = 4
# With --uneven: the loss of each rank's links to the server over --loss, 1 on average; a link between two ranks has the mean of theirs.
UNEVEN = [0, 0.5, 1, 2.5]


class Wan:
    """A link between any two of the sites A, B, C, ..., with losses of its own."""

    TAG = "accuracy%d" % os.getpid()  # another WAN may have sites of these names

    def __init__(self, options, loss, sites, folder):
        command = [str(BIN / "longhaul-wan"), "up", "--tag", self.TAG, "--sites", ",".join(sites), "--rate", options.rate, "--delay", options.delay,
                   "--queue", options.queue]
        if options.uneven:
            of = dict(zip(sites[1:], UNEVEN))
            for a, b in itertools.permutations(sites, 2):
                share = sum(of[site] for site in (a, b) if site in of) / sum(site in of for site in (a, b))
                command += ["--link", "%s-%s:loss=%g%%" % (a, b, loss * share)]
        elif loss:
            command += ["--gemodel", "%g%% burst %g" % (loss, options.burst)] if options.burst else ["--loss", "%g%%" % loss]
        with open(folder / "wan.log", "w", encoding="utf8") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        for _ in range(100):
            time.sleep(0.1)
            if self.enter(sites[-1], ["true"], stderr=subprocess.DEVNULL).wait() == 0:
                return
        self.down()
        sys.exit("bench accuracy: no WAN: " + (folder / "wan.log").read_text())

    @staticmethod
    def enter(site, command, **more):
        return subprocess.Popen([str(BIN / "longhaul-wan"), "exec", "--tag", Wan.TAG, site, "--", *map(str, command)], **more)

    def down(self):
        self.process.terminate()
        self.process.wait(30)


class Training:
    """A server in the first of five sites, and a rank in each of the others."""

    def __init__(self, options, runner, seed, sites, first_site, folder, progress=False):
        by, words = RUNNERS[runner]
        self.runner, self.out, self.processes, self.server = runner, folder / "rank0.json", [], None
        self._log = folder / "rank0.log"
        join = "10.77.%d.1:7700" % (first_site + 1)
        key = folder / "job.key"
        environment = {**os.environ, "LONGHAUL_LIBRARY": LIBRARY,
                       "PYTHONPATH": str(ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
        if by == "longhaul":
            subprocess.run([BIN / "longhaul", "keygen", "--out", key], check=True, stdout=subprocess.DEVNULL)
            with open(folder / "server.log", "w", encoding="utf8") as log:
                self.server = Wan.enter(sites[0], [BIN / "longhaul-server", "--listen", join, "--workers", RANKS, "--once", "--key", key],
                                        stdout=subprocess.DEVNULL, stderr=log)
            time.sleep(0.5)
        elif by == "tcp":
            self.server = Wan.enter(sites[0], [sys.executable, HERE / "tcp_server.py", "--listen", join, "--ranks", RANKS, *words])
        else:
            join = "10.77.%d.1:7700" % (first_site + 2)  # rank 0's
        for rank in range(RANKS):
            command = [sys.executable, HERE / "train.py", "--by", by, "--rank", rank, "--ranks", RANKS, "--join", join, "--steps",
                       options.steps, "--model", options.model, "--batch", options.batch, "--limit", options.limit, "--skew", options.skew, "--seed", seed, "--json", self.out, *words]
            more = {"LONGHAUL_JOIN": join, "LONGHAUL_KEY": str(key), "LONGHAUL_RANK": str(rank),
                    "LONGHAUL_WORLD_SIZE": str(RANKS),
                    # gloo would look for its interface by the host's name, which is not of the site.
                    "GLOO_SOCKET_IFNAME": "wan0"}
            pipe = subprocess.PIPE if progress and rank == 0 else None
            with open(folder / ("rank%d.log" % rank), "w", encoding="utf8") as log:
                self.processes.append(Wan.enter(sites[1 + rank], command + ["--progress"] * bool(pipe), env={**environment, **more},
                                                stdout=pipe, stderr=log, text=True))

    def over(self):
        """All have ended, or one has failed."""
        codes = [process.poll() for process in self.processes]
        return None not in codes or any(codes)

    def end(self):
        for process in self.processes + [self.server] * bool(self.server):
            if process.poll() is None:
                process.kill()
            process.wait()

    def result(self):
        """What rank 0 has measured, or why it did not come to that."""
        try:
            return json.loads(self.out.read_text())
        except (OSError, ValueError):
            why = self._log.read_text()[-1000:] or "no end in time"
            print("%s: %s" % (self.runner, why), file=sys.stderr)
            return {"points": [], "finished": False, "why": why}


def run(options, runner, loss, seed, folder):
    wan = Wan(options, loss, "ABCDE", folder)
    training = None
    try:
        training = Training(options, runner, seed, "ABCDE", 0, folder)
        deadline = time.monotonic() + options.limit + 60
        while not training.over() and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(0.5)
    finally:
        if training:
            training.end()
        wan.down()
    return training.result()


def side_by_side(options, runners, loss, folder):
    """Both at once, on links of their own, with a line that says where each is."""
    sites = "ABCDEFGHIJ"
    wan = Wan(options, loss, sites, folder)
    trainings, last = [], {}

    def follow(training):
        for line in training.processes[0].stdout:
            step, seconds, value = line.split()
            last[training.runner] = "%s step %s of %d, %.1f s, loss %.3f" % (training.runner, step, options.steps, float(seconds), float(value))

    try:
        for i, runner in enumerate(runners):
            (folder / runner).mkdir()
            trainings.append(Training(options, runner, options.seed, sites[5 * i:5 * i + 5], 5 * i, folder / runner, progress=True))
        for training in trainings:
            threading.Thread(target=follow, args=(training,), daemon=True).start()
        deadline, clear, said = time.monotonic() + options.limit + 60, sys.stdout.isatty(), ""
        while not all(t.over() for t in trainings) and time.monotonic() < deadline:
            time.sleep(0.2 if clear else 3)
            line = " | ".join(last.get(r, r + " begins") for r in runners)
            if line != said:
                print("\r\033[K" * clear + line, end="" if clear else "\n", flush=True)
            said = line
        time.sleep(0.5)
    finally:
        for training in trainings:
            training.end()
        wan.down()
    print("\n" * clear)
    for training in trainings:
        result = training.result()
        if result["points"]:
            step, seconds, accuracy = result["points"][-1]
            print("%-14s %5d steps in %6.1f s, accuracy %.2f %%%s" % (
                training.runner, step, seconds, 100 * accuracy, "" if result["finished"] else "; stopped by --limit"))
    return 0 if all(t.out.exists() for t in trainings[:1]) else 1


def kernel_congestion():
    """What TCP connections have where a program sets nothing: gloo's."""
    return pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="utf8").strip()


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
    parser.add_argument("--uneven", action="store_true", help="the ranks' links lose %s times as much" % ", ".join("%g" % u for u in UNEVEN))
    parser.add_argument("--rate", default="50mbit", help="of each link")
    parser.add_argument("--delay", default="25ms")
    parser.add_argument("--queue", default="50ms")
    parser.add_argument("--model", choices=["mlp", "conv"], default="mlp")
    parser.add_argument("--batch", type=int, default=128, help="images of a rank in a step")
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--limit", type=float, default=240, help="seconds that a training may take")
    parser.add_argument("--skew", type=float, default=0, help="share of a rank's images from its own classes")
    parser.add_argument("--targets", default="86,87", help="percent")
    parser.add_argument("--repeat", type=int, default=1, help="seeds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peer", choices=[name for name in RUNNERS if name != "longhaul"],
                        help="train once, by longhaul and by this one at the same time, on links of their own")
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.uneven and (options.peer or options.burst):
        parser.error("--uneven goes neither with --peer nor with --burst")
    if options.peer:
        with tempfile.TemporaryDirectory() as folder:
            return side_by_side(options, ["longhaul", options.peer], float(options.loss.split(",")[-1].rstrip("%")), pathlib.Path(folder))
    if not options.json:
        parser.error("--json is needed")
    # What says which runs they are may differ from file to file of one measurement.
    kept = {key: value for key, value in vars(options).items() if key not in ("runners", "loss", "repeat", "seed", "peer", "json")}
    runs = []
    if os.path.exists(options.json):
        with open(options.json, encoding="utf8") as file:
            before = json.load(file)
        if {"uneven": False, **before["options"]} != kept:
            parser.error("%s has runs with other options: %s" % (options.json, before["options"]))
        runs = before["runs"]
    for seed in range(options.seed, options.seed + options.repeat):
        for loss in map(float, options.loss.split(",")):
            for runner in options.runners.split(","):
                if any((r["runner"], r["loss"], r["seed"]) == (runner, loss, seed) for r in runs):
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    result = run(options, runner, loss, seed, pathlib.Path(folder))
                points = result["points"]
                line = {"runner": runner, "loss": loss, "seed": seed, "steps": points[-1][0] if points else 0,
                        "seconds": points[-1][1] if points else None, "finished": result["finished"], **({"why": result["why"]} if not points else {}),
                        "accuracy": points[-1][2] if points else None, "cross_entropy": points[-1][3] if points else None,
                        "to": {t: seconds_to(points, float(t) / 100) for t in options.targets.split(",")},
                        # A point a curve's width: the list of all would make the file large.
                        "curve": [[p[1], round(p[2], 4)] for p in points[::max(1, len(points) // 20)]]}
                runs.append(line)
                print("loss %g %%, seed %d, %-14s %s" % (loss, seed, runner, {k: line[k] for k in ("steps", "seconds", "accuracy", "to")}),
                      flush=True)
                with open(options.json, "w", encoding="utf8") as file:
                    json.dump({"options": kept, "kernel_congestion": kernel_congestion(), "runs": runs}, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
