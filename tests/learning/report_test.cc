#include "bench/learning/report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

namespace longhaul::bench {
namespace {

class ReportTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove(path_); }
  void TearDown() override { std::filesystem::remove(path_); }

  const std::string path_ = testing::TempDir() + "learning_results_" +
                            testing::UnitTest::GetInstance()->current_test_info()->name() + ".jsonl";
};

// Accuracies of a policy and of the lossless run, by seed.
void Fill(Results& results, const Scenario& scenario, const std::vector<double>& with,
          const std::vector<double>& without) {
  Scenario s = scenario;
  for (s.seed = 1; s.seed <= with.size(); ++s.seed) {
    TimedOutcome outcome;
    outcome.outcome.accuracy = outcome.outcome.averaged_accuracy = with[s.seed - 1];
    ASSERT_TRUE(results.Add(s, outcome).ok());
    outcome.outcome.accuracy = outcome.outcome.averaged_accuracy = without[s.seed - 1];
    ASSERT_TRUE(results.Add(s.Lossless(), outcome).ok());
  }
}

TEST_F(ReportTest, AnInterruptedTableGoesOnWhereItWas) {
  Scenario s;
  s.policy = "count";
  {
    Result<Results> results = Results::Open(path_);
    ASSERT_TRUE(results.ok());
    EXPECT_EQ(results->Find(s), nullptr);
    ASSERT_TRUE(results->Add(s, {.outcome = {.accuracy = 0.5, .training_loss = 1}, .seconds = 2}).ok());
  }
  const Result<Results> again = Results::Open(path_);
  ASSERT_TRUE(again.ok());
  ASSERT_NE(again->Find(s), nullptr);
  EXPECT_EQ(again->Find(s)->outcome.accuracy, 0.5);
  EXPECT_EQ(again->Find(s)->seconds, 2);
  s.seed = 2;
  EXPECT_EQ(again->Find(s), nullptr);
}

TEST_F(ReportTest, ADamagedLineIsNamed) {
  std::ofstream(path_) << "{\"scenario\": {}, \"accuracy\": 0.5}\n{\"accuracy\"\n";
  const Result<Results> results = Results::Open(path_);
  ASSERT_FALSE(results.ok());
  EXPECT_EQ(results.status().code(), StatusCode::kDataLoss);
  EXPECT_NE(results.status().ToString().find("line 2"), std::string::npos);
}

TEST_F(ReportTest, DifferencesArePairedBySeed) {
  Result<Results> results = Results::Open(path_);
  ASSERT_TRUE(results.ok());
  Scenario s;
  s.loss = 0.1;
  Fill(*results, s, {0.861, 0.850, 0.870}, {0.862, 0.853, 0.872});
  const Difference d = DifferenceOf({s, 3}, *results);
  EXPECT_EQ(d.seeds, 3u);
  EXPECT_NEAR(d.median, -0.2, 1e-9);
  EXPECT_NEAR(d.mean, -0.2, 1e-9);
  ASSERT_TRUE(d.standard_error.has_value());
  EXPECT_NEAR(*d.standard_error, 0.1 / std::sqrt(3.0), 1e-9);
  EXPECT_EQ(DifferenceOf({s, 1}, *results).seeds, 1u);
  s.loss = 0.2;
  EXPECT_EQ(DifferenceOf({s, 3}, *results).seeds, 0u);
}

TEST_F(ReportTest, AnEquivalenceNeedsAsManySeedsAsTheyDiffer) {
  Result<Results> results = Results::Open(path_);
  ASSERT_TRUE(results.ok());
  Scenario s;
  s.loss = 0.1;
  Fill(*results, s, {0.861, 0.851, 0.873, 0.866}, {0.862, 0.853, 0.872, 0.868});
  const PairedDifference d = PairedDifferenceOf({s, 4}, *results, &Outcome::accuracy);
  EXPECT_NEAR(d.mean, -0.001, 1e-12);
  EXPECT_NEAR(*d.standard_error, 0.001 * std::sqrt(0.5), 1e-9);  // deviations of 0, -1, 2 and -1 thousandths
  EXPECT_NEAR(d.HalfInterval(), 3.182 * 0.001 * std::sqrt(0.5), 1e-6);
  EXPECT_TRUE(d.Within(0.0027));  // 1 + 2.353 x 0.707 = 2.664 thousandths
  EXPECT_FALSE(d.Within(0.0026));
  EXPECT_FALSE(PairedDifferenceOf({s, 1}, *results, &Outcome::accuracy).Within(1)) << "one seed says nothing";
  // Many seeds, by the expansion: 2.365 is the quantile of seven degrees.
  EXPECT_NEAR((PairedDifference{.seeds = 8, .mean = 0, .standard_error = 1.0}.HalfInterval()), 2.365, 0.01);
  const Table table{.name = "t",
                    .title = "Title",
                    .text = "Text.",
                    .corner = "policy",
                    .columns = {"10 %"},
                    .rows = {{"shift", {{s, 4}}}},
                    .positions = {},
                    .targets = {0.3}};
  const std::string markdown = ToMarkdown({table}, *results);
  EXPECT_NE(markdown.find("| shift | **-0.10 ± 0.23; +0.00 ± 0.00**; 0 %; n 4 |"), std::string::npos)
      << markdown;
}

TEST_F(ReportTest, RowsThatFailComeFirstAndSaySo) {
  Result<Results> results = Results::Open(path_);
  ASSERT_TRUE(results.ok());
  Scenario near, far;
  near.loss = 0.1;
  far.loss = 0.2;
  Fill(*results, near, {0.861, 0.851}, {0.862, 0.853});
  Fill(*results, far, {0.855, 0.845}, {0.862, 0.853});
  const Table table{.name = "t",
                    .title = "Title",
                    .text = "Text.",
                    .corner = "policy",
                    .columns = {"10 %"},
                    .rows = {{"near", {{near, 2}}}, {"far", {{far, 2}}}},
                    .positions = {},
                    .targets = {0.3}};
  const std::string markdown = ToMarkdown({table}, *results);
  const size_t fails = markdown.find("| far | fails: -0.75 ");
  EXPECT_NE(fails, std::string::npos) << markdown;
  EXPECT_NE(markdown.find("| near | -0.15 ", fails), std::string::npos) << markdown;
}

TEST_F(ReportTest, TablesAndPlotsShowWhatIsThere) {
  Result<Results> results = Results::Open(path_);
  ASSERT_TRUE(results.ok());
  Table table{.name = "t",
              .title = "Title",
              .text = "Text.",
              .corner = "policy",
              .columns = {"10 %", "20 %"},
              .rows = {},
              .medians = false,
              .positions = {10, 20},
              .targets = {}};
  Scenario s;
  s.loss = 0.1;
  Fill(*results, s, {0.861, 0.850}, {0.862, 0.853});
  Scenario missing = s;
  missing.loss = 0.2;
  table.rows = {{"shift", {{s, 2}, {missing, 2}}}};
  const std::string markdown = ToMarkdown({table}, *results);
  EXPECT_NE(markdown.find("| shift | -0.20 ± 0.10 |  |"), std::string::npos) << markdown;
  EXPECT_NE(markdown.find("85.75 (85.30..86.20)"), std::string::npos) << markdown;
  EXPECT_NE(ToSvg(table, *results).find("<polyline"), std::string::npos);
}

TEST(LearningTablesTest, EveryRunIsMadeOnceAndHasItsLosslessTwin) {
  for (const std::vector<Table>& tables : {LearningTables(false), LearningTables(true), LayoutTables(9)}) {
    const std::vector<Scenario> runs = RunsOf(tables);
    std::set<std::string> keys;
    for (const Scenario& run : runs) EXPECT_TRUE(keys.insert(run.Key()).second) << run.Key();
    for (const Scenario& run : runs) {
      EXPECT_TRUE(keys.contains(run.Lossless().Key())) << run.Key();
      EXPECT_TRUE(Scenario::FromJson(run.ToJson()).ok()) << run.Key();
    }
    EXPECT_GT(runs.size(), 0u);
  }
}

}  // namespace
}  // namespace longhaul::bench
