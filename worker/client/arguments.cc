#include "worker/client/arguments.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <string>

#include "codec/chunk/chunk.h"
#include "codec/policy/summable.h"
#include "proto/control_codec.h"
#include "proto/frames.h"
#include "proto/utf8.h"

namespace longhaul::worker {
namespace {

constexpr Duration kDay = std::chrono::hours(24);

Status Invalid(std::string text) { return {StatusCode::kInvalidArgument, std::move(text)}; }

Status CheckName(const std::string& which, const std::string& name) {
  if (name.size() > wire::kMaxNameBytes) return Invalid("the " + which + "'s name has at most 256 bytes");
  if (!wire::IsPrintable(name)) return Invalid("the " + which + "'s name has control characters");
  return Status::Ok();
}

Status CheckWorld(const ConnectOptions& o) {
  if (o.world_size == 0 || o.world_size > 65536) return Invalid("world_size must be in 1..65536");
  if (o.rank < o.world_size) return Status::Ok();
  return Invalid("rank " + std::to_string(o.rank) + " is not below world_size " +
                 std::to_string(o.world_size));
}

Status CheckTimes(const ConnectOptions& o) {
  if (o.idle_timeout < std::chrono::milliseconds(100) || o.idle_timeout > kDay) {
    return Invalid("idle_timeout must be in 0.1 s..24 h");
  }
  if (o.connect_timeout < Duration(0) || o.connect_timeout > kDay) {
    return Invalid("connect_timeout must be in 0..24 h");
  }
  if (o.reconnect_timeout < Duration(0) || o.reconnect_timeout > kDay) {
    return Invalid("reconnect_timeout must be in 0 (none)..24 h");
  }
  if (o.wait_timeout < Duration(0) || o.wait_timeout > 365 * kDay) {
    return Invalid("wait_timeout must be in 0 (none)..1 year");
  }
  return Status::Ok();
}

Status CheckRates(const ConnectOptions& o) {
  if (NameOf(o.rate_controller) == "unknown") return Invalid("rate_controller is unknown");
  if (o.rate_cap < Bandwidth::Zero()) return Invalid("rate_cap is negative");
  if (o.rate_floor < Bandwidth::Zero()) return Invalid("rate_floor is negative");
  if (!o.rate_cap.IsZero() && o.rate_floor > o.rate_cap) return Invalid("rate_floor is above rate_cap");
  return Status::Ok();
}

// What the site's relay decides for all of its ranks.
Status CheckSite(const ConnectOptions& o) {
  const ConnectOptions none;
  if (!o.offload.starts_with("unix:") || o.offload.size() == 5) {
    return Invalid("offload is unix:PATH, not " + o.offload);
  }
  const bool decided = !o.servers.empty() || !o.job.empty() || o.rank != 0 || o.world_size != 1 ||
                       o.incarnation || !o.key_file.empty() || o.insecure || !o.server_name.empty() ||
                       o.cipher != none.cipher || o.rate_controller != none.rate_controller ||
                       !o.rate_cap.IsZero() || !o.rate_floor.IsZero() || !o.fault.empty() ||
                       o.datagram_bytes != none.datagram_bytes ||
                       o.reconnect_timeout != none.reconnect_timeout;
  if (!decided) return Status::Ok();
  return Invalid(
      "with offload, longhaul-offload decides: servers, job, rank, world_size, incarnation, keys, cipher, "
      "rates, faults and datagram_bytes are given there");
}

Status CheckServers(const ConnectOptions& o) {
  if (!o.offload.empty()) return CheckSite(o);
  if (o.site_rank) return Invalid("site_rank needs offload");
  if (o.servers.size() == 1) return Status::Ok();
  return Invalid("exactly one server address is needed, not " + std::to_string(o.servers.size()));
}

bool IsWeight(float weight) { return weight >= kMinWeight && weight <= kMaxWeight; }

}  // namespace

Status CheckWeight(const PushOptions& options) {
  if (!options.weight || IsWeight(*options.weight)) return Status::Ok();
  return Invalid("a contribution's weight must be in 1e-6..1e9");
}

Status CheckSummable(std::span<const float> gradient, uint32_t world_size, float weight) {
  const float largest = codec::LargestGradient(world_size, weight);
  if (codec::BestKernels().max_magnitude(gradient.data(), gradient.size()) <=
      std::bit_cast<uint32_t>(largest))
    return {};
  const auto bad = std::ranges::find_if(gradient, [largest](float g) { return !(std::abs(g) <= largest); });
  const std::string where = "element " + std::to_string(bad - gradient.begin()) + " of the gradient ";
  if (!std::isfinite(*bad)) return Invalid(where + "is not finite");
  return Invalid(where + "is " + std::to_string(*bad) + ", more than " + std::to_string(world_size) +
                 " workers of this weight can sum");
}

Status CheckOptions(const ConnectOptions& o) {
  if (Status servers = CheckServers(o); !servers.ok()) return servers;
  if (!IsWeight(o.weight)) return Invalid("weight must be in 1e-6..1e9");
  if (o.datagram_bytes < 1200 || o.datagram_bytes > 65507)
    return Invalid("datagram_bytes must be in 1200..65507");
  for (const Status& check :
       {CheckName("job", o.job), CheckName("site", o.site), CheckWorld(o), CheckTimes(o), CheckRates(o)}) {
    if (!check.ok()) return check;
  }
  return Status::Ok();
}

std::vector<float> ScoresOf(std::span<const float> scores, uint64_t elements, uint64_t first,
                            uint64_t count) {
  // As many as keep their length; products of 2^20 and 2^40 fit.
  const uint64_t parts = std::clamp<uint64_t>((scores.size() * count + elements - 1) / elements, 1, count);
  std::vector<float> own;
  for (uint64_t part = 0; part < parts; ++part) {
    const uint64_t begin = first + part * count / parts;
    const uint64_t end = first + (part + 1) * count / parts;
    // Of all elements' parts those that begin before `end` and end after `begin`.
    uint64_t from = begin * scores.size() / elements;
    float highest = scores[from];
    for (; from < scores.size() && from * elements / scores.size() < end; ++from)
      highest = std::max(highest, scores[from]);
    own.push_back(highest);
  }
  return own;
}

Status CheckScores(std::span<const float> scores, uint64_t count) {
  if (scores.empty() || scores.size() > std::min<uint64_t>(count, wire::kMaxWindowChunks)) {
    return Invalid(std::to_string(scores.size()) + " scores for a tensor of " + std::to_string(count) +
                   " elements: 1 to 2^20, not more than elements");
  }
  const auto bad = std::ranges::find_if(scores, [](float s) { return !(s >= 0 && std::isfinite(s)); });
  if (bad == scores.end()) return Status::Ok();
  return Invalid("score " + std::to_string(bad - scores.begin()) + " is " + std::to_string(*bad) +
                 ", which is negative or not finite");
}

Status CheckInitial(std::span<const float> values) {
  if (Status memory = CheckMemory(values); !memory.ok()) return memory;
  const auto bad = std::ranges::find_if(values, [](float v) { return !std::isfinite(v); });
  if (bad == values.end()) return Status::Ok();
  return Invalid("initial value " + std::to_string(bad - values.begin()) + " is " + std::to_string(*bad));
}

Status CheckMemory(std::span<const float> values) {
  if (values.empty() || values.data() != nullptr) return Status::Ok();
  return Invalid("a span of " + std::to_string(values.size()) + " elements begins at the null pointer");
}

Status CheckCode(const Status& why) {
  if (StatusCodeName(why.code()) != "Unknown") return Status::Ok();
  return Invalid(std::to_string(static_cast<int>(why.code())) + " is not a status code");
}

bool Overlap(std::span<const float> a, std::span<const float> b) {
  const std::less<const float*> before;  // also of different arrays
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

}  // namespace longhaul::worker
