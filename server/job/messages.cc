#include "server/job/messages.h"

#include "proto/utf8.h"

namespace longhaul::server {

using control::ControlMessage;

ControlMessage RefusedMessage(const Status& why) {
  ControlMessage message;
  message.mutable_refused()->set_code(static_cast<uint32_t>(why.code()));
  message.mutable_refused()->set_message(wire::Printable(why.message(), wire::kMaxTextBytes));
  return message;
}

ControlMessage LeaveMessage(const Status& why) {
  ControlMessage message;
  message.mutable_leave()->set_code(static_cast<uint32_t>(why.code()));
  message.mutable_leave()->set_message(wire::Printable(why.message(), wire::kMaxTextBytes));
  return message;
}

ControlMessage WelcomeMessage(const JobSpec& spec) {
  ControlMessage message;
  wire::EncodeJobSpec(spec, message.mutable_welcome()->mutable_job_spec());
  return message;
}

ControlMessage StartMessage(uint16_t symbol_bytes, uint32_t members) {
  ControlMessage message;
  message.mutable_start()->set_symbol_bytes(symbol_bytes);
  message.mutable_start()->set_members(members);
  return message;
}

}  // namespace longhaul::server
