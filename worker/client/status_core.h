// One question to a parameter server without sockets, clock and threads: how is the job? Or one order: out
// with a worker. For operators' tools, which join nothing and take no windows.
//
//   Ask(now, server) -> the answer, or why there is none -> ended
//
// Drive it like any DatagramCore; what it still wants to send when it has ended is its goodbye. Not
// thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/random.h"
#include "longhaul/status.h"
#include "proto/control_codec.h"
#include "transport/core/datagram_core.h"
#include "transport/core/endpoint/endpoint.h"

namespace longhaul::worker {

struct StatusOptions {
  Duration timeout = std::chrono::seconds(10);  // from Ask() to the answer
  transport::Security* security = nullptr;      // null: none; else it must outlive the core
  std::optional<uint32_t> kick = {};            // instead of the question: the worker of this rank is kicked
  std::optional<Duration> hand_over = {};       // or: the servers hand the job over, within this time
};

class StatusCore final : public transport::DatagramCore {
 public:
  // `on_end`, which may be empty, is called once, from inside the event that ends it.
  StatusCore(const StatusOptions& options, Random random, std::function<void()> on_end);

  // REQUIRES: the first call.
  void Ask(Instant now, const Address& server);

  // nullopt until the end; then the server's JSON, the description of the kicked worker, or what was handed
  // over; or kUnavailable (no server answers, or not with this key), kPermissionDenied, kNotFound and what
  // else the server refuses for, kProtocolViolation.
  const std::optional<Result<std::string>>& outcome() const { return outcome_; }
  // Why there may be no answer yet (WhyNoAnswer); empty when the server is there.
  std::string Hint() const;
  void NoteProbe(std::string said) { probe_ = std::move(said); }

  // --- DatagramCore ---
  void HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                      const transport::ReceiveInfo& info) override;
  void HandleTimeout(Instant now) override;
  void HandleSendRefused(Instant now, const Address& destination, size_t datagram_bytes) override;
  std::optional<transport::Transmit> PollTransmit(Instant now, MutableByteSpan buffer) override;
  Instant NextTimeout() const override;

 private:
  void Drain();
  void OnConnected();
  void OnClosed(const Status& why);
  void OnControlBytes(ByteSpan bytes);
  void OnMessage(const control::ControlMessage& message);
  void End(Result<std::string> outcome);
  Status Silence() const;

  const StatusOptions options_;
  const std::function<void()> on_end_;
  std::string server_name_;
  std::string probe_;
  transport::ConnectionStats stats_;             // of the connection that is over
  transport::Connection* connection_ = nullptr;  // null before Ask and after Closed
  bool connected_ = false;
  wire::ControlReader reader_;
  Instant deadline_ = Instant::Infinite();
  std::optional<Result<std::string>> outcome_;

  transport::Endpoint endpoint_;
};

}  // namespace longhaul::worker
