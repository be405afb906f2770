// How much the path loses and in what bursts, from the fate of every packet sent. FEC is planned by it.
//
// Fates become known out of order; the estimator puts them back in the order of sending. Then every kGroup
// consecutive packets are one observation (n, lost) of decayed sums with a fast (1/64 per group) and a slow
// (1/1024) memory:
//
//   S0 = sum n,  S1 = sum lost,  N2 = sum n (n - 1),  S2 = sum lost (lost - 1)
//   loss p = max of S1 / S0, fast and slow
//   margin = sqrt(p (1 - p) (1 + (n - 1) rho) / S0): one standard error, bursts included
//   rho    = clip((S2 / N2 - p^2) / (p (1 - p)), 0, kMaxCorrelation), slow: correlation of two packets of a group
//   burst  = lost packets / runs of consecutive lost packets, slow
//
// Sums start empty, so the first losses count in full: the estimate rises at once. A spurious loss is taken
// out of the sums again as far as the memory of fates reaches back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace longhaul::transport {

class LossEstimator {
 public:
  static constexpr int kGroup = 20;                  // about a block's packets
  static constexpr double kFastWeight = 1.0 / 64;    // per group: 1280 packets, so that new loss is soon seen
  static constexpr double kSlowWeight = 1.0 / 1024;  // 20,480 packets, so that rare bursts can be measured
  static constexpr double kMaxCorrelation = 0.5;     // above it blocks are mostly lost whole, past repair
  // Fates remembered: the packets in flight, and behind them what a spurious loss may still change.
  static constexpr size_t kMinMemory = 1u << 10;
  static constexpr size_t kMaxMemory = 1u << 18;
  static_assert((kMinMemory & (kMinMemory - 1)) == 0 && (kMaxMemory & (kMaxMemory - 1)) == 0);
  static_assert(kFastWeight > kSlowWeight);

  // A packet that counts as in flight has left. Returns its place in the order of sending, for the calls
  // below.
  uint64_t OnSent();
  // Its fate became known, at most once each way.
  void OnAcked(uint64_t place);
  void OnLost(uint64_t place);
  // It was declared lost and has arrived after all.
  void OnSpurious(uint64_t place);

  // 0..1; zero before the first loss. Includes the group that is not complete yet.
  double loss() const;
  double margin() const;
  double rho() const;
  // Mean length of a run of lost packets, >= 1.
  double mean_burst() const;
  uint64_t groups() const { return groups_; }
  // Fates that were given up because kMaxMemory packets had left since; such packets count as arrived.
  uint64_t abandoned() const { return abandoned_; }

 private:
  enum class Fate : uint8_t { kUnknown, kArrived, kLost };
  struct Sums {
    double s0 = 0, s1 = 0, n2 = 0, s2 = 0;
    double Mean(double more_packets, double more_lost) const;
  };

  Fate& At(uint64_t place) { return fates_[place & (fates_.size() - 1)]; }
  bool Remembers(uint64_t place) const { return place < sent_ && sent_ - place <= fates_.size(); }
  bool WasLost(uint64_t place) { return Remembers(place) && At(place) == Fate::kLost; }
  void Grow();
  void Advance();
  void CloseGroup();
  void SetFate(uint64_t place, Fate fate);
  // Adds to both memories what happened `age` groups ago.
  void Add(double age, double lost, double pairs);

  std::vector<Fate> fates_;  // a ring by place; its size is a power of two
  uint64_t sent_ = 0;
  uint64_t known_ = 0;  // every fate before this place is in the sums, or in the open group
  int open_lost_ = 0;   // of the open group
  uint64_t groups_ = 0;
  Sums fast_, slow_;
  double lost_ = 0;  // decayed: lost packets and runs of them
  double runs_ = 0;
  uint64_t abandoned_ = 0;
};

}  // namespace longhaul::transport
