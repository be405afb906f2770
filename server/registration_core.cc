#include "server/registration_core.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units_text.h"

namespace longhaul::server {
namespace {

transport::EndpointOptions EndpointOptionsOf(const RegistrationOptions& options) {
  transport::EndpointOptions endpoint;
  endpoint.security = options.security;
  endpoint.connection.keepalive = RegistrationCore::kAskEvery;
  return endpoint;
}

// Also of a first server whose version says more. REQUIRES: both were read.
bool Same(const control::ServerWelcome& a, const control::ServerWelcome& b) {
  return *wire::DecodeJobSpec(a.job_spec()) == *wire::DecodeJobSpec(b.job_spec()) &&
         a.workers() == b.workers() && a.min_workers() == b.min_workers() &&
         a.start_workers() == b.start_workers() && a.map_epoch() == b.map_epoch() &&
         a.servers() == b.servers() && a.server() == b.server() &&
         a.plugin_aggregation() == b.plugin_aggregation();
}

}  // namespace

RegistrationCore::RegistrationCore(RegistrationOptions options, Random random)
    : options_(std::move(options)), endpoint_(EndpointOptionsOf(options_), random) {}

void RegistrationCore::Start(Instant now, const Address& first) {
  LH_CHECK(connection_ == nullptr && !welcome_);
  first_ = first;
  deadline_ = now + options_.timeout;
  connection_ = endpoint_.Connect(now, first_);
}

void RegistrationCore::Say(const Status& status) {
  if (!options_.say || std::exchange(said_, status) == status) return;
  options_.say(status);
}

// --- Connection ---

void RegistrationCore::Drain(Instant now) {
  namespace ev = transport::event;
  while (const auto happened = endpoint_.PollEvent()) {
    if (std::holds_alternative<ev::Connected>(happened->event)) {
      control::ControlMessage message;
      *message.mutable_server_join() = options_.join;
      (void)connection_->SendControl(wire::EncodeControlMessage(message));
    }
    if (const auto* bytes = std::get_if<ev::ControlBytes>(&happened->event)) OnControlBytes(bytes->bytes);
    if (const auto* window = std::get_if<ev::WindowOpened>(&happened->event)) {  // none is expected
      connection_->CloseWindow(window->key, wire::CloseReason::kExcluded);
    }
    if (const auto* closed = std::get_if<ev::Closed>(&happened->event)) OnClosed(now, closed->why);
  }
}

void RegistrationCore::OnClosed(Instant now, const Status& why) {
  connection_ = nullptr;
  reader_ = {};
  if (over_) return;
  const Status refused = std::exchange(refused_, Status());
  const Status silent = why.ok() ? Status(StatusCode::kAborted, "it closed the connection") : why;
  const Status reason = refused.ok() ? silent : refused;
  const bool first =
      welcome_ && said_.ok();  // a first server that was started again lets no worker in before
  if (said_.ok() || !refused.ok()) Say(reason);  // of the attempts that follow only what it says itself
  // Another try would end in the same way. A key may come back with a reload, so a server that has its place
  // waits.
  const bool final = reason.code() == StatusCode::kFailedPrecondition ||
                     reason.code() == StatusCode::kSettingsMismatch ||
                     (!welcome_ && reason.code() == StatusCode::kPermissionDenied);
  if (final) return End({reason.code(), FirstServer() + " refuses this one: " + reason.message()});
  retry_ = first ? now : now + kRetry;
}

void RegistrationCore::End(const Status& why) {
  deadline_ = retry_ = Instant::Infinite();
  over_ = true;
  if (connection_ != nullptr) connection_->Close(why);
  options_.answer(why);
}

void RegistrationCore::Leave() {
  deadline_ = retry_ = Instant::Infinite();
  over_ = true;
  if (connection_ != nullptr) connection_->Close(Status());
}

void RegistrationCore::OnControlBytes(ByteSpan bytes) {
  const auto messages = reader_.Append(bytes);
  if (!messages.ok()) return connection_->Close(messages.status());
  for (const control::ControlMessage& message : *messages) OnMessage(message);
}

void RegistrationCore::OnMessage(const control::ControlMessage& message) {
  if (message.has_server_welcome()) return OnWelcome(message.server_welcome());
  if (message.has_hand_over() && welcome_) {
    if (options_.hand_over && message.hand_over().phase() == control::HandOver::kEnds) options_.hand_over();
    return;
  }
  if (message.has_refused()) {
    refused_ = Status(static_cast<StatusCode>(message.refused().code()), message.refused().message());
  } else if (message.has_leave()) {
    refused_ = Status(StatusCode::kAborted, "it ends: " + message.leave().message());
  } else {
    refused_ = Status(StatusCode::kProtocolViolation, "it sent what is not for servers");
  }
  connection_->Close(refused_);
}

void RegistrationCore::OnWelcome(const control::ServerWelcome& welcome) {
  if (welcome_ && !Same(*welcome_, welcome)) {
    return End({StatusCode::kSettingsMismatch, FirstServer() + " is back with other settings"});
  }
  Say(Status());
  if (welcome_) return;
  welcome_ = welcome;
  deadline_ = Instant::Infinite();
  // Its place from now on.
  options_.join.set_map_epoch(welcome.map_epoch());
  options_.join.set_server(welcome.server());
  options_.join.set_servers(welcome.servers());
  options_.answer(welcome);
}

// --- DatagramCore ---

void RegistrationCore::HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                                      const transport::ReceiveInfo& info) {
  endpoint_.HandleDatagram(now, from, datagram, info);
  Drain(now);
}

void RegistrationCore::HandleTimeout(Instant now) {
  endpoint_.HandleTimeout(now);
  Drain(now);
  if (now >= deadline_) {
    const std::string last =
        said_.ok() ? "no answer comes; is it running there, with the same key?" : said_.message();
    End({StatusCode::kUnavailable,
         FirstServer() + " has not let this one in within " + SecondsText(options_.timeout) + ": " + last});
  }
  if (now < retry_) return;
  retry_ = Instant::Infinite();
  const auto found = options_.resolve ? options_.resolve() : std::nullopt;
  if (found) first_ = *found;
  connection_ = endpoint_.Connect(now, first_);
}

void RegistrationCore::HandleSendRefused(Instant now, const Address& destination, size_t datagram_bytes) {
  endpoint_.HandleSendRefused(now, destination, datagram_bytes);
  Drain(now);
}

std::optional<transport::Transmit> RegistrationCore::PollTransmit(Instant now, MutableByteSpan buffer) {
  Drain(now);
  return endpoint_.PollTransmit(now, buffer);
}

Instant RegistrationCore::NextTimeout() const {
  return std::min({endpoint_.NextTimeout(), deadline_, retry_});
}

}  // namespace longhaul::server
