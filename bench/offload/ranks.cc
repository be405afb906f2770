#include "bench/offload/ranks.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace longhaul::offload {

Daemon::Daemon(int ranks, uint32_t seg_bytes, int spin_us)
    : process_(
          bench::StartIn(nullptr, "", "longhaul-offload",
                         {bench::ProgramPath("longhaul-offload"), "--listen", path(), "--ranks-per-node",
                          std::to_string(ranks), "--seg-bytes", std::to_string(seg_bytes), "--queue-depth",
                          "1024", "--spin-us", std::to_string(spin_us), "--log-level", "warn"},
                         {})
              .value()) {
  if (!bench::IsListening(process_)) throw std::runtime_error("longhaul-offload does not listen");
}

RankMemory RankMemory::Of(Device& device, const std::string& how, size_t bytes) {
  RankMemory m;
  if (how == "copied" || how == "copied in") {
    m.mine[0].resize(bytes / 4);
    m.send = m.mine[0].data();
    m.send_key = device.Register(std::as_writable_bytes(std::span(m.mine[0]))).value();
  } else {
    const Allocation send = device.Allocate(bytes).value();
    m.send = reinterpret_cast<float*>(send.memory.data());
    m.send_key = send.key;
  }
  if (how == "copied") {
    m.mine[1].resize(bytes / 4);
    m.receive = m.mine[1].data();
    m.receive_key = device.Register(std::as_writable_bytes(std::span(m.mine[1]))).value();
  } else {
    const Allocation receive = device.Allocate(bytes, how == "own" ? "" : "result").value();
    m.receive = reinterpret_cast<float*>(receive.memory.data());
    m.receive_key = receive.key;
  }
  std::fill_n(m.send, bytes / 4, 1.5f);
  return m;
}

namespace {

void Wait(Device& device, Completion* completion, bool spin) {
  while (device.Poll({completion, 1}) == 0) {
    if (spin) continue;
    (void)device.RequestNotify();
    pollfd wait{device.fd(), POLLIN, 0};
    poll(&wait, 1, 1000);
  }
}

}  // namespace

void AllReduce(Device& device, const RankMemory& m, size_t bytes, uint32_t mid, uint32_t piece_segs,
               uint32_t seg_bytes, bool spin) {
  const auto segs = static_cast<uint32_t>(SegCount(bytes, seg_bytes));
  uint32_t left = 0;
  Completion completion;
  for (uint32_t first = 0; first < segs; first += std::min(piece_segs, segs - first)) {
    WorkRequest request{.mid = mid, .first_seg = first, .length = bytes};
    request.seg_count = std::min(piece_segs, segs - first);
    request.send.key = m.send_key;
    request.receive.key = m.receive_key;
    if (!device.Post({&request, 1}).ok()) _exit(2);
    ++left;
    while (left > 0 && device.Poll({&completion, 1}) == 1) --left;
  }
  for (; left > 0; --left) {
    Wait(device, &completion, spin);
    if (completion.status != WorkStatus::kSuccess) _exit(3);
  }
}

}  // namespace longhaul::offload
