// A server's connection to the first one of its job, without sockets, clock and threads (decision 0029): it
// asks for its place, learns the settings, and comes again whenever the connection is lost.
//
//   Start -> ServerJoin -> ServerWelcome: outcome -> [lost -> ServerJoin -> the same ServerWelcome]*
//
// Drive it like any DatagramCore. Not thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/random.h"
#include "longhaul/status.h"
#include "proto/control_codec.h"
#include "transport/core/datagram_core.h"
#include "transport/core/endpoint/endpoint.h"

namespace longhaul::server {

struct RegistrationOptions {
  control::ServerJoin join;                 // without a place: what the disk does not say
  std::string first_server;                 // for people
  Duration timeout{0};                      // from Start to the first ServerWelcome
  transport::Security* security = nullptr;  // null: none; else it must outlive the core
  // Once each time: Ok, the first server has this server; or why it is lost, or has refused. May be empty.
  std::function<void(const Status&)> say = {};
  // Where the first server is now, asked before every connection but the first; none: where it was. May be
  // empty.
  std::function<std::optional<Address>()> resolve = {};
  // The first answer, or why there is none. Then once more, if the first server does not know this one any
  // more or has other settings: this server cannot go on.
  std::function<void(const Result<control::ServerWelcome>&)> answer = {};
  // The job goes to other servers: this one is to hand its part over. May be empty.
  std::function<void()> hand_over = {};
};

class RegistrationCore final : public transport::DatagramCore {
 public:
  // Between two attempts.
  static constexpr Duration kRetry = std::chrono::seconds(1);
  // A first server that was started again is noticed by its answer to the next packet.
  static constexpr Duration kAskEvery = std::chrono::milliseconds(250);

  RegistrationCore(RegistrationOptions options, Random random);
  // REQUIRES: the first call.
  void Start(Instant now, const Address& first);

  // This server ends.
  void Leave();
  // The server's keys from now on: of the attempts that follow.
  void SetKeys(std::vector<std::shared_ptr<transport::Security>> keys) { endpoint_.SetKeys(std::move(keys)); }
  std::string FirstServer() const { return "the first server, " + options_.first_server + ","; }

  // --- DatagramCore ---
  void HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                      const transport::ReceiveInfo& info) override;
  void HandleTimeout(Instant now) override;
  void HandleSendRefused(Instant now, const Address& destination, size_t datagram_bytes) override;
  std::optional<transport::Transmit> PollTransmit(Instant now, MutableByteSpan buffer) override;
  Instant NextTimeout() const override;

 private:
  void Drain(Instant now);
  void OnControlBytes(ByteSpan bytes);
  void OnMessage(const control::ControlMessage& message);
  void OnWelcome(const control::ServerWelcome& welcome);
  void OnClosed(Instant now, const Status& why);
  void Say(const Status& status);
  void End(const Status& why);

  RegistrationOptions options_;
  Address first_;
  transport::Connection* connection_ = nullptr;
  wire::ControlReader reader_;
  std::optional<control::ServerWelcome> welcome_;  // the first one
  Status said_;
  Status refused_;  // by this connection
  Instant deadline_ = Instant::Infinite();
  Instant retry_ = Instant::Infinite();
  bool over_ = false;

  transport::Endpoint endpoint_;
};

}  // namespace longhaul::server
