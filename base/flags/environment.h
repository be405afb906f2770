// Options from the environment: LONGHAUL_<OPTION>, and what generic launchers set.
#pragma once

#include <array>
#include <cctype>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace longhaul::cli {

// The value of a variable, empty when unset.
inline std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// "--idle-timeout" -> "LONGHAUL_IDLE_TIMEOUT".
inline std::string EnvName(const std::string& flag) {
  std::string name = "LONGHAUL_";
  for (const char c : flag.substr(2)) name += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

// HOST:PORT; an IPv6 address in brackets.
inline std::string WithPort(const std::string& host, const std::string& port) {
  const bool bare_v6 = host.find(':') != std::string::npos && host.front() != '[';
  return (bare_v6 ? "[" + host + "]" : host) + ":" + port;
}

// What launchers say, as the variables that are ours and their values: of torchrun (RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT), Open MPI (OMPI_COMM_WORLD_*) and ps-lite (DMLC_*), the first that says it.
inline std::vector<std::pair<const char*, std::string>> LauncherEnvironment() {
  const auto first = [](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (std::string value = Env(name); !value.empty()) return value;
    }
    return std::string();
  };
  const bool worker = Env("DMLC_ROLE").empty() || Env("DMLC_ROLE") == "worker";
  std::vector<std::pair<const char*, std::string>> found = {
      {"LONGHAUL_RANK", first({"RANK", "OMPI_COMM_WORLD_RANK", worker ? "DMLC_WORKER_ID" : "RANK"})},
      {"LONGHAUL_WORLD_SIZE", first({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "DMLC_NUM_WORKER"})}};
  constexpr std::array<std::array<const char*, 2>, 2> kAddresses = {
      {{"MASTER_ADDR", "MASTER_PORT"}, {"DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"}}};
  for (const auto& [host_name, port_name] : kAddresses) {
    const std::string host = Env(host_name);
    if (host.empty()) continue;
    const std::string port = Env(port_name);
    found.emplace_back("LONGHAUL_JOIN", WithPort(host, port.empty() ? "7700" : port));
    break;
  }
  std::erase_if(found, [](const auto& each) { return each.second.empty(); });
  return found;
}

}  // namespace longhaul::cli
