// --metrics, the same at every daemon.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "health/health_port.h"

namespace longhaul::health {

inline void AddMetricsFlag(CLI::App& app, std::string* where) {
  app.add_option(
         "--metrics", *where,
         "TCP port for Prometheus and for probes: /metrics, /healthz and /readyz, without encryption to "
         "all who can reach it, e.g. 127.0.0.1:9464; port 0 takes any free one; none = no port")
      ->type_name("HOST:PORT");
}

// Null without an address. Errors: those of HealthPort::Open.
inline Result<std::unique_ptr<HealthPort>> OpenPort(const std::string& where, const std::string& program) {
  if (where.empty()) return std::unique_ptr<HealthPort>();
  auto port = HealthPort::Open(where, program);
  if (!port.ok()) return Status(port.status().code(), "--metrics: " + port.status().message());
  return port;
}

// Where it is, for standard output.
inline std::string PortLine(const HealthPort& port, bool json) {
  const std::string address = port.address().ToString();
  return json ? R"({"event":"metrics","address":")" + address + "\"}" : "metrics on http://" + address;
}

}  // namespace longhaul::health
