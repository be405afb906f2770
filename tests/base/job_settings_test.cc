#include "base/job_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace longhaul {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const JobSetting& Setting(std::string_view name) {
  for (const JobSetting& setting : JobSettings()) {
    if (setting.name == name) return setting;
  }
  ADD_FAILURE() << name;
  return JobSettings().front();
}

std::string ErrorOf(std::string_view name, std::string_view text) {
  JobSpec spec;
  const Status status = Setting(name).Set(text, &spec);
  if (!status.ok()) {
    EXPECT_EQ(spec, JobSpec()) << "unchanged";
  }
  return status.message();
}

TEST(JobSettings, TheDefaultsAreValidAndReadBackFromTheirText) {
  EXPECT_TRUE(JobSpec().Validate().ok());
  for (const JobSetting& setting : JobSettings()) {
    JobSpec spec;
    const std::string text = setting.Text(spec);
    EXPECT_TRUE(setting.Set(text, &spec).ok()) << setting.name << " " << text;
    EXPECT_EQ(spec, JobSpec()) << setting.name << " " << text;
  }
}

TEST(JobSettings, AreReadInTheirUnits) {
  JobSpec spec;
  EXPECT_TRUE(Setting("round_bound").Set("0.25", &spec).ok());
  EXPECT_EQ(spec.round_bound, std::chrono::milliseconds(250));
  EXPECT_TRUE(Setting("policy").Set("shift", &spec).ok());
  EXPECT_EQ(spec.policy, LossPolicy::kShift);
  EXPECT_TRUE(Setting("seed").Set("18446744073709551615", &spec).ok());
  EXPECT_EQ(spec.seed, UINT64_MAX);
}

TEST(JobSettings, WhatIsOutOfRangeIsRefusedInWords) {
  EXPECT_THAT(ErrorOf("close_ratio", "1.5"), AllOf(HasSubstr("1.5"), HasSubstr("in 0..1")));
  EXPECT_THAT(ErrorOf("close_ratio", "nan"), HasSubstr("finite"));
  EXPECT_THAT(ErrorOf("close_ratio", "much"), HasSubstr("not a number"));
  EXPECT_THAT(ErrorOf("close_ratio", "0.5x"), HasSubstr("not a number"));
  EXPECT_THAT(ErrorOf("shift_alpha", "0"), HasSubstr("above 0 and at most 1"));
  EXPECT_THAT(ErrorOf("norm_guard", "0.5"), HasSubstr("0 (off) or in 1..1000000"));
  EXPECT_THAT(ErrorOf("fec_k", "7"), HasSubstr("0, 8, 12, 16, 20 or 24"));
  EXPECT_THAT(ErrorOf("fec_k", "14"), HasSubstr("0, 8, 12, 16, 20 or 24"));
  EXPECT_THAT(ErrorOf("fec_depth", "256"), HasSubstr("above 255"));
  EXPECT_THAT(ErrorOf("seed", "-1"), HasSubstr("negative"));
  EXPECT_THAT(ErrorOf("seed", "18446744073709551616"), HasSubstr("18446744073709551615"));
  EXPECT_THAT(ErrorOf("round_bound", "1e-10"), HasSubstr("below a nanosecond"));
  EXPECT_THAT(ErrorOf("round_bound", "1e300"), HasSubstr("too long"));
  EXPECT_THAT(ErrorOf("policy", "magic"),
              AllOf(HasSubstr("magic"), HasSubstr("zero, count, stale, ipw, residual or shift")));
}

// What every number may be, said again by hand: the smallest and largest that are taken, and what is refused.
TEST(JobSettings, EveryNumberHasItsBounds) {
  struct Bounds {
    std::string_view name;
    std::vector<std::string_view> taken, refused;
  };
  const std::vector<Bounds> all = {
      {"shift_alpha", {"1e-9", "1"}, {"0", "-0.1", "1.000001", "nan"}},
      {"high_share", {"0", "1"}, {"-1e-9", "1.000001", "nan"}},
      {"high_energy", {"0", "1"}, {"-1e-9", "1.000001", "nan"}},
      {"lost_energy", {"0", "1"}, {"-1e-9", "1.000001", "nan"}},
      {"topk_share", {"1e-9", "1"}, {"0", "1.000001", "nan"}},
      {"bubble_threshold", {"0", "1"}, {"-1e-9", "1.000001", "nan"}},
      {"halve_threshold", {"0", "1"}, {"-1e-9", "1.000001", "nan"}},
      {"close_ratio", {"0", "1"}, {"-1e-9", "1.000001", "nan"}},
      {"close_ratio_high", {"0", "1"}, {"-1e-9", "1.000001", "nan"}},
      {"hash_rounds", {"1", "1000000"}, {"0", "1000001"}},
      {"straggler_factor", {"0", "1", "1e6"}, {"0.999", "1000001", "nan"}},
      {"round_patience", {"0", "1", "1e6"}, {"0.999", "1000001", "nan"}},
      {"round_bound", {"0", "86400"}, {"-1", "86400.1", "nan"}},
      {"staleness", {"-1", "0", "1000"}, {"-2", "1001", "0.5", "nan"}},
      {"quorum", {"0", "1024"}, {"-1", "1025"}},
      {"norm_guard", {"0", "1", "1e6"}, {"0.999", "1000001", "nan"}},
      {"max_weight_share", {"0", "1"}, {"-1e-9", "1.000001", "nan"}},
      {"liar_share", {"1e-9", "0.5"}, {"0", "-0.1", "0.500001", "nan"}},
      {"fec_k", {"0", "8", "24"}, {"4", "7", "9", "25", "28"}},
      {"fec_depth", {"0", "255"}, {"256"}},
      {"idle_timeout", {"0.1", "86400"}, {"0", "0.099", "86400.1", "nan"}},
      {"seed", {"0", "18446744073709551615"}, {"-1", "18446744073709551616"}},
  };
  for (const Bounds& bounds : all) {
    for (const std::string_view text : bounds.taken) {
      EXPECT_EQ(ErrorOf(bounds.name, text), "") << bounds.name << " " << text;
    }
    for (const std::string_view text : bounds.refused) {
      EXPECT_NE(ErrorOf(bounds.name, text), "") << bounds.name << " " << text;
    }
  }
  const auto numbers = std::ranges::count_if(JobSettings(), [](const JobSetting& setting) {
    return setting.Requirement().find("one of") == std::string::npos &&
           setting.Requirement().find("true") == std::string::npos;
  });
  EXPECT_EQ(static_cast<size_t>(numbers), all.size()) << "a new one has its bounds here";
}

TEST(JobSettings, ASpecThatAProgramMadeIsCheckedAsWell) {
  JobSpec spec;
  spec.close_ratio = std::nan("");
  EXPECT_THAT(spec.Validate().message(), HasSubstr("close_ratio is nan, but must be in 0..1"));
  spec = {};
  spec.policy = static_cast<LossPolicy>(6);
  EXPECT_THAT(spec.Validate().message(), HasSubstr("policy is unknown"));
  spec = {};
  spec.priority = Priority::kTopK;
  EXPECT_TRUE(spec.Validate().ok());
  spec.policy = LossPolicy::kZero;
  EXPECT_THAT(spec.Validate().message(), AllOf(HasSubstr("topk"), HasSubstr("not zero")));
}

TEST(JobSettings, RobustAggregationTakesOnlyPoliciesOfSingleGradients) {
  JobSpec spec;
  for (const Aggregation aggregation : {Aggregation::kTrimmedMean, Aggregation::kCentredClipping}) {
    spec.aggregation = aggregation;
    for (const LossPolicy policy : {LossPolicy::kZero, LossPolicy::kCount, LossPolicy::kStale}) {
      spec.policy = policy;
      EXPECT_TRUE(spec.Validate().ok()) << NameOf(policy);
    }
    for (const LossPolicy policy : {LossPolicy::kIpw, LossPolicy::kResidual, LossPolicy::kShift}) {
      spec.policy = policy;
      EXPECT_THAT(spec.Validate().message(), AllOf(HasSubstr(std::string(NameOf(aggregation))),
                                                   HasSubstr("not " + std::string(NameOf(policy)))));
    }
  }
}

// Every combination that has no meaning, with the words that name both.
TEST(JobSettings, StepsOfSomeWorkersRefuseWhatNeedsAllOfThem) {
  const auto why = [](auto change) {
    JobSpec spec;
    change(spec);
    return spec.Validate().message();
  };
  EXPECT_EQ(why([](JobSpec& s) { s.staleness = 3; }), "");
  EXPECT_EQ(why([](JobSpec& s) { s.staleness = -1; }), "");
  EXPECT_EQ(why([](JobSpec& s) { s.quorum = 3; }), "");
  EXPECT_THAT(why([](JobSpec& s) { s.staleness = 1, s.quorum = 3; }),
              HasSubstr("quorum 3 needs staleness 0"));
  EXPECT_THAT(why([](JobSpec& s) { s.staleness = 1, s.deterministic = true; }),
              AllOf(HasSubstr("staleness 1"), HasSubstr("deterministic")));
  EXPECT_THAT(why([](JobSpec& s) { s.quorum = 1, s.deterministic = true; }),
              AllOf(HasSubstr("quorum 1"), HasSubstr("deterministic")));
  const auto robust = [](JobSpec& s) {
    s.policy = LossPolicy::kZero;
    s.aggregation = Aggregation::kTrimmedMean;
  };
  EXPECT_THAT(why([&](JobSpec& s) { robust(s), s.quorum = 3; }), HasSubstr("trimmed-mean"));
  EXPECT_THAT(why([&](JobSpec& s) { robust(s), s.staleness = -1; }), HasSubstr("trimmed-mean"));
  EXPECT_THAT(why([](JobSpec& s) { s.staleness = -1, s.policy = LossPolicy::kShift; }), HasSubstr("shift"));
  EXPECT_EQ(why([](JobSpec& s) { s.quorum = 3, s.policy = LossPolicy::kShift; }), "");
  EXPECT_THAT(why([](JobSpec& s) { s.staleness = -1, s.downlink = Downlink::kLossy; }), HasSubstr("lossy"));
}

}  // namespace
}  // namespace longhaul
