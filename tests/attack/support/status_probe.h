// Asks a running server for its status, as an operator's tool would: a member of the job with a connection of
// its own.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "longhaul/units.h"

namespace longhaul::attack {

// Where the question comes from: its LoopbackHost.
inline constexpr uint32_t kProbeIndex = 0x630000;

// A fresh status (a server makes one at most every 100 ms); nullopt when none comes within `limit`. Every
// question is a connection of its own, from 127.99.0.1, so that it also says whether newcomers get in.
std::optional<nlohmann::json> AskStatus(uint16_t server_port, const std::string& key_file, Duration limit);

}  // namespace longhaul::attack
