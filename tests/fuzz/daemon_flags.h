// The daemons' own command lines without the daemons: flags are parsed and checked as in their main(), then
// nothing is started. Each lives in a file of its own, since it takes in the program's main file.
#pragma once

#include <string>
#include <vector>

namespace longhaul::fuzz {

// Words last first, or the text of a --config file. A broken property stops the program.
void TryServerFlags(std::vector<std::string> words);
void TryServerConfig(const std::string& text);
void TryWorkerFlags(std::vector<std::string> words);
void TryWorkerConfig(const std::string& text);
void TryTrainerFlags(std::vector<std::string> words);
void TryTrainerConfig(const std::string& text);

}  // namespace longhaul::fuzz
