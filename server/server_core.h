// The parameter server without sockets, clock and threads: an endpoint, and the coordinator that takes its
// events. Drive it as any DatagramCore.
//
// Serves job after job: when one is over (finished or aborted), its tensors are dropped and workers of the
// next one may join. Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "codec/fec/erasure_coder.h"
#include "server/job/coordinator.h"
#include "server/report/server_stats.h"
#include "server/settings.h"
#include "transport/core/endpoint/endpoint.h"

namespace longhaul::server {

struct ServerCoreOptions {
  ServerSettings settings;
  transport::ConnectionOptions connection;  // but max_datagram and idle_timeout, which the settings say
  transport::AdmissionOptions admission;    // with security
  transport::Security* security = nullptr;  // null: none; else it must outlive the core
  ServerEvents* events = nullptr;           // may be null; must outlive the core
  Guests* guests = nullptr;                 // null refuses all; else it must outlive the core
  ImageKeeper* images = nullptr;  // null: the job's state is not kept; else it must outlive the core
  // Seconds since 1970, UTC, which certificates are dated by; empty: live connections' do not expire.
  std::function<int64_t()> wall_clock;
  // Makes the answer to a worker's or observer's StatusRequest; empty: "{}".
  std::function<std::string(const ServerStats&)> status_json;

  // kInvalidArgument names the setting, its value and its range.
  Status Validate() const;
};

class ServerCore final : public transport::DatagramCore {
 public:
  // coder: null only with settings.fec_k == 0; must outlive the core. REQUIRES: options.Validate().ok().
  ServerCore(const ServerCoreOptions& options, codec::ErasureCoder* coder, Random random);
  ~ServerCore() override;

  void HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                      const transport::ReceiveInfo& info) override;
  void HandleTimeout(Instant now) override;
  void HandleSendRefused(Instant now, const Address& destination, size_t datagram_bytes) override;
  std::optional<transport::Transmit> PollTransmit(Instant now, MutableByteSpan buffer) override;
  Instant NextTimeout() const override;
  bool HasWork() const override { return !handed_over_ && coordinator_.HasWork(); }
  void Work(Instant now) override;
  void HandleLongestEvent(Duration cpu) override { coordinator_.HandleLongestEvent(cpu); }

  // New keys and rules, without an end to the job: as Endpoint::SetKeys (no keys: they stay) and
  // Coordinator::Reload.
  void Reload(Instant now, std::vector<std::shared_ptr<transport::Security>> keys, const AccessRules& rules);
  // As Coordinator's.
  void KeepState(Instant now);
  bool KeepsState() { return coordinator_.KeepsState(); }
  void OnLogged(Instant now);
  // Tells every worker why and takes no one any more. Drained() says when all of them have heard it.
  void Shutdown(Instant now, const Status& why);
  // Closes every connection with `why` and takes no one any more; the job is not over. Drained() as above.
  void HandOver(Instant now, const Status& why);
  bool Drained() const { return handed_over_ ? handed_over_->left == 0 : coordinator_.Idle(); }

  // --- Questions ---
  uint64_t jobs_over() const { return coordinator_.jobs_over(); }
  // Of the latest job that is over: Ok when every worker has left orderly.
  const Status& last_outcome() const { return coordinator_.last_outcome(); }
  ServerStats stats() const { return handed_over_ ? handed_over_->stats : coordinator_.Stats(); }
  transport::EndpointStats endpoint_stats() const { return endpoint_.stats(); }

 private:
  struct HandedOver {
    Status why;
    ServerStats stats;
    size_t left;  // connections that were there and have not ended
    std::vector<const transport::Connection*> newcomers = {};
  };

  // The coordinator hears what happened on the endpoint.
  void Drain();
  void AfterEvent();

  Coordinator coordinator_;
  transport::Endpoint endpoint_;
  std::optional<HandedOver> handed_over_;  // the coordinator is not asked any more: its connections go
};

}  // namespace longhaul::server
