// Asks a running server for its status, as an operator's tool would: a member of the job with a connection of
// its own.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "longhaul/status.h"
#include "longhaul/units.h"

namespace longhaul::attack {

// Where the question comes from: its LoopbackHost.
inline constexpr uint32_t kProbeIndex = 0x630000;

// A fresh status (a server makes one at most every 100 ms); nullopt when none comes within `limit`. Every
// question is a connection of its own, from 127.99.0.1, so that it also says whether newcomers get in.
std::optional<nlohmann::json> AskStatus(uint16_t server_port, const std::string& key_file, Duration limit);

// What no program of ours does: with a tool's certificate it asks to be a worker of a job of two. Ok: it is
// one. What the server refuses it for; kUnavailable when it says nothing within `limit`.
Status JoinAsTool(uint16_t server_port, const std::string& key_file, uint32_t rank, uint64_t incarnation,
                  Duration limit);

}  // namespace longhaul::attack
