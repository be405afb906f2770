#include "cli/sim_ring.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "base/files.h"
#include "base/units_text.h"
#include "cli/ring_report.h"

namespace longhaul::cli {
namespace {

using offload::RingPolicy;
using offload::ringsim::RingModel;

int Fail(const std::string& message, int code) {
  std::fprintf(stderr, "longhaul sim ring: %s\n", message.c_str());
  return code;
}

Result<RingModel> ModelOf(const SimRingOptions& options) {
  const auto reduce_time = ParseTime(options.reduce_time);
  if (!reduce_time.ok()) return reduce_time.status();
  const auto link_delay = ParseTime(options.link_delay);
  if (!link_delay.ok()) return link_delay.status();
  const auto rate = ParseRate(options.rate);
  if (!rate.ok()) return rate.status();
  if (*reduce_time < std::chrono::nanoseconds(300) || *reduce_time > std::chrono::seconds(1)) {
    return Status(StatusCode::kInvalidArgument, "--reduce-time: 300ns to 1s");
  }
  if (*link_delay > std::chrono::seconds(1))
    return Status(StatusCode::kInvalidArgument, "--link-delay: at most 1s");
  if (rate->IsZero()) return Status(StatusCode::kInvalidArgument, "--rate: a chunk takes time");
  RingModel model;
  model.reduce_time = *reduce_time;
  model.link_delay = *link_delay;
  model.rate = *rate;
  model.chunk = ByteCount(options.bytes);
  model.alpha = options.alpha;
  return model;
}

struct Named {
  const char* name;
  RingPolicy policy;
};
constexpr Named kPolicies[] = {{"cascade", RingPolicy::kCascade},
                               {"self_skip", RingPolicy::kSelfSkip},
                               {"leaf_demote", RingPolicy::kLeafDemote}};
// Enough to see how often the paper's rule wedges.
constexpr uint64_t kMostOfSlowReduces = 1000;

std::vector<RingTally> RandomRuns(uint64_t seed, uint64_t runs) {
  std::vector<RingTally> tallies;
  for (const uint32_t nodes : {4, 8, 16}) {
    for (const Named& named : {Named{"seed_skip", RingPolicy::kSeedSkip}, kPolicies[0]}) {
      RingTally of{named.name, std::to_string(nodes) + " nodes, 5 % of the reduces slow", {}};
      const double alpha = named.policy == RingPolicy::kSeedSkip ? 1.8 : 0;
      for (uint64_t i = 0; i < std::min(runs, kMostOfSlowReduces); ++i) {
        offload::ringsim::RunSlowReduces(seed + i, nodes, 0.05, named.policy, alpha, &of.tally);
      }
      tallies.push_back(std::move(of));
    }
  }
  for (const Named& named : kPolicies) {
    RingTally of{named.name, "3 to 16 nodes, anything", {}};
    for (uint64_t i = 0; i < runs; ++i) offload::ringsim::RunAnything(seed + i, named.policy, &of.tally);
    tallies.push_back(std::move(of));
  }
  return tallies;
}

Status Write(const std::string& file, const std::string& text) {
  if (file.empty()) return Status::Ok();
  return file == "-" ? WriteAll(STDOUT_FILENO, text) : WriteFileAtomically(file, text);
}

}  // namespace

int RunSimRing(const SimRingOptions& options) {
  const auto model = ModelOf(options);
  if (!model.ok()) return Fail(model.status().message(), 2);
  for (const std::string& file : {options.json_file, options.plot_file}) {
    if (file == "-") continue;
    if (Status prepared = PrepareResultFile(file); !prepared.ok()) return Fail(prepared.message(), 2);
  }
  RingReport report;
  report.model = *model;
  report.paper = offload::ringsim::ReproducePaper(*model);
  report.hides = offload::ringsim::WhatItHides(*model);
  report.policies = offload::ringsim::OtherPolicies(*model);
  report.seed = options.seed != 0 ? options.seed : std::random_device()();
  report.random = RandomRuns(report.seed, options.runs);
  if (options.json_file != "-" && options.plot_file != "-") std::fputs(RingText(report).c_str(), stdout);
  for (const auto& [file, text] : {std::pair(options.json_file, RingJson(report).dump(2) + "\n"),
                                   std::pair(options.plot_file, RingPlot(report))}) {
    if (Status written = Write(file, text); !written.ok()) return Fail(written.message(), 1);
  }
  if (report.failures() == 0) return 0;
  return Fail(std::to_string(report.failures()) + " runs were stuck or wrong", 1);
}

}  // namespace longhaul::cli
