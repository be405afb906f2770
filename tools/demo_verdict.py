#!/usr/bin/env python3
"""What a demo run means: tools/demo_verdict.py FOLDER [ARGUMENTS OF THE RUN].

FOLDER holds lossy.json and logs/rounds.tsv of `longhaul run`. Trains the same job once more without loss and delay on
the loopback interface, compares the accuracy, plots both (gnuplot) and says it in plain words. Of a run with --offload:
trains it without, and says bytes, times and accuracy of both.
"""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

PLOT = """set terminal svg size 900,540 enhanced background '#ffffff' font 'sans,13'
set output '{out}'
set xlabel 'training round'
set ylabel 'accuracy on the test images, %'
set y2label 'lost on the way, %'
set ytics nomirror
set y2tics
set yrange [*:100]
set y2range [0:*]
set key bottom right
set grid
plot '{lossy}' using 1:($4*100) skip 1 with lines lw 2 lc '#1f5fa8' title 'across the WAN ({loss} lost each way)', \\
     '{reference}' using 1:($4*100) skip 1 with lines lw 2 dt 2 lc '#444444' title 'without loss', \\
     '{lossy}' using 1:($5*100) skip 1 axes x1y2 with lines lw 1 lc '#d98c3f' title 'lost, as the worker saw it'
"""

# What the link is, and what belongs to one run: the run without loss has its own.
OF_THE_LINK = ("--rate", "--delay", "--loss", "--burst", "--queue", "--wan", "--json", "--logs", "--min-accuracy",
               "--key", "--capacity")


def same_job(arguments):
    kept = []
    words = iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        if name in OF_THE_LINK:
            if not equals:
                next(words, None)
            continue
        kept.append(word)
    return kept


def train(folder, without, arguments):
    command = [ROOT / "build/release/bin/longhaul", "run", "--logs", folder / "reference-logs", "--json",
               folder / "reference.json"]
    result = subprocess.run([str(word) for word in command] + arguments, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        print("  (the run without %s failed: %s)" % (without, result.stderr.strip().splitlines()[-1:]))
        return None
    return json.loads((folder / "reference.json").read_text())


def train_without_loss(folder, arguments):
    return train(folder, "loss", ["--wan", "loopback", "--rate", "10gbit", "--delay", "0ms", "--loss", "0"] + same_job(arguments))


def beside_no_offload(folder, run, arguments):
    """The same job over the same links, each worker with a connection of its own."""
    print("\nTraining the same job without offload, to compare ...", flush=True)
    other = train(folder, "offload", [word for word in arguments if word != "--offload"])
    if other is None:
        return
    print("\n%d sites of %d workers     %14s %14s" % (run["sites"], run["ranks"], "with offload", "without"))
    for what, key, scale, unit in (("WAN bytes up", "wan_bytes_up", 1e-6, "MB"), ("WAN bytes down", "wan_bytes_down", 1e-6, "MB"),
                                   ("round time, p50", "seconds_p50", 1e3, "ms"), ("training", "seconds", 1, "s")):
        print("  %-22s %9.1f %-4s %9.1f %-4s  %5.1f %%" %
              (what, run[key] * scale, unit, other[key] * scale, unit, 100 * run[key] / max(other[key], 1e-9)))
    print("  %-22s %9.2f %-4s %9.2f %-4s  %+.2f points (one run of each)" %
          ("accuracy", run["accuracy"] * 100, "%", other["accuracy"] * 100, "%", (run["accuracy"] - other["accuracy"]) * 100))
    print("  %-22s %s and %s" % ("logs", folder / "logs", folder / "reference-logs"))
    print("\ndocs/internals/offload.md: how a site's ranks become one member of the job")


def plot(folder, loss):
    """Where the plot is, or the table where there is no gnuplot."""
    out = folder / "accuracy.svg"
    table = folder / "logs/rounds.tsv"
    script = PLOT.format(out=out, lossy=table, reference=folder / "reference-logs/rounds.tsv", loss=loss)
    try:
        subprocess.run(["gnuplot"], input=script, text=True, check=True, stderr=subprocess.DEVNULL)
        return "plot      %s" % out
    except (OSError, subprocess.CalledProcessError):
        return "numbers   %s (a line a round; with gnuplot installed this is a plot)" % table


def count(number, word):
    return "%s %s%s" % (format(int(number), ","), word, "" if number == 1 else "s")


def main(arguments):
    folder, asked = pathlib.Path(arguments[0]), arguments[1:]
    try:
        run = json.loads((folder / "lossy.json").read_text())
    except OSError:
        return 0  # the caller sent its summary elsewhere
    if run.get("offload"):
        beside_no_offload(folder, run, asked)
        return 0
    print("\nTraining the same job without loss, to compare ...", flush=True)
    reference = train_without_loss(folder, asked)

    policy = run.get("policy", "residual")
    what_became = {
        "residual": "each is added to the same worker's next gradient, so it counts a round later",
        "shift": "each counts as what its worker usually sends, and is corrected later",
        "stale": "each counts as the one of the round before",
        "zero": "each counts as zero: nothing repays it (--policy residual does)",
        "count": "the others count for it: the mean is taken over what arrived",
        "ipw": "the others count for it, weighted by their worker's share that arrives",
    }.get(policy, policy)
    print("\nWhat happened")
    print("  accuracy  %.2f %% across the WAN, after %d rounds in %.0f s" %
          (run["accuracy"] * 100, run["rounds"], run["seconds"]))
    if reference:
        difference = (run["accuracy"] - reference["accuracy"]) * 100
        print("            %.2f %% without loss and delay: %+.2f points (one run of each; docs/explanation/learning.md has many)" %
              (reference["accuracy"] * 100, difference))
    on_links = count(run["link_drops"], "packet") + " on the links" if run.get("link_drops") else \
        "%.1f %% of the packets" % (run.get("observed_loss", 0) * 100)
    print("  lost      %s; %s of gradients never arrived" % (on_links, count(run.get("lost_chunks", 0), "piece")))
    print("  repaired  %s by error correction, %s sent again" %
          (count(run.get("repaired_chunks", 0), "piece"), count(run.get("retransmissions", 0), "packet")))
    print("  repaid    the lost pieces: %s" % what_became)
    if run.get("filled_chunks"):
        print("  filled    %s by the mean of the others, because too much of a gradient was lost at once" %
              count(run["filled_chunks"], "piece"))
    print("  " + plot(folder, run.get("asked", {}).get("loss", "?")))
    print("  logs      %s" % (folder / "logs"))
    print("""
Next
  tools/dev demo --loss 10%                  five times the loss; is the accuracy the same?
  tools/dev demo --loss 10% --policy zero    the same, but lost pieces are forgotten
  tools/dev demo --sites 2 --ranks 4 --offload   two sites, each one stream across the WAN
  build/release/bin/longhaul-server --help   your own job: docs/tutorials/first_job.md""")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
