#define main LonghaulWorkerMain
#include "worker/daemon/main.cc"  // NOLINT(bugprone-suspicious-include): its options are its own
#undef main

#include <sstream>

#include "base/units_text.h"
#include "tests/fuzz/daemon_flags.h"
#include "tests/fuzz/property.h"

namespace longhaul::fuzz {

namespace {

// `parse` has the app read the input.
template <typename Parse>
void Try(Parse parse) {
  CLI::App app;
  Flags flags;
  AddOptions(app, flags);
  cli::CheckValues(app);
  Words of_file;
  app.config_formatter(std::make_shared<FileOfBoth>(&app, &of_file));
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.allow_extras();
  for (CLI::Option* option : app.get_options())
    option->envname("");  // the fuzzer's own environment is no input
  try {
    parse(app);
  } catch (const CLI::ParseError&) {
    return;
  }
  const Words trainers = TrainersWords(of_file, app.remaining());
  FUZZ_REQUIRE(trainers.size() >= app.remaining().size());
  FUZZ_REQUIRE(flags.rate_cap.empty() || ParseRate(flags.rate_cap).ok());
  FUZZ_REQUIRE(flags.rate_floor.empty() || ParseRate(flags.rate_floor).ok());
  FUZZ_REQUIRE(FromSeconds(flags.idle_timeout_s) >= std::chrono::milliseconds(100));
  FUZZ_REQUIRE(FromSeconds(flags.connect_timeout_s) >= Duration(0));
  FUZZ_REQUIRE(!flags.connect.insecure || flags.connect.key_file.empty());
}

}  // namespace

void TryWorkerFlags(std::vector<std::string> words) {
  Try([&](CLI::App& app) { app.parse(std::move(words)); });
}

void TryWorkerConfig(const std::string& text) {
  std::istringstream in(text);
  Try([&](CLI::App& app) { app.parse_from_stream(in); });
}

}  // namespace longhaul::fuzz
