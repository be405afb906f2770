#define main LonghaulWorkerMain
#include "worker/main.cc"  // NOLINT(bugprone-suspicious-include): its options are its own
#undef main

#include "tests/fuzz/daemon_flags.h"
#include "tests/fuzz/property.h"

namespace longhaul::fuzz {

void TryWorkerFlags(std::vector<std::string> words) {
  CLI::App app;
  Flags flags;
  AddOptions(app, flags);
  cli::CheckNumbers(app);
  for (CLI::Option* option : app.get_options())
    option->envname("");  // the fuzzer's own environment is no input
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError&) {
    return;
  }
  FUZZ_REQUIRE(ParseDType(flags.wire_dtype).has_value());
  FUZZ_REQUIRE(flags.rate_cap.empty() || wan::ParseRate(flags.rate_cap).ok());
  FUZZ_REQUIRE(flags.rate_floor.empty() || wan::ParseRate(flags.rate_floor).ok());
  FUZZ_REQUIRE(FromSeconds(flags.idle_timeout_s) >= std::chrono::milliseconds(100));
  FUZZ_REQUIRE(FromSeconds(flags.connect_timeout_s) >= Duration(0));
  const Status valid = worker::Validate(flags.train);
  FUZZ_REQUIRE(valid.ok() || !valid.message().empty());
  FUZZ_REQUIRE(!flags.connect.insecure || flags.connect.key_file.empty());
}

}  // namespace longhaul::fuzz
