// What the emulator itself can carry: UDP datagrams of a full packet from site B to site A over a link
// without rate, as fast as a sender makes them. Above this the emulator is measured, not a transport.
#pragma once

#include "bench/wan/cell.h"

namespace longhaul::bench {

// details: packets_per_second that came out, offered_per_second, mbps.
void RunForwarderLoad(wan::TunWan* wan, double offered_mbps, Duration length, Outcome* outcome);

}  // namespace longhaul::bench
