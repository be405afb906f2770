#!/bin/sh
# Runs every fuzzer of a build for SECONDS each: run.sh SECONDS [BIN_DIR]. Findings stay in BIN_DIR/../fuzz-artifacts.
set -u
seconds=${1:?usage: run.sh SECONDS [BIN_DIR]}
here=$(cd "$(dirname "$0")" && pwd)
bin=${2:-$here/../../build/fuzz/bin}
[ -d "$bin" ] || { echo "no $bin: build first (cmake --workflow --preset fuzz)" >&2; exit 2; }
work=$(cd "$bin/.." && pwd)
artifacts=$work/fuzz-artifacts
mkdir -p "$artifacts"
failed=0
found=0
for fuzzer in "$bin"/fuzz_*; do
  [ -x "$fuzzer" ] || continue
  found=$((found + 1))
  name=$(basename "$fuzzer"); name=${name#fuzz_}
  grown=$work/fuzz-corpus/$name   # what this machine has found so far; the committed seeds stay as they are
  mkdir -p "$grown"
  set -- "$grown"
  [ -d "$here/corpus/$name" ] && set -- "$@" "$here/corpus/$name"
  log=$artifacts/$name.log
  "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$artifacts/$name-" "$@" >"$log" 2>&1
  status=$?
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  coverage=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1)
  if [ "$status" -eq 0 ]; then
    printf '%-16s %10s executions  %6s edges  ok\n' "$name" "${executions:-?}" "${coverage:-?}"
  else
    failed=1
    artifact=$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)
    printf '%-16s %10s executions  %6s edges  FINDING %s (log %s)\n' "$name" "${executions:-?}" "${coverage:-?}" \
      "${artifact:-without input}" "$log"
  fi
done
[ "$found" -gt 0 ] || { echo "no fuzzers in $bin" >&2; exit 2; }
exit $failed
