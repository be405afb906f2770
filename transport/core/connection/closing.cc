#include "transport/core/connection/closing.h"

#include <string_view>

#include "base/check.h"
#include "proto/utf8.h"

namespace longhaul::transport {

void Closing::Begin(Instant now, Status why) {
  why_ = std::move(why);
  copies_left_ = kCopies;
  next_ = now;
}

wire::CloseFrame Closing::Frame() const {
  const std::string_view reason = why().message();
  return {why().code(), reason.substr(0, wire::kMaxCloseReasonBytes)};
}

std::string Closing::ReasonOf(const wire::CloseFrame& close) {
  return wire::Printable(close.reason, wire::kMaxCloseReasonBytes);
}

void Closing::OnCopySent(Instant now, Duration pto) {
  LH_CHECK(copies_left_ > 0);
  --copies_left_;
  next_ = now + std::clamp(pto, kMinGap, kMaxGap);
}

}  // namespace longhaul::transport
