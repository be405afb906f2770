// The control messages by which a server lets a peer in or sends it away.
#pragma once

#include <cstdint>

#include "longhaul/job.h"
#include "longhaul/status.h"
#include "proto/control_codec.h"

namespace longhaul::server {

control::ControlMessage RefusedMessage(const Status& why);
control::ControlMessage LeaveMessage(const Status& why);
control::ControlMessage WelcomeMessage(const JobSpec& spec);
control::ControlMessage StartMessage(uint16_t symbol_bytes, uint32_t members);

}  // namespace longhaul::server
