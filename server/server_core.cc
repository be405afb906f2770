#include "server/server_core.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "codec/loss_policy.h"
#include "proto/utf8.h"

namespace longhaul::server {
namespace {

constexpr uint32_t kDismissed = 256;

Status Invalid(const std::string& setting, const std::string& value, const std::string& range) {
  return Status(StatusCode::kInvalidArgument, setting + " is " + value + ", but must be " + range);
}

Status CheckShare(const std::string& setting, double value) {
  if (value >= 0 && value <= 1) return {};
  return Invalid(setting, std::to_string(value), "in 0..1");
}

Status CheckRange(const std::string& setting, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return Invalid(setting, std::to_string(value), "in " + std::to_string(low) + ".." + std::to_string(high));
}

Status CheckPositiveShare(const std::string& setting, double value) {
  if (value > 0 && value <= 1) return {};
  return Invalid(setting, std::to_string(value), "above 0 and at most 1");
}

Status CheckOneOf(const std::string& setting, const std::string& value,
                  std::initializer_list<std::string_view> known) {
  std::string names;
  for (const std::string_view name : known) {
    if (value == name) return {};
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return Invalid(setting, "\"" + value + "\"", "one of " + names);
}

// A factor that may be off.
Status CheckFactor(const std::string& setting, double value) {
  if (value == 0 || (value >= 1 && value <= 1e6)) return {};
  return Invalid(setting, std::to_string(value), "0 (off) or in 1..1000000");
}

Status CheckLearning(const ServerSettings& s) {
  const Status checks[] = {
      CheckPositiveShare("shift_alpha", s.shift_alpha),
      CheckOneOf("priority", s.priority, {"energy", "layer", "topk"}),
      CheckShare("high_energy", s.high_energy),
      CheckPositiveShare("topk_share", s.topk_share),
      CheckFactor("straggler_factor", s.straggler_factor),
      CheckFactor("norm_guard", s.norm_guard),
      CheckOneOf("downlink", s.downlink, {"reliable", "lossy"}),
      CheckRange("hash_rounds", s.hash_rounds, 1, 1'000'000),
      CheckRange("round_bound in ns", s.round_bound.count(), 0, int64_t{24} * 3600 * 1'000'000'000),
  };
  for (const Status& check : checks) {
    if (!check.ok()) return check;
  }
  const bool remembers = s.policy == "residual" || s.policy == "shift";
  if (s.priority == "topk" && !remembers) {
    return Status(StatusCode::kInvalidArgument,
                  "priority topk needs a policy that remembers what did not travel: residual or shift, not " +
                      s.policy);
  }
  return {};
}

std::string Mbits(Bandwidth rate) { return std::to_string(rate.mbps()) + " Mbit/s"; }

Status CheckFloor(const std::string& which, Bandwidth floor, Bandwidth cap) {
  if (floor <= cap) return {};
  return Status(StatusCode::kInvalidArgument,
                which + " is " + Mbits(floor) + ", above its cap of " + Mbits(cap));
}

Status CheckGrants(const GrantSettings& grants) {
  if (Status floor = CheckFloor("worker_rate_floor", grants.worker_floor, grants.worker_cap); !floor.ok())
    return floor;
  if (grants.capacity.IsZero())
    return CheckFloor("capacity_floor", grants.capacity_floor, grants.capacity_cap);
  if (!grants.capacity_floor.IsZero() || grants.capacity_cap != Bandwidth::Max())
    return Status(StatusCode::kInvalidArgument,
                  "capacity_floor and capacity_cap bound an estimate, but the capacity is given");
  return CheckFloor("worker_rate_floor", grants.worker_floor, grants.capacity);
}

bool IsBlockSize(int k) {
  return std::find(std::begin(codec::kBlockSizes), std::end(codec::kBlockSizes), k) !=
         std::end(codec::kBlockSizes);
}

transport::EndpointOptions MakeEndpointOptions(const ServerCoreOptions& options, codec::ErasureCoder* coder,
                                               Coordinator* coordinator) {
  transport::EndpointOptions endpoint;
  endpoint.connection = options.connection;
  endpoint.connection.max_datagram = options.settings.max_datagram;
  endpoint.connection.idle_timeout = options.settings.idle_timeout;
  endpoint.connection.keepalive = std::min(options.connection.keepalive, options.settings.idle_timeout / 4);
  endpoint.accepts = true;
  // Members and load generators with those whom they replace or who just leave, strangers, handshakes under
  // way, and some that are only being told why they may not stay.
  endpoint.max_connections = 2 * (options.settings.world_size + options.settings.bench_connections) +
                             static_cast<uint32_t>(Coordinator::MaxStrangers(options.settings.world_size)) +
                             endpoint.admission.max_half_open + kDismissed;
  endpoint.connection.wary = true;
  endpoint.coder = coder;
  endpoint.security = options.security;
  endpoint.on_accept = [coordinator](transport::Connection& connection) {
    return coordinator->Accept(connection);
  };
  endpoint.on_handshake_failed = [events = options.events](const Address& peer, const Status& why) {
    if (events) events->OnHandshakeFailed(peer, why);
  };
  return endpoint;
}

}  // namespace

Status ServerCoreOptions::Validate() const {
  const ServerSettings& s = settings;
  const auto ms = [](Duration d) { return std::chrono::duration_cast<std::chrono::milliseconds>(d).count(); };
  if (s.job.empty() || s.job.size() > wire::kMaxNameBytes)
    return Invalid("job", "\"" + s.job + "\"", "1..256 bytes long");
  if (!wire::IsPrintable(s.job))
    return Invalid("job", "\"" + wire::Printable(s.job, wire::kMaxNameBytes) + "\"",
                   "without control characters");
  if (const auto policy = codec::ParseLossPolicy(s.policy); !policy.ok()) return policy.status();
  if (s.fec_k != 0 && !IsBlockSize(s.fec_k))
    return Invalid("fec_k", std::to_string(s.fec_k), "0, 8, 12, 16, 20 or 24");
  const Status checks[] = {
      CheckRange("workers", s.world_size, 1, 1024),
      CheckRange("min_workers", s.min_workers, 1, s.world_size),
      CheckRange("bench_connections", s.bench_connections, 0, 1024),
      CheckShare("high_share", s.high_share),
      CheckShare("bubble_threshold", s.bubble_threshold),
      CheckShare("close_ratio", s.close_ratio),
      CheckLearning(s),
      CheckRange("fec_depth", s.fec_depth, 0, 255),
      CheckRange("idle_timeout in ms", ms(s.idle_timeout), 100, 24ll * 3600 * 1000),
      CheckRange("datagram size", s.max_datagram.value(), 1200, 65507),
      CheckGrants(s.grants),
      CheckRange("max_model in bytes", s.max_model.value(), 4, int64_t{1} << 40),
  };
  for (const Status& check : checks) {
    if (!check.ok()) return check;
  }
  return {};
}

ServerCore::ServerCore(ServerCoreOptions options, codec::ErasureCoder* coder, Random random)
    : coordinator_(options.settings, options.events, options.status_json, options.connection.receive_window),
      endpoint_(MakeEndpointOptions(options, coder, &coordinator_), random) {
  const Status valid = options.Validate();
  LH_CHECK_OP(valid.ToString(), ==, Status().ToString());
  LH_CHECK(coder != nullptr || options.settings.fec_k == 0);
  coordinator_.SetEndpointStats([this] { return endpoint_.stats(); });
}

ServerCore::~ServerCore() = default;

void ServerCore::HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                                const transport::ReceiveInfo& info) {
  coordinator_.SetNow(now);
  endpoint_.HandleDatagram(now, from, datagram, info);
  coordinator_.AfterEvent();
}

void ServerCore::HandleTimeout(Instant now) {
  coordinator_.SetNow(now);
  endpoint_.HandleTimeout(now);
  coordinator_.HandleTimeout();
  coordinator_.AfterEvent();
}

void ServerCore::HandleSendRefused(Instant now, const Address& destination, size_t datagram_bytes) {
  coordinator_.SetNow(now);
  endpoint_.HandleSendRefused(now, destination, datagram_bytes);
  coordinator_.AfterEvent();
}

std::optional<transport::Transmit> ServerCore::PollTransmit(Instant now, MutableByteSpan buffer) {
  coordinator_.SetNow(now);
  auto transmit = endpoint_.PollTransmit(now, buffer);
  // Polling may end connections, which may end a job, which has something to say.
  if (coordinator_.AfterEvent() && !transmit) transmit = endpoint_.PollTransmit(now, buffer);
  return transmit;
}

Instant ServerCore::NextTimeout() const {
  return std::min(endpoint_.NextTimeout(), coordinator_.NextTimeout());
}

void ServerCore::Shutdown(Instant now, const Status& why) {
  coordinator_.SetNow(now);
  coordinator_.Shutdown(why);
}

}  // namespace longhaul::server
