// What the operator decides about a job: one JobSpec, which the server owns and every worker receives when it
// joins. Also the enumerations of the public options, with their names.
//
// A setting is a field here, a row of the table in base/job_settings.cc (its range and its help, from which
// the validator, the command lines, the configuration files and the JSON follow) and a field of the control
// message (proto/control.proto). CONTRIBUTING.md shows one being added.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "longhaul/status.h"
#include "longhaul/units.h"

namespace longhaul {

// What becomes of lost low-priority chunks (codec/policy/loss_policy.h compares them).
enum class LossPolicy : uint8_t {
  kZero,      // they count as zero
  kCount,     // the mean is over those that arrived
  kStale,     // the chunk's mean of the last round stands in
  kIpw,       // those that arrived count by the inverse of their worker's delivered share
  kResidual,  // the worker adds what was lost to its next gradient
  kShift,     // a lost chunk counts as what its worker usually sends
};

// How chunks are ranked.
enum class Priority : uint8_t {
  kEnergy,  // by their squared norm
  kLayer,   // the front of the tensor first
  kTopK,    // only the largest elements travel; needs a policy that remembers the rest: residual or shift
};

enum class Downlink : uint8_t {
  kReliable,
  kLossy,  // results may lose chunks on the way down, which the next round repays
};

// What decides how fast to send.
enum class RateControl : uint8_t {
  kLonghaul,  // the BBR model with the fitted target loss
  kBbr,       // draft-ietf-ccwg-bbr with its fixed 2 %
  kCubic,     // RFC 9438
};

// How the workers' contributions to a chunk become one value (server/tensor/robust_mean.h).
enum class Aggregation : uint8_t {
  kMean,             // by weight, summed as they arrive
  kTrimmedMean,      // by element, without the largest and the smallest ones
  kCentredClipping,  // pulled towards the elements' medians, as far as most are away from them
  kPlugin,           // by a plug-in's rule, at the server (ServerOptions::plugin_aggregation)
};

// Of the packets.
enum class Cipher : uint8_t { kAny, kAes128Gcm, kAes256Gcm, kChaCha20Poly1305 };

// The names of an enumeration's values, in the order of the values.
template <typename E>
inline constexpr std::array<std::string_view, 0> kNamesOf = {};
template <>
inline constexpr std::array<std::string_view, 6> kNamesOf<LossPolicy> = {"zero", "count",    "stale",
                                                                         "ipw",  "residual", "shift"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<Priority> = {"energy", "layer", "topk"};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<Downlink> = {"reliable", "lossy"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<RateControl> = {"longhaul", "bbr", "cubic"};
template <>
inline constexpr std::array<std::string_view, 4> kNamesOf<Aggregation> = {"mean", "trimmed-mean",
                                                                          "centred-clipping", "plugin"};
template <>
inline constexpr std::array<std::string_view, 4> kNamesOf<Cipher> = {"any", "aes-128-gcm", "aes-256-gcm",
                                                                     "chacha20-poly1305"};

template <typename E>
requires(!kNamesOf<E>.empty()) constexpr std::string_view NameOf(E value) {
  const auto index = static_cast<size_t>(value);
  return index < kNamesOf<E>.size() ? kNamesOf<E>[index] : "unknown";
}

template <typename E>
requires(!kNamesOf<E>.empty()) constexpr auto ValuesOf() {
  std::array<E, kNamesOf<E>.size()> values = {};
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<E>(i);
  return values;
}

// The other way round; none for any other name.
template <typename E>
requires(!kNamesOf<E>.empty()) constexpr std::optional<E> FromName(std::string_view name) {
  for (size_t i = 0; i < kNamesOf<E>.size(); ++i) {
    if (kNamesOf<E>[i] == name) return static_cast<E>(i);
  }
  return std::nullopt;
}

struct JobSpec {
  LossPolicy policy = LossPolicy::kResidual;
  // Step by which policy shift follows a worker's gradients, > 0 and <= 1.
  double shift_alpha = 0.1;
  Priority priority = Priority::kEnergy;
  // Share of a gradient's chunks, most important first, that travels reliably and with FEC, 0..1.
  double high_share = 0.2;
  // Above zero, and instead of high_share: as many chunks as hold this share of the gradient's energy, 0..1.
  double high_energy = 0;
  // More chunks than that are high where a worker loses so many low ones that more than this share of its
  // gradient's energy would be lost in a round, 0..1. 1: never.
  double lost_energy = 0.15;
  // With priority topk: share of the elements that travels, > 0 and <= 1.
  double topk_share = 0.1;
  // Raw loss of a window's low class above which its losses are filled, 0..1.
  double bubble_threshold = 0.1;
  // Loss of a round trip, beyond what the path loses by itself, at and above which the sender's rate
  // controller halves its rate, 0..1. Larger than bubble_threshold: filling costs nothing, halving does.
  double halve_threshold = 0.3;
  // Share of the energy of a window's low class that lets the window close when its high class is done, 0..1.
  double close_ratio = 0.9;
  // Share of a gradient window's high chunks that makes its high class done, 0..1. Below 1 those that are
  // missing are treated as lost low chunks are, by the policy (ipw scales the low class only).
  double close_ratio_high = 1;
  Downlink downlink = Downlink::kReliable;
  // With a lossy downlink: every so many rounds everything is sent reliably, and a hash proves that all
  // workers have the same values. >= 1.
  uint32_t hash_rounds = 64;
  // A worker that takes so many times as long as the others usually do is left out of the round; its gradient
  // counts in a later one. 0: every round waits for every worker. Else >= 1.
  double straggler_factor = 0;
  // No round waits longer than this for any worker; zero: no bound. The first one counts from when version 0
  // is there: declared by all, and delivered by the worker that offered it.
  Duration round_bound{0};
  // A live worker that does nothing is left out too, without the two settings above: a round waits for it so
  // many times as long as its turns and the others' usually take, 12 idle time-outs at least and 60 in the
  // first rounds (server/tensor/patience.h). 0: for ever, and so it is with `deterministic`. Else >= 1.
  double round_patience = 4;
  // How many pushes of a tensor a worker may be ahead of the slowest member: 0 = BSP, synchronous rounds;
  // N = SSP, 1..1000; -1 = ASP, no bound. Other than 0, every push is a step of the optimizer of its own, as
  // soon as it is in, with its weight's share of a synchronous step (docs/explanation/learning.md). Then
  // every tensor needs an optimizer, and policy shift, a robust aggregation, `deterministic` and a lossy
  // downlink are refused.
  int32_t staleness = 0;
  // BSP: a round closes when so many of its members' windows are in and a grace has passed, which is learned
  // (server/tensor/stragglers.h). What comes later counts in the round of that moment. 0, or as many as there
  // are members: all of them. Needs staleness 0, the mean, and not `deterministic`.
  uint32_t quorum = 0;
  // Sums contributions in rank order: bitwise equal results whatever the order of arrival. Costs memory for
  // every worker's contribution to unfinished chunks.
  bool deterministic = false;
  // Refuses a chunk whose norm is so many times what is usual for it; 0: none. Values that are not finite are
  // always refused.
  double norm_guard = 0;
  // Most of a round's weight that one worker counts with, 0..1: what it says beyond that is cut off, by what
  // the others usually say (server/member/weight_ledger.h). 0: as much as a worker with three times the
  // weight of each of the others has. 1: whatever it says. Below 1 / workers: all count alike.
  double max_weight_share = 0;
  // Anything but the mean holds whatever a minority of the workers pushes. It takes every worker's
  // contribution alike, also that of a site's engine which is a sum of many, and holds all of a chunk until
  // the last is here: memory as for `deterministic`. Needs policy zero, count or stale, and three workers.
  Aggregation aggregation = Aggregation::kMean;
  // With an aggregation that is robust: share of the round's workers that may lie, at least one of them, > 0
  // and
  // <= 0.5; but fewer than half.
  double liar_share = 0.25;
  // Source symbols per FEC block: 8, 12, 16, 20 or 24; 0 turns FEC off.
  uint8_t fec_k = 20;
  // FEC blocks interleaved against bursts; 0 = four times the mean burst that a connection sees.
  uint8_t fec_depth = 0;
  // A worker that is silent for so long is dead. 100 ms to 24 h.
  Duration idle_timeout = std::chrono::seconds(10);
  // Workers rotate the send order of their chunks by it.
  uint64_t seed = 1;

  bool operator==(const JobSpec&) const = default;

  // kInvalidArgument names the setting, its value and its range.
  Status Validate() const;
};

}  // namespace longhaul
