#include "pslite/settings.h"

#include <array>
#include <charconv>
#include <utility>

#include "base/flags/environment.h"
#include "worker/c/settings.h"

namespace longhaul::pslite {
namespace {

Status Wrong(const std::string& text) { return {StatusCode::kInvalidArgument, text}; }

Result<uint32_t> ReadNumber(const char* name, uint32_t most) {
  const std::string text = cli::Env(name);
  uint32_t number = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  if (read.ec == std::errc() && read.ptr == end && number >= 1 && number <= most) return number;
  return Wrong(std::string(name) + (text.empty() ? " is not set" : " is '" + text + "'") +
               ": wanted is 1 to " + std::to_string(most));
}

}  // namespace

Result<Place> ReadPlace() {
  Place place;
  const std::string role = cli::Env("DMLC_ROLE");
  if (role == "scheduler") {
    place.role = Role::kScheduler;
  } else if (role == "server") {
    place.role = Role::kServer;
  } else if (role != "worker") {
    return Wrong("DMLC_ROLE is " + (role.empty() ? "not set" : "'" + role + "'") +
                 ": wanted is scheduler, server or worker");
  }
  const Result<uint32_t> workers = ReadNumber("DMLC_NUM_WORKER", kMaxNodes);
  if (!workers.ok()) return workers.status();
  const Result<uint32_t> servers = ReadNumber("DMLC_NUM_SERVER", kMaxNodes);
  if (!servers.ok()) return servers.status();
  const Result<uint32_t> port = ReadNumber("DMLC_PS_ROOT_PORT", 65535);
  if (!port.ok()) return port.status();
  const std::string host = cli::Env("DMLC_PS_ROOT_URI");
  if (host.empty()) return Wrong("DMLC_PS_ROOT_URI is not set: wanted is the scheduler's host");
  place.workers = *workers;
  place.servers = *servers;
  place.scheduler = cli::WithPort(host, std::to_string(*port));
  if (const std::string node = cli::Env("DMLC_NODE_HOST"); !node.empty())
    place.node_host = cli::WithPort(node, "0");
  return place;
}

Result<ConnectOptions> ReadConnection(const Place& place) {
  const std::string join = "join=" + place.scheduler;
  // The rank of a launcher is not this node's.
  const std::array<const char*, 3> settings = {join.c_str(), "rank=0", "world-size=1"};
  Result<ConnectOptions> options = c::ParseConnect(settings);
  if (!options.ok() || options->insecure || !options->key_file.empty()) return options;
  const std::string insecure = cli::Env("LONGHAUL_INSECURE");
  if (insecure.empty()) {
    return Wrong(
        "no key: LONGHAUL_KEY has to name the file that `longhaul keygen --out FILE` makes for all of the "
        "job; "
        "or LONGHAUL_INSECURE=" +
        place.scheduler + " lets every host on the way read and forge what is sent");
  }
  return Wrong("LONGHAUL_INSECURE is for " + insecure + ", and the scheduler is " + place.scheduler);
}

}  // namespace longhaul::pslite
