// What users type, from bytes: link words, fault specs, rates, times, sizes, optimizers, addresses, and the
// daemons' own flags with everything that is checked behind them.
//
// Holds: a value is read or refused in words; what was read is in range and is written so that it reads back
// the same; no numeric option takes what is not a number.
#include <CLI/CLI.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/allow_list.h"
#include "base/flags/number_checks.h"
#include "base/units_text.h"
#include "codec/policy/optimizer.h"
#include "tests/fuzz/daemon_flags.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/property.h"
#include "transport/udp/fault_injector.h"
#include "transport/udp/resolve.h"
#include "wan/link_options.h"

using namespace longhaul;  // NOLINT

namespace {

void CheckRefusal(const Status& status) {
  FUZZ_REQUIRE(status.code() == StatusCode::kInvalidArgument && !status.message().empty());
}

void TryLink(std::string_view text) {
  const auto link = wan::ParseLinkOptions(text);
  if (!link.ok()) return CheckRefusal(link.status());
  FUZZ_REQUIRE(link->Validate().ok());
  const auto again = wan::ParseLinkOptions(link->ToString());
  FUZZ_REQUIRE(again.ok() && *again == *link);
}

void TryFaults(std::string_view text) {
  const auto faults = udp::ParseFaults(text);
  if (!faults.ok()) return CheckRefusal(faults.status());
  FUZZ_REQUIRE(faults->link.Validate().ok());
}

template <typename T>
void TryValue(const Result<T>& value, const T& zero) {
  if (!value.ok()) return CheckRefusal(value.status());
  FUZZ_REQUIRE(*value >= zero);
}

void TryOptimizer(std::string_view text) {
  const auto spec = codec::ParseOptimizer(text);
  // A name that is not built in may be a plug-in's.
  if (spec.status().code() == StatusCode::kNotFound) return;
  if (!spec.ok()) return CheckRefusal(spec.status());
  FUZZ_REQUIRE(std::isfinite(spec->Get("lr")) && spec->Get("lr") >= 0);
  FUZZ_REQUIRE(spec->Get("momentum") >= 0 && spec->Get("momentum") < 1);
  FUZZ_REQUIRE(std::isfinite(spec->Get("weight_decay")) && spec->Get("weight_decay") >= 0);
  const auto again = codec::ParseOptimizer(spec->ToString());
  FUZZ_REQUIRE(again.ok() && *again == *spec);
}

void TryHostPort(std::string_view text) {
  const auto parsed = udp::ParseHostPort(text);
  if (!parsed.ok()) return CheckRefusal(parsed.status());
  FUZZ_REQUIRE(!parsed->host.empty());
  const std::string host =
      parsed->host.find(':') == std::string::npos ? parsed->host : "[" + parsed->host + "]";
  const auto again = udp::ParseHostPort(host + ":" + std::to_string(parsed->port));
  FUZZ_REQUIRE(again.ok() && *again == *parsed);
}

// What an operator may rely on, whatever the list: no rank of two, no name of two ranks by accident.
void TryAllowList(const std::vector<std::string>& texts) {
  const auto list = AllowList::Parse(texts);
  if (!list.ok()) return CheckRefusal(list.status());
  FUZZ_REQUIRE(list->entries().size() == texts.size());
  std::vector<std::string> printed;
  for (const AllowEntry& entry : list->entries()) {
    printed.push_back(entry.ToString());
    FUZZ_REQUIRE(IsKeyName(entry.name) && list->Allows(entry.role, entry.name));
    FUZZ_REQUIRE(entry.role == "worker" || (!entry.ranks && entry.successor.empty()));
    FUZZ_REQUIRE(entry.successor.empty() || list->FindWorker(entry.successor) == nullptr);
    FUZZ_REQUIRE(entry.workers >= 1 && entry.workers <= AllowEntry::kMaxWorkers);
    if (!entry.ranks) continue;
    FUZZ_REQUIRE(entry.ranks->first <= entry.ranks->last && entry.ranks->last < RankRange::kRanks);
    for (uint32_t rank = entry.ranks->first; rank <= entry.ranks->last; ++rank)
      FUZZ_REQUIRE(list->FindRank(rank) == &entry);
    FUZZ_REQUIRE(list->CheckWorldSize(RankRange::kRanks).ok());
    FUZZ_REQUIRE(entry.ranks->last == 0 || !list->CheckWorldSize(entry.ranks->last).ok());
  }
  const auto again = AllowList::Parse(printed);
  FUZZ_REQUIRE(again.ok() && *again == *list);
}

// One option of every kind of number, as the programs declare them.
void TryNumbers(std::vector<std::string> words) {
  CLI::App app;
  double real = 0, share = 0;
  uint64_t natural = 0;
  uint32_t small = 0;
  int64_t whole = 0;
  std::vector<std::string> names;
  app.add_option("--real", real);
  app.add_option("--share", share)->check(CLI::Range(0.0, 1.0));
  app.add_option("--natural", natural);
  app.add_option("--small", small)->check(CLI::Range(1, 1024));
  app.add_option("--whole", whole);
  app.add_option("--names", names)->delimiter(',');
  cli::CheckValues(app);
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError&) {
    return;
  }
  FUZZ_REQUIRE(std::isfinite(real));
  FUZZ_REQUIRE(share >= 0 && share <= 1);
  FUZZ_REQUIRE(small <= 1024);
}

// Lines, last one first, as the command line library wants them. Help and configuration files are not what is
// tried.
std::vector<std::string> Words(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty() && words.size() < 64) {
    const size_t end = std::min(text.find('\n'), text.size());
    words.emplace(words.begin(), text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput in(data, size);
  const uint8_t kind = in.U8();
  const ByteSpan rest = in.Bytes(size);
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), rest.size());
  switch (kind % 14) {
    case 0:
      TryLink(text);
      break;
    case 1:
      TryFaults(text);
      break;
    case 2:
      TryValue(ParseRate(text), Bandwidth::Zero());
      break;
    case 3:
      TryValue(ParseTime(text), Duration(0));
      break;
    case 4:
      TryValue(ParseBytes(text), ByteCount(0));
      break;
    case 5:
      TryValue(ParsePercent(text), 0.0);
      break;
    case 6:
      TryOptimizer(text);
      break;
    case 7:
      TryHostPort(text);
      break;
    case 8:
      TryNumbers(Words(text));
      break;
    case 9:
      fuzz::TryServerFlags(Words(text));
      break;
    case 10:
      fuzz::TryWorkerFlags(Words(text));
      fuzz::TryTrainerFlags(Words(text));
      break;
    case 11:
      fuzz::TryServerConfig(std::string(text));
      break;
    case 12:
      fuzz::TryWorkerConfig(std::string(text));
      fuzz::TryTrainerConfig(std::string(text));
      break;
    default:
      TryAllowList(Words(text));
  }
  return 0;
}
