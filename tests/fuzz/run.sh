#!/usr/bin/env bash
# Runs every fuzzer of a build for SECONDS each, two at a time: run.sh SECONDS [BIN_DIR [RESULTS]].
# One line per fuzzer, then what all of them have reached; fails on a finding, and when less is reached than
# coverage_floor.txt says. Findings and logs stay in BIN_DIR/../fuzz-artifacts.
set -u
seconds=${1:?usage: run.sh SECONDS [BIN_DIR [RESULTS]]}
here=$(cd "$(dirname "$0")" && pwd)
bin=${2:-$here/../../build/fuzz/bin}
[ -d "$bin" ] || { echo "no $bin: build first (cmake --workflow --preset fuzz)" >&2; exit 2; }
# RESULTS: a file with a line for each fuzzer, "ok NAME" or "failed NAME".
results=${3:-/dev/null}
work=$(cd "$bin/.." && pwd)
artifacts=$work/fuzz-artifacts
mkdir -p "$artifacts"

run_one() {
  local fuzzer=$1 name log grown status executions coverage corpus seed result
  name=$(basename "$fuzzer"); name=${name#fuzz_}
  grown=$work/fuzz-corpus/$name   # what this machine has found so far; the committed seeds stay as they are
  log=$artifacts/$name.log
  mkdir -p "$grown"
  local inputs=("$grown")
  [ ! -d "$here/corpus/$name" ] || inputs+=("$here/corpus/$name")
  # The schedule by entropy takes two thirds of the time where an input has thousands of features. Short inputs do
  # what long ones do, and more of them.
  case $name in connection | server) inputs=(-entropic=0 -max_len=512 "${inputs[@]}") ;; esac
  # An input may take 20 s (on a busy machine; all of ours take milliseconds, those of api a second), no allocation 64 MiB.
  "$fuzzer" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=64 \
    -print_final_stats=1 -print_coverage=1 -print_funcs=0 -artifact_prefix="$artifacts/$name-" "${inputs[@]}" >"$log" 2>&1
  status=$?
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  coverage=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1)
  corpus=$(sed -n 's/.* corp: \([0-9]*\)\/.*/\1/p' "$log" | tail -1)
  result=ok
  [ "$status" -eq 0 ] || result="FINDING $(sed -n 's/.*Test unit written to //p' "$log" | tail -1) (log $log)"
  seed=$(sed -n 's/^INFO: Seed: *//p' "$log" | head -1)
  printf '%-16s %10s executions  %6s edges  %6s inputs kept  seed %-10s  %s\n' \
    "$name" "${executions:-?}" "${coverage:-?}" "${corpus:-?}" "${seed:-?}" "$result"
  if [ "$status" -eq 0 ]; then echo "ok $name"; else echo "failed $name"; fi >>"$results"
  return "$status"
}
export -f run_one
export seconds here work artifacts results

fuzzers=$(find "$bin" -maxdepth 1 -name 'fuzz_*' -type f -perm -u+x | sort)
[ -n "$fuzzers" ] || { echo "no fuzzers in $bin" >&2; exit 2; }
rm -f "$artifacts"/*.log
# Without it the two that use the arena find nothing in memory.
if "$bin/arena_test" >"$artifacts/arena_test.txt" 2>&1; then
  echo "ok arena_test" >>"$results"
else
  cat "$artifacts/arena_test.txt" >&2
  echo "failed arena_test" >>"$results"
  exit 1
fi
echo "$fuzzers" | xargs -P 2 -I{} bash -c 'run_one "$1"' _ {}
status=$?
# What a few of the fuzzers, or a few seconds, reach says nothing.
floor=()
[ "$seconds" -lt 20 ] || [ ! -e "$here/coverage_floor.txt" ] || [ "$(wc -l <<<"$fuzzers")" -lt "$(ls "$here"/fuzz_*.cc | wc -l)" ] ||
  floor=(--floor "$here/coverage_floor.txt")
"$here/coverage.py" "${floor[@]}" "$artifacts"/*.log || status=1
exit "$status"
