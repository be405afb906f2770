#!/usr/bin/env bash
# A model on three servers and on one, in turn, over links of their own (tbf) and workers with a link four times as
# wide: how long rounds last, and how much memory a server takes at most.
#   bench/servers.sh BIN_DIR [BYTES [RATE_MBIT [ROUNDS [BLOCKS]]]]      (default 400mb 100 3 2)
#
#   server 1 ──RATE──┐
#   server 2 ──RATE──┼── bridge ──4 x RATE── worker
#   server 3 ──RATE──┘
#
# Prints one JSON object. Needs root and the tbf queueing discipline; no other network is touched.
set -eu
bin=$(cd "${1:?usage: servers.sh BIN_DIR [BYTES [RATE_MBIT [ROUNDS [BLOCKS]]]]}" && pwd)
bytes=${2:-400mb} rate=${3:-100} rounds=${4:-3} blocks=${5:-2}
for tool in ip tc python3; do
  command -v "$tool" >/dev/null || { echo "servers.sh: no $tool: apt-get install iproute2 python3" >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "servers.sh: needs root for network namespaces" >&2; exit 2; }

prefix=lhservers-$$ work=$(mktemp -d)
servers=()
finish() {
  for pid in "${servers[@]}"; do kill "$pid" 2>/dev/null || true; done
  for name in hub w 1 2 3; do ip netns del "$prefix-$name" 2>/dev/null || true; done
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

link() {  # NAME ADDRESS MBIT: a namespace behind a link of that rate each way
  ip netns add "$prefix-$1"
  ip -n "$prefix-hub" link add "to$1" type veth peer name v0 netns "$prefix-$1"
  ip -n "$prefix-hub" link set "to$1" master bridge up
  ip -n "$prefix-$1" addr add "$2/24" dev v0
  ip -n "$prefix-$1" link set v0 up
  ip -n "$prefix-$1" link set lo up
  # 50 ms of queue, as longhaul-wan's.
  tc -n "$prefix-hub" qdisc add dev "to$1" root tbf rate "$3mbit" burst 128kb latency 50ms
  tc -n "$prefix-$1" qdisc add dev v0 root tbf rate "$3mbit" burst 128kb latency 50ms
}
ip netns add "$prefix-hub"
ip -n "$prefix-hub" link add bridge type bridge
ip -n "$prefix-hub" link set bridge up
link w 10.77.0.9 $((4 * rate))
for i in 1 2 3; do link $i 10.77.0.$i "$rate"; done
"$bin/longhaul" keygen --out "$work/key" >/dev/null

serve() {  # NUMBER, then the options of a server
  local i=$1
  shift
  ip netns exec "$prefix-$i" "$bin/longhaul-server" --listen "10.77.0.$i:7700" --key "$work/key" --progress none \
    --log-level warn --max-model-bytes 1gb "$@" 2>"$work/server$i.log" &
  servers+=($!)
}
block() {  # how many servers
  servers=()
  serve 1 --servers "$1" --workers 1
  sleep 0.5
  for i in $(seq 2 "$1"); do serve "$i" --first-server 10.77.0.1:7700; sleep 0.3; done
  ip netns exec "$prefix-w" "$bin/longhaul" bench rounds --join 10.77.0.1:7700 --key "$work/key" --workers 1 --bytes "$bytes" \
    --tensors 40 --rounds "$rounds" --warmup 1 --idle-timeout 30 --quiet --json "$work/rounds.json"
  local memory=()
  for pid in "${servers[@]}"; do memory+=("$(awk '/VmHWM/ {print $2}' "/proc/$pid/status")"); done
  for pid in "${servers[@]}"; do kill "$pid" && wait "$pid" || true; done
  python3 - "$1" "$work/rounds.json" "${memory[@]}" >>"$work/blocks" <<'PY'
import json, sys
rounds = json.load(open(sys.argv[2]))
print(json.dumps({"servers": int(sys.argv[1]), "rounds": rounds, "peak_kib": [int(m) for m in sys.argv[3:]]}))
PY
}
for _ in $(seq "$blocks"); do
  block 1
  block 3
done
python3 - "$work/blocks" "$bytes" "$rate" <<'PY'
import json, statistics, sys
blocks = [json.loads(line) for line in open(sys.argv[1])]
def seconds(n):
    return [b["rounds"]["seconds_p50"] for b in blocks if b["servers"] == n]
def memory(n):
    return [m / 1024 for b in blocks if b["servers"] == n for m in b["peak_kib"]]
one, three = statistics.median(seconds(1)), statistics.median(seconds(3))
print(json.dumps({"bytes": sys.argv[2], "rate_mbit": int(sys.argv[3]),
                  "one_server": {"round_seconds": seconds(1), "peak_mib": [round(m) for m in memory(1)]},
                  "three_servers": {"round_seconds": seconds(3), "peak_mib": [round(m) for m in memory(3)]},
                  "round_ratio": round(three / one, 3), "memory_ratio": round(max(memory(3)) / statistics.median(memory(1)), 3)},
                 indent=1))
PY
