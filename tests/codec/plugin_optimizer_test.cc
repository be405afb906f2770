// Rules of plug-ins: what may be added, how they are named, and what becomes of a step that fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "codec/policy/optimizer.h"

namespace longhaul::codec {
namespace {

using ::testing::HasSubstr;
using Values = std::vector<float>;

constexpr longhaul_setting kSettings[] = {{"lr", "0.1", 0, 0, LONGHAUL_SETTING_REQUIRED},
                                          {"decay", "0.5", 0.5, 1, 0},
                                          {"slow", nullptr, 0, 0, LONGHAUL_SETTING_FLAG}};
constexpr const char* kState[] = {"sum", "last"};

// sum += g; w -= lr sum, with `slow` a tenth of it. The prepared number is how often prepare was called.
int calls = 0;
longhaul_optimizer Mine() {
  return {.name = "mine",
          .settings = kSettings,
          .setting_count = 3,
          .state = kState,
          .state_count = 2,
          .flags = 0,
          .states = nullptr,
          .check = nullptr,
          .prepare =
              [](const longhaul_step* s, double* prepared) {
                ++calls;
                prepared[0] = s->settings[0] * s->rate * (s->settings[2] != 0 ? 0.1 : 1);
              },
          .step = [](const longhaul_step* s) -> int32_t {
            for (uint64_t i = 0; i < s->count; ++i) {
              s->new_state[0][i] = s->state[0][i] + s->gradient[i];
              s->new_state[1][i] = static_cast<float>(s->first + i);
              s->updated[i] = s->values[i] - static_cast<float>(s->prepared[0]) * s->new_state[0][i];
            }
            return s->steps == 3 ? 7 : 0;
          }};
}

// A plug-in of one optimizer, which the test may change first.
struct OfOne {
  explicit OfOne(longhaul_optimizer the_rule = Mine()) : rule(the_rule) {}
  longhaul_optimizer rule;
  const longhaul_optimizer* rules[1] = {&rule};
  longhaul_plugin plugin{LONGHAUL_PLUGIN_API, 1, rules, 0, nullptr};
};

TEST(PluginOptimizer, IsNamedInTextsAsABuiltInOneIs) {
  OfOne mine;
  Rules rules;
  ASSERT_TRUE(rules.Add(&mine.plugin).ok());
  const auto spec = rules.Parse("mine:slow,lr=2");
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  EXPECT_EQ(spec->ToString(), "mine:lr=2,decay=0.5,slow");
  EXPECT_EQ(*rules.Parse(spec->ToString()), *spec);
  EXPECT_EQ(StateNames(*spec), (std::vector<std::string>{"sum", "last"}));
  EXPECT_FALSE(spec->takes_parts());
  EXPECT_TRUE(rules.Parse("sgd:lr=1")->takes_parts());
  const auto wrong = [&](const char* text) { return rules.Parse(text).status().message(); };
  EXPECT_THAT(wrong("mine"), HasSubstr("lr is missing, for example mine:lr=0.1"));
  EXPECT_THAT(wrong("mine:lr=1,decay=1"), HasSubstr("decay must be below 1"));
  EXPECT_THAT(wrong("mine:lr=1,slow=1"), HasSubstr("slow has no value"));
  EXPECT_THAT(wrong("mime:lr=1"), HasSubstr("mine:lr=0.1[,decay=0.5][,slow]")) << "it is among the known";
  EXPECT_EQ(ParseOptimizer("mine:lr=1").status().code(), StatusCode::kNotFound) << "it is not built in";
}

TEST(PluginOptimizer, WhatCannotBeIsRefusedByName) {
  const auto refused = [](auto change) {
    OfOne mine;
    change(mine);
    Rules rules;
    const Status status = rules.Add(&mine.plugin);
    EXPECT_EQ(rules.Parse("mine:lr=1").status().code(), StatusCode::kNotFound) << "nothing is added";
    return status;
  };
  const auto why = [&](auto change) { return refused(change).message(); };
  EXPECT_THAT(why([](OfOne& p) { p.rule.name = "My SGD"; }), HasSubstr("its name is not 1..32 of a-z 0-9 _"));
  EXPECT_THAT(why([](OfOne& p) { p.rule.step = nullptr; }),
              HasSubstr("\"mine\" of a plug-in: it has no step"));
  EXPECT_THAT(why([](OfOne& p) { p.rules[0] = nullptr; }), HasSubstr("its name"));
  EXPECT_THAT(why([](OfOne& p) { p.plugin.optimizer_count = 0; }),
              HasSubstr("has no optimizer and no aggregation"));
  EXPECT_THAT(why([](OfOne& p) { p.rule.setting_count = 33; }), HasSubstr("0..32 settings"));
  EXPECT_THAT(why([](OfOne& p) { p.rule.state_count = 9; }), HasSubstr("keeps 0..8 arrays"));
  static constexpr const char* kTwice[] = {"sum", "sum"};
  EXPECT_THAT(why([](OfOne& p) { p.rule.state = kTwice; }), HasSubstr("names of its arrays are not all"));
  static constexpr const char* kDotted[] = {"sum", "w.sum"};
  EXPECT_THAT(why([](OfOne& p) { p.rule.state = kDotted; }), HasSubstr("names of its arrays are not all"));
  static constexpr longhaul_setting kBad[] = {{"lr", "0.1", 2, 1, 0}, {"lr", "0.1", 0, 0, 0}};
  EXPECT_THAT(why([](OfOne& p) { p.rule.settings = kBad, p.rule.setting_count = 1; }),
              HasSubstr("its setting \"lr\" has no sample, or a fallback that is out of its own bounds"));
  EXPECT_THAT(
      why([](OfOne& p) { p.rule.settings = kBad + 1, p.rule.setting_count = 1, p.rule.name = "sgd"; }),
      HasSubstr("\"sgd\" of a plug-in: the name is taken"));
  const Status version = refused([](OfOne& p) { p.plugin.api = LONGHAUL_PLUGIN_API + 1; });
  EXPECT_EQ(version.code(), StatusCode::kVersionMismatch);
  EXPECT_THAT(version.message(), HasSubstr("version 2 of longhaul/plugin_api.h, and this is version 1"));
  EXPECT_EQ(refused([](OfOne& p) { p.rule.name = "aggregate"; }).code(), StatusCode::kAlreadyExists);
}

TEST(PluginOptimizer, AnAggregationHasANameOfItsOwnAndAFunction) {
  longhaul_aggregation rule = {
      .name = "middle",
      .scratch = nullptr,
      .aggregate = [](const longhaul_contributions*, float*) -> int32_t { return 0; }};
  const longhaul_aggregation* rules[] = {&rule, &rule};
  longhaul_plugin plugin{LONGHAUL_PLUGIN_API, 0, nullptr, 1, rules};
  Rules known;
  ASSERT_TRUE(known.Add(&plugin).ok());
  EXPECT_EQ(known.FindAggregation("middle"), &rule);
  EXPECT_EQ(known.FindAggregation("mean"), nullptr);
  EXPECT_EQ(known.Add(&plugin).code(), StatusCode::kAlreadyExists);
  plugin.aggregation_count = 2;
  EXPECT_EQ(Rules().Add(&plugin).code(), StatusCode::kAlreadyExists) << "twice in one";
  plugin.aggregation_count = 1;
  rule.aggregate = nullptr;
  EXPECT_THAT(Rules().Add(&plugin).message(), HasSubstr("\"middle\" of a plug-in: it has no function"));
  rule.name = "the middle";
  EXPECT_THAT(Rules().Add(&plugin).message(), HasSubstr("its name is not 1..32 of a-z 0-9 _"));
}

TEST(PluginOptimizer, StepsOnItsOwnChunkAndState) {
  OfOne mine;
  Rules rules;
  ASSERT_TRUE(rules.Add(&mine.plugin).ok());
  Optimizer optimizer(*rules.Parse("mine:lr=1"), 5);
  Values w{10}, next(1);
  calls = 0;
  EXPECT_EQ(optimizer.Step(1, 4, Values{2}, w, next), 0);
  EXPECT_EQ(next[0], 8.0f);
  EXPECT_EQ(optimizer.Step(1, 1, Values{1}, w, next), 0);
  EXPECT_EQ(next[0], 9.0f) << "another element";
  EXPECT_EQ(calls, 1) << "what depends on the step alone is prepared once for all of its chunks";
  EXPECT_EQ(optimizer.Step(2, 4, Values{1}, w, next), 0);
  EXPECT_EQ(next[0], 7.0f);
  EXPECT_EQ(calls, 2);
  optimizer.ScaleRate(0.5);
  EXPECT_EQ(optimizer.Step(2, 3, Values{1}, w, next), 0);
  EXPECT_EQ(next[0], 9.5f);
  const auto state = optimizer.Snapshot();
  EXPECT_EQ(Values(state[0].values->span().begin(), state[0].values->span().end()), (Values{0, 1, 0, 1, 3}));
  EXPECT_EQ(Values(state[1].values->span().begin(), state[1].values->span().end()), (Values{0, 1, 0, 3, 4}));
  EXPECT_EQ(optimizer.Step(3, 0, Values{1}, w, next), 7) << "its own code";
}

TEST(PluginOptimizer, AnExceptionIsACodeAsWell) {
  longhaul_optimizer rule = Mine();
  rule.step = [](const longhaul_step*) -> int32_t { throw std::runtime_error("x"); };
  OfOne mine(rule);
  Rules rules;
  ASSERT_TRUE(rules.Add(&mine.plugin).ok());
  Optimizer optimizer(*rules.Parse("mine:lr=1"), 1);
  Values w{1}, next(1);
  EXPECT_EQ(optimizer.Step(1, 0, Values{2}, w, next), Optimizer::kThrew);
}

TEST(PluginOptimizer, WhatIsStoredOfOneThatIsNotHereCanBe) {
  EXPECT_TRUE(MayKeep("mine:lr=1", {"sum", "last"}));
  EXPECT_FALSE(MayKeep("mine:lr=1", {"sum", "sum"}));
  EXPECT_FALSE(MayKeep("mine:lr=1", {"a/b"}));
  EXPECT_TRUE(MayKeep("sgd:lr=1,momentum=0.5", {"momentum_buffer"}));
  EXPECT_FALSE(MayKeep("sgd:lr=1", {"momentum_buffer"}));
  EXPECT_FALSE(MayKeep("sgd:lr=none", {}));
}

}  // namespace
}  // namespace longhaul::codec
