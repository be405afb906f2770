#include "server/program/flags.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <sstream>

#include "base/flags/config_file.h"
#include "base/flags/number_checks.h"
#include "tests/fuzz/daemon_flags.h"
#include "tests/fuzz/property.h"

namespace longhaul::fuzz {

namespace {

// `parse` has the app read the input.
template <typename Parse>
void Try(Parse parse) {
  CLI::App app;
  server::ServerFlags flags;
  server::AddFlags(app, flags);
  cli::CheckValues(app);
  app.config_formatter(std::make_shared<cli::FlatToml>(&app));
  app.allow_config_extras(CLI::config_extras_mode::error);
  try {
    parse(app);
  } catch (const CLI::ParseError&) {
    return;
  }
  (void)server::TakeFlags(app, &flags);  // which may say that two of them do not go together
  const ServerOptions& o = flags.server;
  FUZZ_REQUIRE(o.workers >= 1 && o.workers <= 1024 && o.min_workers <= 1024);
  JobSpec job_spec = o.job_spec;  // every field is in its range; that two fit together the server checks
  job_spec.priority = Priority::kEnergy;
  FUZZ_REQUIRE(job_spec.Validate().ok());
  FUZZ_REQUIRE(o.datagram_bytes >= 1200 && o.datagram_bytes <= 65507);
  FUZZ_REQUIRE(flags.max_model_bytes >= 4);
  FUZZ_REQUIRE(!o.insecure || o.key_file.empty());
  FUZZ_REQUIRE(o.insecure || !o.insecure_bind);
}

}  // namespace

void TryServerFlags(std::vector<std::string> words) {
  Try([&](CLI::App& app) { app.parse(std::move(words)); });
}

void TryServerConfig(const std::string& text) {
  std::istringstream in(text);
  Try([&](CLI::App& app) { app.parse_from_stream(in); });
}

}  // namespace longhaul::fuzz
