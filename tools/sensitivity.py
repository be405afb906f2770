#!/usr/bin/env python3
"""What a constant of the rate controller changes when it is halved and doubled, on the grid of hosts and on loss steps.

    sensitivity.py --json FILE [--only NAME,...]

Each value is compiled into a copy of the tree (build/sensitivity); a share below 1 that cannot be doubled has its
distance to 1 halved and doubled instead. A value that a static_assert refuses has no figures.
"""
import argparse
import importlib.util
import json
import pathlib
import re
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The copy of the tree, and how it is built, are those of the mutations.
spec = importlib.util.spec_from_file_location("mutate", ROOT / "tests/mutation/mutate.py")
mutate = importlib.util.module_from_spec(spec)
sys.dont_write_bytecode = True
spec.loader.exec_module(mutate)
mutate.TREE = ROOT / "build/sensitivity/tree"
mutate.BUILD = ROOT / "build/sensitivity/build"
# Constant, file, whether its distance to 1 is what changes.
CONSTANTS = [
    ("kSurprises", "path_loss.cc", False), ("kExperimentPackets", "path_loss.cc", False),
    ("kExperimentGain", "path_loss.h", True), ("kFallbackFloorShare", "path_loss.cc", True),
    ("kMaxOwnLoss", "target_loss_fit.h", False), ("kVisibleQueue", "path_loss.cc", False),
    ("kBlockPackets", "loss_floor.h", False), ("kFreshRoundPackets", "path_loss.cc", False),
    ("kMaxExperimentRounds", "path_loss.cc", False), ("kCalmRounds", "target_loss_policy.cc", False),
    ("kReconfirm", "path_loss.cc", False), ("kFutileRounds", "target_loss_policy.cc", False),
    ("kVisibleShare", "path_loss.cc", False), ("kLowShare", "path_loss.h", True),
    ("kMaxExcused", "path_loss.h", False),
]


def changed(value, factor, to_one):
    value = 1 - (1 - value) * factor if to_one else value * factor
    return round(value, 4)


def figures():
    """Cells that miss a rule on the grid of hosts and among the loss steps; None where it does not compile."""
    if mutate.build(["longhaul_rate_grid"]):
        return None
    grid = str(mutate.BUILD / "bin/longhaul_rate_grid")
    words = mutate.run([grid, "--hosts", "--seeds", "1", "--random-seed", "1"]).stdout
    met = [int(whole) - int(part) for part, whole in re.findall(r"(\d+) of (\d+) cells meet it", words)]
    with tempfile.NamedTemporaryFile() as out:
        mutate.run([grid, "--filter", "Loss steps", "--seeds", "3", "--json", out.name])
        cells = json.load(open(out.name, encoding="utf8"))
    slow = sum(1 for cell in cells if cell["recovery"]["median"] is None or cell["recovery"]["median"] > 2)
    return {"own_loss": met[0], "utilisation": met[1], "loss_steps": slow}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    mutate.TREE.mkdir(parents=True, exist_ok=True)
    mutate.copy_tree()
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    configured = mutate.run(["cmake", "--preset", "release", "-B", str(mutate.BUILD), "-DLONGHAUL_WERROR=OFF", *launcher])
    if configured.returncode:
        sys.exit(configured.stderr)
    as_it_is = figures()
    if as_it_is is None:
        sys.exit("sensitivity: longhaul_rate_grid does not compile")
    print("as it is", as_it_is, flush=True)
    rows = []
    for name, file, to_one in CONSTANTS:
        if arguments.only and name not in arguments.only.split(","):
            continue
        path = mutate.TREE / "transport/core/rate" / file
        text = path.read_text(encoding="utf8")
        found = re.search(r"\b%s\s*=\s*(?:[\w:]+\()?([\d.]+)" % name, text)
        if not found:
            sys.exit("sensitivity: no number for %s in %s" % (name, file))
        value = float(found[1])
        row = {"constant": name, "value": found[1]}
        for which, factor in (("halved", 0.5), ("doubled", 2)):
            new = changed(value, factor, to_one)
            new = new if "." in found[1] else int(new)
            path.write_text(text[:found.start(1)] + str(new) + text[found.end(1):], encoding="utf8")
            row[which] = {"value": new, "figures": figures()}
            print(name, new, row[which]["figures"], flush=True)
        path.write_text(text, encoding="utf8")
        rows.append(row)
        pathlib.Path(arguments.json).write_text(json.dumps({"as_it_is": as_it_is, "constants": rows}), encoding="utf8")


if __name__ == "__main__":
    main()
