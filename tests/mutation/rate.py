#!/usr/bin/env python3
"""Breaks the rate controller line by line: every break must fail a test.

    rate.py                   all of them: prints which test kills which; fails where one survives
    rate.py --only 3,17       only these
    rate.py --list            what is broken
    rate.py --check           only whether every text to be replaced occurs exactly once (a ctest, builds nothing)
    rate.py --write           ... and writes docs/internals/mutations.md
    rate.py --also FILTER     tests of test_transport that may kill as well, for example 'BbrModel*:TargetLossFit*'

Each break is made in a copy of the tree (build/mutation/tree), where test_rate is built and run until its first failure.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RATE = "transport/core/rate/"
TREE = ROOT / "build/mutation/tree"
BUILD = ROOT / "build/mutation/build"
PAGE = ROOT / "docs/internals/mutations.md"
SECONDS = 240  # of one run: a break may make a test endless

# (file, text, what it becomes, requirement, what it means)
MUTATIONS = [
    # --- A3: bandwidth estimation ---
    ("bbr/bbr_states.cc", "SetState(BbrState::kProbeBwUp, kProbeUpPacingGain,", "SetState(BbrState::kProbeBwUp, 1.0,",
     "A3", "UP sends no faster than CRUISE"),
    ("bbr/bbr_policy.h", "kProbeDownPacingGain = 0.9;", "kProbeDownPacingGain = 1.0;",
     "A3", "DOWN sends no slower than CRUISE"),
    ("bbr/bbr_states.cc", "if (model_.rounds.round_start()) StartProbeBwUp();", "",
     "A3", "REFILL never becomes UP"),
    ("target_loss_policy.cc", "return m_.IsInProbeBw() && !m_.grant.IsZero() &&", "return false &&",
     "A3", "a grant within a probe's reach does not set the rate"),
    ("target_loss_policy.cc", " && m_.grant <= m_.max_bw() * Bbr::kProbeUpPacingGain &&", " &&",
     "A3", "a grant lifts the rate beyond what the path has delivered"),
    ("target_loss_policy.cc", "if (FollowsGrant()) m_.bounds.inflight_longterm = BbrBounds::kInfinite;", "",
     "A3", "the window of an overload bounds what a grant allows"),
    ("bbr/bbr.cc", "!model_.grant.IsZero() && model_.grant < rate)", "false)",
     "A3", "grants are ignored"),
    ("target_loss_policy.cc", "m_.max_bw_filter.Replace(contradiction_.bw, contradiction_.delivered);", "",
     "A3", "what the delivery contradicts is not forgotten"),
    ("target_loss_policy.cc", "return BbrPolicy::suppresses_samples() || m_.rate_bound != RateLimiter::kPacing;",
     "return BbrPolicy::suppresses_samples();",
     "A3", "what a grant lets through counts as what the path has"),
    ("target_loss_policy.cc", "kProbeUpPacingGain &&\n         !QueueStands();", "kProbeUpPacingGain;",
     "A3", "a grant sets the rate behind a queue that stands"),
    ("target_loss_policy.cc", "if (!last.limited || overgranted) return last.bw;", "if (!last.limited) return last.bw;",
     "A3", "a grant above the path's capacity keeps STARTUP for ever"),
    # --- A4: the initial rate of a window ---
    ("bbr/bbr.cc", "CheckProbeRttDone();\n  SetPacingRateWithGain(model_.pacing_gain);", "CheckProbeRttDone();",
     "A4", "a window's start sets no rate"),
    ("bbr/bbr_states.cc", "SetPacingRateWithGain(1.0);", "",
     "A4", "after a pause the gain of the cycle stays"),
    ("target_loss_policy.h", "void OnWindowStart() override { Refit(); }", "void OnWindowStart() override {}",
     "A4", "a window's start does not compute the target"),
    # --- A5: inside a window ---
    ("target_loss_policy.cc", "if (verdict == LossVerdict::kHalve) Halve();", "",
     "A5", "nothing halves the rate"),
    ("target_loss_policy.cc", "if (verdict == LossVerdict::kHold && !ask && !short_experiment) HoldAtDelivered();", "",
     "A5", "nothing holds the rate"),
    ("target_loss_policy.cc", "if (verdict == LossVerdict::kRaise) LiftLowerBounds();", "",
     "A5", "nothing raises the rate again"),
    ("target_loss_policy.cc", "path_loss_.floor() + m_.options.loss_limits.halve_threshold,",
     "path_loss_.floor() + 2 * m_.options.loss_limits.halve_threshold,",
     "A5", "the halve threshold is twice the job's"),
    ("target_loss_policy.cc", "path_loss_.floor() + m_.options.loss_limits.halve_threshold,",
     "m_.options.loss_limits.halve_threshold,",
     "A5", "the halve threshold does not begin at l0"),
    ("path_loss.cc", "m_.state == BbrState::kStartup || m_.state == BbrState::kProbeBwDown;",
     "m_.state == BbrState::kProbeBwDown;",
     "A5", "STARTUP never asks"),
    ("target_loss_policy.cc", "return startup_loss_is_ours_;", "return false;",
     "A5", "STARTUP never ends for its own loss"),
    ("target_loss_policy.cc", "return startup_loss_is_ours_;", "return recovering;",
     "A5", "STARTUP ends for any loss"),
    ("target_loss_policy.cc", "if (!ours) m_.bounds.ResetShortTermModel();", "",
     "A5", "what was held back for the path's loss stays held back"),
    ("target_loss_policy.cc", "m_.bounds.bw_shortterm = std::min(m_.bounds.bw_shortterm, delivered);", "",
     "A5", "an answer that the loss is our own bounds nothing"),
    ("target_loss_policy.cc", "response_.verdict() != LossVerdict::kRaise && !path_loss_.asks();",
     "response_.verdict() != LossVerdict::kRaise;",
     "A5", "the bandwidth is forgotten before the answer"),
    ("target_loss_policy.cc", "if (verdict == LossVerdict::kHold && !ask && !short_experiment)",
     "if (verdict == LossVerdict::kHold && !ask)",
     "A5", "a short experiment is held round trip by round trip"),
    ("path_loss.cc", "if (asked_ && fresh_.lost().value() == 0 &&", "if (false &&",
     "A5", "packets of before the loss are part of the answer"),
    # --- A6: the target loss ---
    ("target_loss_policy.cc", "if (fitted) target = std::max(target, target_.target);", "",
     "A6", "the fitted target is not used"),
    ("target_loss_policy.cc", "fit_.OnRound(round);", "",
     "A6", "the fit is never fed"),
    ("target_loss_policy.cc", ".budget = m_.options.loss_limits.budget,", ".budget = 1,",
     "A6", "the job's budget does not reach the fit"),
    ("target_loss_fit.cc", "hinge.floor + std::min(budget, kMaxOwnLoss);", "hinge.floor + kMaxOwnLoss;",
     "A6", "the fit ignores the budget"),
    ("rate_controller.h", "return {job.halve_threshold, (1 - job.high_share) * job.bubble_threshold};",
     "return {job.halve_threshold, job.bubble_threshold};",
     "A6", "what is repaired counts as affordable, too"),
    ("target_loss_fit.cc", "} else if (!context.grant.IsZero() && result.samples >= kMinSamples) {", "} else if (false) {",
     "A6", "a grant never stands for C"),
    # --- Invariants ---
    ("path_loss.cc", "return std::min({precise, confirmed_.upper(), everything_.upper(), kMaxExcused});",
     "return std::min({precise, confirmed_.upper(), everything_.upper()});",
     "l0", "l0 has no bound of its own"),
    ("path_loss.cc", "return std::min({precise, confirmed_.upper(), everything_.upper(), kMaxExcused});",
     "return std::min({precise, everything_.upper(), kMaxExcused});",
     "l0", "l0 is not bounded by what experiments have shown"),
    ("path_loss.cc", "return std::min({precise, confirmed_.upper(), everything_.upper(), kMaxExcused});",
     "return std::min({precise, confirmed_.upper(), kMaxExcused});",
     "l0", "l0 may be more than all that is lost"),
    ("path_loss.cc", "if (round.rate.IsZero() || round.rate > delivered * kLowShare) continue;",
     "if (round.rate.IsZero()) continue;",
     "l0", "l0 is learned from any round"),
    ("path_loss.cc", "constexpr int kSurprises = 3;", "constexpr int kSurprises = 1;",
     "l0", "one answer of more loss is believed"),
    ("path_loss.h", "double burst() const { return burst_; }", "double burst() const { return 1; }",
     "l0", "in bursts an answer takes no more packets"),
    ("target_loss_policy.cc", "constexpr int kFutileRounds = 8;", "constexpr int kFutileRounds = 1 << 20;",
     "A5", "yielding to a queue has no end"),
    ("path_loss.cc", "std::abs(confirmed_.value() - fresh_.value()) <= 2 * error;", "true;",
     "l0", "an answer is never forgotten"),
    ("path_loss.cc", "return std::max(0.0, floor - fall * kExperimentGain / (1 - kExperimentGain));", "return floor;",
     "l0", "loss that follows the rate counts as the path's"),
    ("target_loss_policy.cc", "return path_loss_.experiment() ? path_loss_.reference() * PathLoss::kExperimentGain : Bandwidth::Max();",
     "return Bandwidth::Max();",
     "experiment", "an experiment does not lower the rate"),
    ("path_loss.cc", "if (ended) experiment_ = false;", "",
     "experiment", "an experiment never ends"),
    ("bbr/bbr_filters.cc", "std::min(std::max(slots_[0].served, slots_[1].served), max_delivered() * (1 / (1 - excused_)));",
     "std::max(slots_[0].served, slots_[1].served);",
     "max_bw", "the estimate is not bounded by what was delivered"),
    ("bbr/bbr.cc", "model_.max_bw_filter.SetExcused(policy_->Excused());", "model_.max_bw_filter.SetExcused(PathLoss::kMaxExcused);",
     "max_bw", "half of what is sent is always excused"),
    ("path_loss.cc", "return IsOfShortQueue() ? floor() : floor() * kFallbackFloorShare;", "return floor();",
     "max_bw", "flows excuse each other's overload in full"),
]


def text_of(file):
    return (ROOT / RATE / file).read_text(encoding="utf-8")


def check():
    """What is wrong with the list."""
    wrong = []
    for number, (file, old, new, _, _) in enumerate(MUTATIONS, 1):
        found = text_of(file).count(old)
        if found != 1:
            wrong.append(f"{number}: {found} times in {RATE}{file}: {old!r}")
        if old == new:
            wrong.append(f"{number}: changes nothing")
    return wrong


def run(command, **options):
    return subprocess.run(command, cwd=TREE, capture_output=True, text=True, errors="replace", **options)


def copy_tree():
    """What git knows of, and new files: only what differs is written, so that builds stay short."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True).stdout.decode().split("\0")
    wanted = {name for name in listed if name and (ROOT / name).is_file()}
    for old in [path for path in TREE.rglob("*") if path.is_file()]:
        if str(old.relative_to(TREE)) not in wanted:
            old.unlink()
    for name in wanted:
        source, copy = ROOT / name, TREE / name
        if copy.is_file() and copy.read_bytes() == source.read_bytes():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)


def build(targets):
    """The compiler's words where it fails."""
    done = run(["cmake", "--build", str(BUILD), "--parallel", "2", "--target", *targets])
    return "" if done.returncode == 0 else done.stdout + done.stderr


def first_failure(program, test_filter):
    """The first test that fails, "" when none does."""
    command = [str(BUILD / "bin" / program), "--gtest_fail_fast", "--gtest_brief=1", f"--gtest_filter={test_filter}"]
    try:
        done = run(command, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"{test_filter}: no end within {SECONDS} s"
    if done.returncode == 0:
        return ""
    failed = re.search(r"^\[  FAILED  \] ([\w/]+\.[\w/]+)", done.stdout, re.MULTILINE)
    if failed:
        return failed[1]
    checked = re.search(r"^.*(LH_CHECK|[Cc]heck failed).*$", done.stdout + done.stderr, re.MULTILINE)
    return checked[0].strip()[:90] if checked else f"{program} ends with {done.returncode}"


# Tests of the requirement itself are asked first.
FIRST = {"A3": "A3*", "A4": "A4*", "A5": "A5*", "A6": "A6*"}


def killer(requirement, also):
    own = FIRST.get(requirement, "*RateInvariants*")
    for program, tests in [("test_rate", own), ("test_rate", "*-" + own), *([("test_transport", also)] if also else [])]:
        failed = first_failure(program, tests)
        if failed:
            return failed
    return ""


def broken(number, also):
    """What kills this one: a test, the compiler, or nothing ("")."""
    file, old, new, requirement, _ = MUTATIONS[number - 1]
    path = TREE / RATE / file
    before = path.read_bytes()
    try:
        path.write_bytes(before.replace(old.encode(), new.encode(), 1))
        words = build(["test_rate"] + (["test_transport"] if also else []))
        if words:
            errors = [line for line in words.splitlines() if "error:" in line]
            return "the compiler: " + (errors or [words])[0].strip()[-90:]
        return killer(requirement, also)
    finally:
        path.write_bytes(before)


def page(results):
    lines = [
        "# What breaks when the rate controller does", "",
        "Each row is a break of one line in `transport/core/rate`, the requirement that it violates, and the first test that",
        "notices. The requirements: A3 bandwidth estimation in every cycle, A4 the initial rate of a window, A5 loss inside a",
        "window, A6 the target loss by least squares; l0 (the path's own loss), experiments and max_bw are bounded.", "",
        "Written by `tests/mutation/rate.py --write`; the ctest `mutation.rate_list` fails when a text that is to be broken is",
        "gone.", "",
        "|  | break | file | requirement | killed by |", "|---|---|---|---|---|"]
    for number, killed in results.items():
        file, _, _, requirement, meaning = MUTATIONS[number - 1]
        lines.append(f"| {number} | {meaning} | `{file}` | {requirement} | {'`' + killed + '`' if killed else '**survives**'} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--also", default="")
    arguments = parser.parse_args()
    if arguments.list:
        for number, (file, _, _, requirement, meaning) in enumerate(MUTATIONS, 1):
            print(f"{number:3} {requirement:10} {meaning} ({file})")
        return 0
    wrong = check()
    if arguments.check or wrong:
        print("\n".join(wrong) or f"{len(MUTATIONS)} breaks, each of a text that occurs once")
        return bool(wrong)
    wanted = [int(n) for n in arguments.only.split(",") if n] or list(range(1, len(MUTATIONS) + 1))
    TREE.mkdir(parents=True, exist_ok=True)
    copy_tree()
    configured = run(["cmake", "--preset", "release", "-B", str(BUILD), "-DLONGHAUL_UNITY=OFF", "-DLONGHAUL_BENCH=OFF",
                      "-DLONGHAUL_WERROR=OFF"])
    words = configured.stderr if configured.returncode else build(["test_rate"])
    if words:
        sys.exit(words)
    if killer("A3", arguments.also):
        sys.exit("a test fails without any break: " + killer("A3", arguments.also))
    results = {}
    print("| break | requirement | killed by |")
    for number in wanted:
        results[number] = broken(number, arguments.also)
        _, _, _, requirement, meaning = MUTATIONS[number - 1]
        print(f"| {number} {meaning} | {requirement} | {results[number] or 'SURVIVES'} |", flush=True)
    survivors = [number for number, killed in results.items() if not killed]
    print(f"{len(results) - len(survivors)} of {len(results)} are noticed" + (f"; not: {survivors}" if survivors else ""))
    if arguments.write:
        PAGE.write_text(page(results), encoding="utf-8")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
