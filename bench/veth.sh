#!/usr/bin/env bash
# The data path over a veth pair between two network namespaces of its own: `longhaul bench flow` with keys and
# without, beside the kernel's TCP in clear, with segments cut in software ("soft") and left whole ("offload").
#   bench/veth.sh BIN_DIR [SECONDS]      (tools/dev bench veth [SECONDS])
# Needs root, ethtool and iperf3; no other network is touched.
set -eu
bin=$(cd "${1:?usage: veth.sh BIN_DIR [SECONDS]}" && pwd)
seconds=${2:-5}
for tool in ip ethtool iperf3 python3; do
  command -v "$tool" >/dev/null || { echo "veth.sh: no $tool: apt-get install iproute2 ethtool iperf3 python3" >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "veth.sh: needs root for network namespaces" >&2; exit 2; }

a=lhveth-a-$$ b=lhveth-b-$$ server= work=$(mktemp -d)
finish() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  ip netns del "$a" 2>/dev/null || true
  ip netns del "$b" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM
ip netns add "$a"
ip netns add "$b"
ip -n "$a" link add v0 type veth peer name v1 netns "$b"
ip -n "$a" addr add 10.77.0.1/24 dev v0
ip -n "$b" addr add 10.77.0.2/24 dev v1
ip -n "$a" link set v0 up
ip -n "$b" link set v1 up
"$bin/longhaul" keygen --out "$work/key" >/dev/null

tcp() {
  ip netns exec "$a" iperf3 -s -1 >/dev/null &
  sleep 0.5
  ip netns exec "$b" iperf3 -c 10.77.0.1 -t "$seconds" -O 1 -J |
    python3 -c 'import json, sys; print("%.1f" % (json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"] / 1e9))'
  wait
}
flow() {  # CLASS, then the options that say how it is protected
  ip netns exec "$b" "$bin/longhaul" bench flow --join 10.77.0.1:7700 --class "$1" --seconds "$((seconds + 1))" --warmup 1 \
    --fec-k 0 --quiet --json "$work/flow.json" "${@:2}"
  python3 -c 'import json, sys; print("%.1f" % (json.load(open(sys.argv[1]))["goodput_mbps"] / 1e3))' "$work/flow.json"
}
serve() {
  ip netns exec "$a" "$bin/longhaul-server" --listen 10.77.0.1:7700 "$@" >"$work/server.log" 2>&1 &
  server=$!
  sleep 1
  kill -0 "$server" 2>/dev/null || { cat "$work/server.log" >&2; exit 1; }
}
stop() {
  kill -INT "$server"
  wait "$server" || true
  server=
}

echo "Gbit/s, 16 MB windows without FEC, $seconds s each"
echo "| segments | TCP in clear | encrypted low | encrypted high | insecure low | insecure high |"
echo "|---|---|---|---|---|---|"
for segments in soft offload; do
  whole=on
  [ "$segments" = offload ] || whole=off
  ip netns exec "$a" ethtool -K v0 tx-udp-segmentation "$whole" tso "$whole" >/dev/null
  ip netns exec "$b" ethtool -K v1 tx-udp-segmentation "$whole" tso "$whole" >/dev/null
  row="| $segments | $(tcp) |"
  serve --key "$work/key"
  row+=" $(flow low --key "$work/key") | $(flow high --key "$work/key") |"
  stop
  serve --insecure --insecure-bind
  row+=" $(flow low --insecure) | $(flow high --insecure) |"
  stop
  echo "$row"
done
