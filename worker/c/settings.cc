#include "worker/c/settings.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/flags/connect_flags.h"
#include "base/flags/environment.h"
#include "base/flags/number_checks.h"

namespace longhaul::c {
namespace {

constexpr std::string_view kOfPrograms = "--allow-core-dump";  // not a library's to decide

Status Bad(const std::string& why) { return {StatusCode::kInvalidArgument, why}; }

// "rank=3" -> "--rank=3", of an option that `app` has.
Status TakeWords(const CLI::App& app, std::span<const char* const> settings,
                 std::vector<std::string>* words) {
  for (const char* setting : settings) {
    if (setting == nullptr) return Bad("a setting is null");
    const std::string_view text = setting;
    const size_t equals = text.find('=');
    if (equals == 0 || equals == std::string_view::npos)
      return Bad("setting '" + std::string(text) + "': wanted is NAME=VALUE");
    const std::string name = "--" + std::string(text.substr(0, equals));
    if (app.get_option_no_throw(name) == nullptr || name == kOfPrograms)
      return Bad("there is no setting '" + name.substr(2) + "'");
    const std::string_view value = text.substr(equals + 1);
    if (name == "--insecure" && (value == "false" || value == "0")) continue;  // as if it was not given
    words->push_back("--" + std::string(text));
  }
  return {};
}

// The last word counts, as on a command line; CLI11 wants them in reverse.
Status Parse(CLI::App& app, std::vector<std::string> words) {
  std::ranges::reverse(words);
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    return Bad(error.what());
  }
  return {};
}

bool Has(const std::vector<std::string>& words, std::string_view flag) {
  return std::ranges::any_of(words, [flag](const std::string& word) {
    return word.starts_with(flag) && word.size() > flag.size() && word[flag.size()] == '=';
  });
}

}  // namespace

Result<ConnectOptions> ParseConnect(std::span<const char* const> settings) {
  CLI::App app;
  app.set_help_flag();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  cli::ConnectFlags flags;
  cli::AddWorkerFlags(app, &flags);
  cli::AddMemberFlags(app, &flags);
  cli::AddConnectionFlags(app, &flags);
  cli::CheckValues(app);
  std::vector<std::string> words;
  if (Status taken = TakeWords(app, settings, &words); !taken.ok()) return taken;
  const bool in_site = Has(words, "--offload") || !cli::Env("LONGHAUL_OFFLOAD").empty();
  for (const CLI::Option* option : app.get_options()) {
    const std::string flag = option->get_name();
    if (flag == "--insecure" || flag == kOfPrograms || Has(words, flag)) continue;
    // A place that is given stands alone.
    const bool of_server = flag != "--site-rank" && flag != "--weight" && flag != "--state-dir" &&
                           flag != "--offload" && !flag.ends_with("-timeout");
    if ((of_server && Has(words, "--offload")) || (flag == "--join" && in_site)) continue;
    if ((flag == "--offload" || flag == "--site-rank") && Has(words, "--join")) continue;
    if (flag == "--key" && Has(words, "--insecure")) continue;
    if (std::string value = cli::Env(cli::EnvName(flag).c_str()); !value.empty())
      words.push_back(flag + "=" + value);
  }
  if (!Has(words, "--offload")) {
    for (const auto& [name, value] : cli::LauncherEnvironment()) {
      for (const char* flag : {"--rank", "--world-size", "--join"}) {
        if (cli::EnvName(flag) == name && !Has(words, flag)) words.push_back(flag + ("=" + value));
      }
    }
  }
  if (Status parsed = Parse(app, std::move(words)); !parsed.ok()) return parsed;
  if (Status address = cli::TakeAddress(app, &flags); !address.ok()) return address;
  if (Status taken = cli::TakeConnectFlags(&flags); !taken.ok()) return taken;
  ConnectOptions& options = flags.connect;
  if (options.key_file.empty() && !flags.join.empty() && cli::Env("LONGHAUL_INSECURE") == flags.join)
    options.insecure = true;
  return options;
}

Result<TensorOptions> ParseTensor(std::span<const char* const> settings) {
  CLI::App app;
  app.set_help_flag();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  TensorOptions options;
  std::string wire_dtype = "float32", result_dtype = "float32";
  std::vector<std::string> high;
  app.add_option("--wire-dtype", wire_dtype)
      ->check(CLI::IsMember({"float32", "bfloat16", "float16", "int8", "int4", "int2"}));
  app.add_option("--result-dtype", result_dtype)->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  app.add_option("--priority", options.priority);
  app.add_option("--optimizer", options.optimizer);
  app.add_option("--high-share", options.high_share)->check(CLI::Range(0.0, 1.0));
  app.add_option("--high-energy", options.high_energy)->check(CLI::Range(0.0, 1.0));
  app.add_option("--topk-share", options.topk_share)->check(CLI::Range(0.0, 1.0));
  app.add_option("--staleness", options.staleness);
  app.add_option("--quorum", options.quorum);
  app.add_option("--high", high)->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  cli::CheckValues(app);
  std::vector<std::string> words;
  if (Status taken = TakeWords(app, settings, &words); !taken.ok()) return taken;
  if (Status parsed = Parse(app, std::move(words)); !parsed.ok()) return parsed;
  options.wire_dtype = *ParseDType(wire_dtype);
  options.result_dtype = *ParseDType(result_dtype);
  for (const std::string& text : high) {
    TensorOptions::Range range;
    const char* const end = text.data() + text.size();
    const auto first = std::from_chars(text.data(), end, range.first);
    const bool colon = first.ec == std::errc() && first.ptr != end && *first.ptr == ':';
    const auto count = colon ? std::from_chars(first.ptr + 1, end, range.count) : first;
    if (!colon || count.ec != std::errc() || count.ptr != end)
      return Bad("high: '" + text + "': wanted is FIRST:COUNT, for example 0:4096");
    options.high_ranges.push_back(range);
  }
  return options;
}

}  // namespace longhaul::c

namespace longhaul {

Result<ConnectOptions> OptionsFromEnvironment() { return c::ParseConnect({}); }

}  // namespace longhaul
