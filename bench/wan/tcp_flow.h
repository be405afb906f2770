// Bulk TCP from site B to site A: our own sender and sink, a thread each, with the congestion control chosen
// per socket.
#pragma once

#include "bench/wan/cell.h"

namespace longhaul::bench {

// Fills the outcome but for the link's part.
void RunTcp(wan::TunWan* wan, const Runner& runner, const Timing& timing, Outcome* outcome);

}  // namespace longhaul::bench
