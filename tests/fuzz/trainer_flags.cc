#define main LonghaulTrainerMain
#include "worker/demo/main.cc"  // NOLINT(bugprone-suspicious-include): its options are its own
#undef main

#include <sstream>

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
  app.config_formatter(std::make_shared<cli::FlatToml>(&app));
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.allow_extras();  // those of longhaul-worker, which come along in the corpus
  for (CLI::Option* option : app.get_options())
    option->envname("");  // the fuzzer's own environment is no input
  try {
    parse(app);
  } catch (const CLI::ParseError&) {
    return;
  }
  FUZZ_REQUIRE(ParseDType(flags.wire_dtype).has_value() && ParseDType(flags.result_dtype).has_value());
  const Status valid = worker::Validate(flags.train);
  FUZZ_REQUIRE(valid.ok() || !valid.message().empty());
}

}  // namespace

void TryTrainerFlags(std::vector<std::string> words) {
  Try([&](CLI::App& app) { app.parse(std::move(words)); });
}

void TryTrainerConfig(const std::string& text) {
  std::istringstream in(text);
  Try([&](CLI::App& app) { app.parse_from_stream(in); });
}

}  // namespace longhaul::fuzz
