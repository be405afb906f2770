// CPU time of the calls into a core, by the clock of the thread, and what they leave on the heap.
#pragma once

#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <vector>

#include "base/pages.h"
#include "transport/core/datagram_core.h"

namespace longhaul::sim {

enum class Call {
  kRequest,
  kHandleDatagram,
  kHandleTimeout,
  kPollTransmit,
  kNextTimeout,
  kWork,
  kFree,
  kCount
};
inline constexpr std::array<const char*, static_cast<size_t>(Call::kCount)> kCallNames = {
    "request", "HandleDatagram", "HandleTimeout", "PollTransmit", "NextTimeout", "Work", "free"};

inline double ThreadCpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

class CallTimes {
 public:
  // heap: bytes that this thread has on the heap; null: they are not counted.
  explicit CallTimes(int64_t (*heap)() = nullptr) : heap_(heap) {}

  template <typename Function>
  auto Measure(Call call, Function function) {
    struct Stop {
      CallTimes* times;
      Call call;
      int64_t heap;
      double begun;
      ~Stop() {
        const double seconds = ThreadCpuSeconds() - begun;
        if (times->heap_ != nullptr) times->heap_bytes_ += times->heap_() - heap;
        times->calls_[static_cast<size_t>(call)].push_back(static_cast<float>(seconds));
      }
    } const stop{this, call, heap_ != nullptr ? heap_() : 0, ThreadCpuSeconds()};
    return function();
  }

  const std::vector<float>& of(Call call) const { return calls_[static_cast<size_t>(call)]; }
  // Of all calls of the kind; without what reading the clock takes.
  double Seconds(Call call) const {
    double total = 0;
    for (const float s : of(call)) total += static_cast<double>(s);
    return total - ClockCost() * static_cast<double>(of(call).size());
  }
  double Seconds() const {
    double total = 0;
    for (size_t call = 0; call < calls_.size(); ++call) total += Seconds(static_cast<Call>(call));
    return total;
  }
  double MaxMs() const {
    float most = 0;
    for (const auto& calls : calls_) {
      for (const float s : calls) most = std::max(most, s);
    }
    return 1e3 * static_cast<double>(most);
  }
  // What the calls have allocated and not freed, since the beginning.
  int64_t heap_bytes() const { return heap_bytes_; }
  void Print(const char* side) const {
    std::printf("%-16s %10s %12s %10s %10s\n", side, "calls", "total ms", "p99.9 ms", "max ms");
    for (size_t c = 0; c < calls_.size(); ++c) {
      std::vector<float> sorted = calls_[c];
      if (sorted.empty()) continue;
      std::sort(sorted.begin(), sorted.end());
      double total = 0;
      for (const float s : sorted) total += static_cast<double>(s);
      std::printf("%-16s %10zu %12.1f %10.3f %10.3f\n", kCallNames[c], sorted.size(), 1e3 * total,
                  1e3 * static_cast<double>(sorted[(sorted.size() - 1) * 999 / 1000]),
                  1e3 * static_cast<double>(sorted.back()));
    }
  }
  void Clear() { calls_ = {}; }

 private:
  // What an empty call seems to take: the median of many.
  static double ClockCost() {
    static const double cost = [] {
      std::vector<double> costs(1001);
      for (double& c : costs) {
        const double begun = ThreadCpuSeconds();
        c = ThreadCpuSeconds() - begun;
      }
      std::nth_element(costs.begin(), costs.begin() + 500, costs.end());
      return costs[500];
    }();
    return cost;
  }

  int64_t (*heap_)();
  int64_t heap_bytes_ = 0;
  std::array<std::vector<float>, static_cast<size_t>(Call::kCount)> calls_;
};

class TimedCore final : public transport::DatagramCore {
 public:
  // unmap: null, or memory that goes back in slices of work.
  TimedCore(transport::DatagramCore* core, CallTimes* times, DeferredUnmap* unmap = nullptr)
      : core_(core), times_(times), unmap_(unmap) {}

  void HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                      const transport::ReceiveInfo& info) override {
    times_->Measure(Call::kHandleDatagram, [&] { core_->HandleDatagram(now, from, datagram, info); });
  }
  void HandleTimeout(Instant now) override {
    times_->Measure(Call::kHandleTimeout, [&] { core_->HandleTimeout(now); });
  }
  void HandleSendRefused(Instant now, const Address& to, size_t bytes) override {
    core_->HandleSendRefused(now, to, bytes);
  }
  std::optional<transport::Transmit> PollTransmit(Instant now, MutableByteSpan buffer) override {
    return times_->Measure(Call::kPollTransmit, [&] { return core_->PollTransmit(now, buffer); });
  }
  Instant NextTimeout() const override {
    return times_->Measure(Call::kNextTimeout, [&] { return core_->NextTimeout(); });
  }
  bool HasWork() const override { return core_->HasWork() || (unmap_ != nullptr && unmap_->HasWork()); }
  void Work(Instant now) override {
    if (core_->HasWork()) times_->Measure(Call::kWork, [&] { core_->Work(now); });
    if (unmap_ != nullptr) times_->Measure(Call::kFree, [&] { unmap_->Slice(); });
  }

 private:
  transport::DatagramCore* core_;
  CallTimes* times_;
  DeferredUnmap* unmap_;
};

}  // namespace longhaul::sim
