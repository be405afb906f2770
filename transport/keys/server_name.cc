#include "transport/keys/server_name.h"

#include <unistd.h>

#include <array>
#include <fstream>

namespace longhaul::keys {
namespace {

// Empty where there is none, as in most containers: their host names differ.
std::string MachineId() {
  std::ifstream in("/etc/machine-id");
  std::string id;
  in >> id;
  return id;
}

std::string HostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string();
}

}  // namespace

std::string ServerName(const Address& listen) {
  return MachineId() + '/' + HostName() + '/' + listen.ToString();
}

}  // namespace longhaul::keys
