#include "worker/client/status_core.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/units_text.h"
#include "worker/client/server_link.h"

namespace longhaul::worker {
namespace {

using control::ControlMessage;

transport::EndpointOptions EndpointOptionsOf(const StatusOptions& options) {
  transport::EndpointOptions endpoint;
  endpoint.accepts = false;
  endpoint.security = options.security;
  return endpoint;
}

}  // namespace

StatusCore::StatusCore(const StatusOptions& options, Random random, std::function<void()> on_end)
    : options_(options), on_end_(std::move(on_end)), endpoint_(EndpointOptionsOf(options), random) {}

void StatusCore::Ask(Instant now, const Address& server) {
  LH_CHECK(connection_ == nullptr && !outcome_);
  server_name_ = server.ToString();
  deadline_ = now + options_.timeout;
  connection_ = endpoint_.Connect(now, server);
}

// --- Connection ---

void StatusCore::Drain() {
  namespace ev = transport::event;
  while (const auto happened = endpoint_.PollEvent()) {
    if (std::holds_alternative<ev::Connected>(happened->event)) OnConnected();
    if (const auto* control = std::get_if<ev::ControlBytes>(&happened->event)) OnControlBytes(control->bytes);
    if (const auto* closed = std::get_if<ev::Closed>(&happened->event)) OnClosed(closed->why);
    if (const auto* window = std::get_if<ev::WindowOpened>(&happened->event)) {  // this core wants none
      connection_->CloseWindow(window->key, wire::CloseReason::kExcluded);
    }
  }
}

void StatusCore::OnConnected() {
  connected_ = true;
  ControlMessage message;
  if (options_.kick) {
    message.mutable_kick_request()->set_rank(*options_.kick);
  } else if (options_.hand_over) {
    message.mutable_hand_over_request()->set_timeout(static_cast<uint64_t>(options_.hand_over->count()));
  } else {
    message.mutable_status_request()->set_request(1);
  }
  (void)connection_->SendControl(wire::EncodeControlMessage(message));
}

void StatusCore::OnClosed(const Status& why) {
  stats_ = connection_ == nullptr ? stats_ : connection_->stats();
  connection_ = nullptr;
  const bool silence = why.code() == StatusCode::kPeerDead || why.code() == StatusCode::kUnavailable;
  if (!connected_ && silence) return End(Silence());
  End(why.ok() ? Status(StatusCode::kAborted, "server " + server_name_ + " closed the connection") : why);
}

void StatusCore::OnControlBytes(ByteSpan bytes) {
  if (outcome_) return;
  const auto messages = reader_.Append(bytes);
  if (!messages.ok()) return End(messages.status());
  for (const ControlMessage& message : *messages) {
    if (!outcome_) OnMessage(message);
  }
}

void StatusCore::OnMessage(const ControlMessage& message) {
  const bool orders = options_.kick || options_.hand_over;
  if (message.has_handed_over() && options_.hand_over) return End(message.handed_over().what());
  if (message.has_status_reply() && !orders) return End(message.status_reply().json());
  if (message.has_kicked() && options_.kick) return End(message.kicked().who());
  const std::string server = "server " + server_name_;
  if (message.has_refused()) {
    return End(Status(static_cast<StatusCode>(message.refused().code()),
                      server + (orders ? " refuses: " : " refuses to say: ") + message.refused().message()));
  }
  if (message.has_leave()) {
    return End(Status(StatusCode::kAborted, server + " ends: " + message.leave().message()));
  }
  End(Status(StatusCode::kProtocolViolation, server + " sent an unexpected message"));
}

// --- Ends ---

std::string StatusCore::Hint() const {
  if (connected_) return "";
  return WhyNoAnswer(connection_ == nullptr ? stats_ : connection_->stats(), probe_);
}

Status StatusCore::Silence() const {
  return {StatusCode::kUnavailable, "no answer from server " + server_name_ + " within " +
                                        SecondsText(options_.timeout) + "; " + Hint()};
}

void StatusCore::End(Result<std::string> outcome) {
  if (outcome_) return;
  outcome_ = std::move(outcome);
  deadline_ = Instant::Infinite();
  if (connection_ != nullptr) connection_->Close(outcome_->status());
  if (on_end_) on_end_();
}

// --- DatagramCore ---

void StatusCore::HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                                const transport::ReceiveInfo& info) {
  endpoint_.HandleDatagram(now, from, datagram, info);
  Drain();
}

void StatusCore::HandleTimeout(Instant now) {
  endpoint_.HandleTimeout(now);
  Drain();
  if (now < deadline_) return;
  if (!connected_) return End(Silence());
  End(Status(StatusCode::kUnavailable,
             "server " + server_name_ + " did not say within " + SecondsText(options_.timeout)));
}

void StatusCore::HandleSendRefused(Instant now, const Address& destination, size_t datagram_bytes) {
  endpoint_.HandleSendRefused(now, destination, datagram_bytes);
  Drain();
}

std::optional<transport::Transmit> StatusCore::PollTransmit(Instant now, MutableByteSpan buffer) {
  Drain();  // an end by its own time-out
  return endpoint_.PollTransmit(now, buffer);
}

Instant StatusCore::NextTimeout() const { return std::min(endpoint_.NextTimeout(), deadline_); }

}  // namespace longhaul::worker
