#include "server/server_core.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/placement.h"
#include "proto/utf8.h"

namespace longhaul::server {
namespace {

constexpr uint32_t kDismissed = 256;  // connections: all of Strangers::kMax may be refused and linger at once

Status Invalid(const std::string& setting, const std::string& value, const std::string& range) {
  return Status(StatusCode::kInvalidArgument, setting + " is " + value + ", but must be " + range);
}

Status CheckRange(const std::string& setting, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return Invalid(setting, std::to_string(value), "in " + std::to_string(low) + ".." + std::to_string(high));
}

std::string Mbits(Bandwidth rate) { return std::to_string(rate.mbps()) + " Mbit/s"; }

Status CheckFloor(const std::string& which, Bandwidth floor, Bandwidth cap) {
  if (floor <= cap) return {};
  return Status(StatusCode::kInvalidArgument,
                which + " is " + Mbits(floor) + ", above its cap of " + Mbits(cap));
}

Status CheckGrants(const GrantSettings& grants) {
  const std::pair<const char*, Bandwidth> rates[] = {{"capacity", grants.capacity},
                                                     {"capacity_floor", grants.capacity_floor},
                                                     {"capacity_cap", grants.capacity_cap},
                                                     {"worker_rate_floor", grants.worker_floor},
                                                     {"worker_rate_cap", grants.worker_cap}};
  for (const auto& [which, rate] : rates) {
    if (rate < Bandwidth::Zero()) return Invalid(which, Mbits(rate), "0 or more");
  }
  if (Status floor = CheckFloor("worker_rate_floor", grants.worker_floor, grants.worker_cap); !floor.ok())
    return floor;
  if (grants.capacity.IsZero())
    return CheckFloor("capacity_floor", grants.capacity_floor, grants.capacity_cap);
  if (!grants.capacity_floor.IsZero() || grants.capacity_cap != Bandwidth::Max())
    return Status(StatusCode::kInvalidArgument,
                  "capacity_floor and capacity_cap bound an estimate, but the capacity is given");
  return CheckFloor("worker_rate_floor", grants.worker_floor, grants.capacity);
}

transport::EndpointOptions MakeEndpointOptions(const ServerCoreOptions& options, codec::ErasureCoder* coder) {
  transport::EndpointOptions endpoint;
  endpoint.connection = options.connection;
  endpoint.connection.max_datagram = options.settings.max_datagram;
  // What a window may have is the declaration's to bound.
  endpoint.connection.max_window_bytes =
      std::max(options.connection.max_window_bytes, transport::LargestWindow(options.settings.max_datagram));
  endpoint.connection.idle_timeout = options.settings.idle_timeout;
  endpoint.connection.keepalive = std::min(options.connection.keepalive, options.settings.idle_timeout / 4);
  endpoint.connection.rate.loss_limits = transport::LossLimits::Of(options.settings);
  endpoint.accepts = true;
  endpoint.admission = options.admission;
  // Members, guests and other servers, each with a predecessor that is leaving, strangers, handshakes under
  // way, and dismissed peers that linger.
  const uint32_t guests = options.guests != nullptr ? options.guests->max_connections() : 0;
  endpoint.max_connections = 2 * (options.settings.world_size + guests + options.settings.place.servers) +
                             static_cast<uint32_t>(Strangers::Max(options.settings.world_size)) +
                             endpoint.admission.max_half_open + kDismissed;
  endpoint.connection.wary = true;
  endpoint.coder = coder;
  endpoint.security = options.security;
  return endpoint;
}

}  // namespace

namespace {

Status CheckAggregation(const ServerSettings& s) {
  if (s.aggregation == Aggregation::kPlugin) {
    if (s.aggregation_rule != nullptr) return {};
    return {StatusCode::kInvalidArgument, "aggregation plugin needs the name of one, 'plugin_aggregation'"};
  }
  if (s.aggregation == Aggregation::kMean || s.world_size >= 3) return {};
  return {StatusCode::kInvalidArgument, "aggregation " + std::string(NameOf(s.aggregation)) +
                                            " needs at least 3 workers, not " + std::to_string(s.world_size) +
                                            ": of fewer none is a minority"};
}

}  // namespace

Status ServerCoreOptions::Validate() const {
  const ServerSettings& s = settings;
  if (s.job.empty() || s.job.size() > wire::kMaxNameBytes)
    return Invalid("job", "\"" + s.job + "\"", "1..256 bytes long");
  if (!wire::IsPrintable(s.job))
    return Invalid("job", "\"" + wire::Printable(s.job, wire::kMaxNameBytes) + "\"",
                   "without control characters");
  const Status checks[] = {
      CheckRange("workers", s.world_size, 1, 1024),
      CheckRange("min_workers", s.min_workers, 1, s.world_size),
      CheckRange("start_workers", s.start_workers == 0 ? s.world_size : s.start_workers, s.min_workers,
                 s.world_size),
      CheckRange("quorum", s.quorum, 0, s.world_size),
      s.JobSpec::Validate(),
      CheckAggregation(s),
      CheckRange("servers", s.place.servers, 1, kMaxServers),
      CheckRange("datagram size", s.max_datagram.value(), 1200, 65507),
      CheckGrants(s.grants),
      s.access.allow.CheckWorldSize(s.world_size),
      CheckRange("max_half_open", admission.max_half_open, 2, 65536),
      CheckRange("half_open_timeout in milliseconds",
                 std::chrono::duration_cast<std::chrono::milliseconds>(admission.half_open_timeout).count(),
                 100, 60'000),
      CheckRange("max_model in bytes", s.max_model.value(), 4, int64_t{1} << 40),
  };
  for (const Status& check : checks) {
    if (!check.ok()) return check;
  }
  return {};
}

ServerCore::ServerCore(const ServerCoreOptions& options, codec::ErasureCoder* coder, Random random)
    : coordinator_(options.settings, options.events, options.status_json, options.connection.receive_window,
                   options.guests, options.images),
      endpoint_(MakeEndpointOptions(options, coder), random) {
  const Status valid = options.Validate();
  LH_CHECK_OP(valid.ToString(), ==, Status().ToString());
  LH_CHECK(coder != nullptr || options.settings.fec_k == 0);
  coordinator_.SetWallClock(options.wall_clock);
  coordinator_.SetEndpointStats([this] { return endpoint_.stats(); });
}

ServerCore::~ServerCore() = default;

void ServerCore::Drain() {
  while (const auto happened = endpoint_.PollEvent()) {
    if (!handed_over_) {
      coordinator_.Handle(happened->connection, happened->event);
    } else if (std::holds_alternative<transport::event::Accepted>(happened->event)) {
      handed_over_->newcomers.push_back(happened->connection);
      happened->connection->Close(handed_over_->why);
    } else if (std::holds_alternative<transport::event::Closed>(happened->event)) {
      const bool new_one = std::erase(handed_over_->newcomers, happened->connection) > 0;
      handed_over_->left -= !new_one && handed_over_->left > 0 ? 1 : 0;
    }
  }
}

void ServerCore::AfterEvent() {
  Drain();
  if (!handed_over_) coordinator_.AfterEvent();
}

void ServerCore::HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                                const transport::ReceiveInfo& info) {
  coordinator_.SetNow(now);
  endpoint_.HandleDatagram(now, from, datagram, info);
  AfterEvent();
}

void ServerCore::HandleTimeout(Instant now) {
  coordinator_.SetNow(now);
  endpoint_.HandleTimeout(now);
  Drain();
  if (!handed_over_) coordinator_.HandleTimeout();
  AfterEvent();
}

void ServerCore::Work(Instant now) {
  if (handed_over_) return;
  coordinator_.SetNow(now);
  coordinator_.Work();
  coordinator_.AfterEvent();
}

void ServerCore::HandleSendRefused(Instant now, const Address& destination, size_t datagram_bytes) {
  coordinator_.SetNow(now);
  endpoint_.HandleSendRefused(now, destination, datagram_bytes);
  AfterEvent();
}

std::optional<transport::Transmit> ServerCore::PollTransmit(Instant now, MutableByteSpan buffer) {
  return endpoint_.PollTransmit(now, buffer);
}

Instant ServerCore::NextTimeout() const {
  return handed_over_ ? endpoint_.NextTimeout()
                      : std::min(endpoint_.NextTimeout(), coordinator_.NextTimeout());
}

void ServerCore::Reload(Instant now, std::vector<std::shared_ptr<transport::Security>> keys,
                        const AccessRules& rules) {
  if (handed_over_) return;
  coordinator_.SetNow(now);
  if (!keys.empty()) endpoint_.SetKeys(std::move(keys));
  coordinator_.Reload(rules);
  Drain();
  coordinator_.AfterEvent();
}

void ServerCore::KeepState(Instant now) {
  coordinator_.SetNow(now);
  coordinator_.KeepState();
}

void ServerCore::OnLogged(Instant now) {
  if (handed_over_) return;
  coordinator_.SetNow(now);
  coordinator_.OnLogged();
  Drain();
  coordinator_.AfterEvent();
}

void ServerCore::Shutdown(Instant now, const Status& why) {
  coordinator_.SetNow(now);
  coordinator_.Shutdown(why);
}

void ServerCore::HandOver(Instant now, const Status& why) {
  coordinator_.SetNow(now);
  handed_over_ = {why, coordinator_.Stats(), endpoint_.connection_count()};
  endpoint_.CloseAll(why);
  Drain();
}

}  // namespace longhaul::server
