#include "bench/learning/tables.h"

#include <algorithm>
#include <array>
#include <set>

#include "longhaul/job.h"

namespace longhaul::bench {
namespace {

constexpr uint32_t kSeeds = 3;
constexpr uint32_t kFirstSeeds = 5;
constexpr uint32_t kOtherLayoutSeeds = 8;  // each pair of neighbours is once the one that loses most
constexpr uint32_t kHeadlineSeeds = 8;  // a paired difference of one seed is uncertain by a tenth of a point

struct Policy {
  const char* label;
  const char* name;
  double alpha;
};
constexpr Policy kZero = {"zero", "zero", 0.1};
constexpr Policy kCount = {"count", "count", 0.1};
constexpr Policy kStale = {"stale", "stale", 0.1};
constexpr Policy kIpw = {"ipw", "ipw", 0.1};
constexpr Policy kResidual = {"residual", "residual", 0.1};
constexpr Policy kShift = {"shift", "shift", 0.1};
constexpr Policy kFastShift = {"shift, alpha 0.3", "shift", 0.3};
const std::vector<Policy> kAll = {kZero, kCount, kStale, kIpw, kResidual, kShift, kFastShift};
const std::vector<Policy> kMain = {kZero, kResidual, kShift, kFastShift};

// Around this: 10 %, bursts of 10, uneven, skewed.
Scenario Centre(const Policy& policy, const std::string& optimizer) {
  Scenario s;
  s.policy = policy.name;
  s.shift_alpha = policy.alpha;
  s.optimizer = optimizer;
  s.loss = 0.1;
  return s;
}

std::string Percent(double share) {
  std::string text = std::to_string(share * 100);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " %";
}

const char* Title(const std::string& optimizer) { return optimizer == "adam" ? "Adam" : "SGD with momentum"; }

Table Headline(const std::string& optimizer) {
  Table table;
  table.name = "headline-" + optimizer;
  table.title = std::string("Headline: ") + Title(optimizer);
  table.text =
      "Two of eight workers lose five times as much as the others, in bursts of 10; 90 % label skew.";
  table.corner = "policy";
  table.medians = true;
  for (const Policy& policy : kMain) {
    Table::Row row{policy.label, {}};
    for (const double loss : {0.1, 0.2, 0.3}) {
      Cell cell{Centre(policy, optimizer), kHeadlineSeeds};
      cell.scenario.loss = loss;
      row.cells.push_back(cell);
    }
    table.rows.push_back(row);
  }
  table.columns = {"10 %", "20 %", "30 %"};
  return table;
}

Table LossSweep(const std::string& optimizer) {
  Table table;
  table.name = "loss-" + optimizer;
  table.title = std::string("Policies over loss: ") + Title(optimizer);
  table.text =
      "Bursts of 10, uneven, skewed. Without loss the policies differ by rounding alone: the row of "
      "shift at 0 % shows what rounding makes of a run.";
  table.corner = "policy";
  for (const double loss : {0.0, 0.01, 0.05, 0.1, 0.2, 0.3}) {
    table.columns.push_back(Percent(loss));
    table.positions.push_back(loss * 100);
  }
  for (const Policy& policy : kAll) {
    const bool main =
        std::any_of(kMain.begin(), kMain.end(), [&](const Policy& p) { return p.label == policy.label; });
    Table::Row row{policy.label, {}};
    for (const double position : table.positions) {
      Cell cell{Centre(policy, optimizer),
                main && (position >= 10 || position <= 0) ? kHeadlineSeeds : kSeeds};
      cell.scenario.loss = position / 100;
      row.cells.push_back(cell);
    }
    table.rows.push_back(row);
  }
  return table;
}

Table OneFactor(const std::string& optimizer) {
  Table table;
  table.name = "factors-" + optimizer;
  table.title = std::string("One factor at a time: ") + Title(optimizer);
  table.text = "Around 10 %, bursts of 10, uneven, skewed.";
  table.corner = "policy";
  table.columns = {"as it is", "independent losses", "even", "iid"};
  for (const Policy& policy : kAll) {
    std::vector<Cell> cells(4, Cell{Centre(policy, optimizer), kSeeds});
    cells[1].scenario.burst = 0;
    cells[2].scenario.uneven = false;
    cells[3].scenario.skew = 0;
    table.rows.push_back({policy.label, cells});
  }
  return table;
}

// Where the default might break: each row changes one thing of the centre.
Table Breaks(const std::string& optimizer) {
  Table table;
  table.name = "breaks-" + optimizer;
  table.title = std::string("Where it breaks: ") + Title(optimizer);
  table.text =
      "10 % and 30 % loss, bursts of 10, uneven, skewed; each row changes one thing, and the lossless "
      "run with it.";
  table.corner = "changed";
  std::vector<std::pair<std::string, Scenario>> changes;
  const auto change = [&](const std::string& label) -> Scenario& {
    changes.emplace_back(label, Centre(kShift, optimizer));
    return changes.back().second;
  };
  change("100 rounds").rounds = 100;
  if (optimizer == "sgd") change("learning rate drops to a tenth at half-time").schedule = "drop";
  change("a worker leaves for 100 rounds").membership = "left";
  change("a worker is excluded for 100 rounds").membership = "excluded";
  change("a worker is replaced every 50 rounds").membership = "replaced";
  change("nothing protected (high share 0)").high_share = 0;
  change("bfloat16 on the wire").wire_dtype = "bfloat16";
  change("int8 on the wire").wire_dtype = "int8";
  for (const double share : {0.1, 0.01}) {
    Scenario& topk = change("top-k: " + Percent(share) + " of the elements travel");
    topk.priority = "topk";
    topk.topk_share = share;
  }
  for (const Policy& policy : kMain) {
    table.columns.push_back(std::string(policy.label) + " 10 %");
    table.columns.push_back(std::string(policy.label) + " 30 %");
  }
  for (const auto& [label, scenario] : changes) {
    Table::Row row{label, {}};
    for (const Policy& policy : kMain) {
      for (const double loss : {0.1, 0.3}) {
        // What does not travel by top-k would be lost for good.
        const bool possible = scenario.priority != "topk" || policy.name != std::string("zero");
        Cell cell{scenario, possible ? kSeeds : 0};
        cell.scenario.policy = policy.name;
        cell.scenario.shift_alpha = policy.alpha;
        cell.scenario.loss = loss;
        row.cells.push_back(cell);
      }
    }
    table.rows.push_back(row);
  }
  return table;
}

// Of gradients and of parameters; each is compared with the run of float32 that loses nothing.
Table ElementTypes(const std::string& optimizer) {
  Table table;
  table.name = "types-" + optimizer;
  table.title = std::string("Element types on the wire: ") + Title(optimizer);
  table.text = "Policy residual; bursts of 10, uneven, skewed. Up are gradients, down parameters.";
  table.corner = "types";
  table.columns = {"0 %", "10 %"};
  for (const auto& [up, down] : {std::pair("float32", "float32"), std::pair("bfloat16", "bfloat16"),
                                 std::pair("float16", "float16"), std::pair("int8", "bfloat16")}) {
    Table::Row row{std::string(up) + " up, " + down + " down", {}};
    for (const double loss : {0.0, 0.1}) {
      Cell cell{Centre(kResidual, optimizer), kFirstSeeds};
      cell.scenario.loss = loss;
      cell.scenario.wire_dtype = up;
      cell.scenario.result_dtype = down;
      row.cells.push_back(cell);
    }
    table.rows.push_back(row);
  }
  return table;
}

}  // namespace

std::vector<Table> LearningTables(bool quick) {
  std::vector<Table> tables;
  for (const char* optimizer : {"sgd", "adam"}) tables.push_back(Headline(optimizer));
  if (!quick) {
    for (const auto& make : {LossSweep, OneFactor, Breaks, ElementTypes}) {
      const int stage = tables.back().stage + 1;
      for (const char* optimizer : {"sgd", "adam"}) {
        tables.push_back(make(optimizer));
        tables.back().stage = stage;
      }
    }
    return tables;
  }
  for (Table& table : tables) {
    for (Table::Row& row : table.rows) {
      for (Cell& cell : row.cells) {
        cell.seeds = 1;
        cell.scenario.rounds = 70;
      }
    }
  }
  return tables;
}

std::vector<Table> LayoutTables(uint32_t seeds) {
  std::vector<Table> tables;
  for (const char* optimizer : {"sgd", "adam"}) {
    Table& table = tables.emplace_back();
    table.name = std::string("layouts-") + optimizer;
    table.title = std::string("Layouts: ") + Title(optimizer);
    table.text =
        "90 % label skew. Bursts of 10, two of eight workers lose five times as much as the others; and "
        "60 % of independent losses, the same for all.";
    table.corner = "matrices, policy";
    table.columns = {"10 %", "20 %", "30 %", "60 %, even"};
    table.targets = {0.1, 0.2, 0.3, 0.5};
    for (const bool transposed : {false, true}) {
      const auto add = [&](const std::string& label, const Policy& policy, double lost_energy, bool all) {
        Table::Row row{(transposed ? "[in][out], " : "[out][in], ") + label, {}};
        for (size_t column = 0; column < table.columns.size(); ++column) {
          const uint32_t others = column > 1 ? std::min(seeds, kOtherLayoutSeeds) : 0;
          Cell& cell = row.cells.emplace_back(Cell{Centre(policy, optimizer), all ? seeds : others});
          cell.scenario.transposed = transposed;
          cell.scenario.lost_energy = lost_energy;
          cell.scenario.loss = std::array{0.1, 0.2, 0.3, 0.6}[column];
          if (column < 3) continue;
          cell.scenario.burst = 0;
          cell.scenario.uneven = false;
        }
        table.rows.push_back(row);
      };
      add("residual, the default", kResidual, JobSpec().lost_energy, true);
      add("residual, a fifth is high whatever is lost", kResidual, 1, false);
      add("shift, a fifth is high whatever is lost", kShift, 1, false);
    }
  }
  return tables;
}

std::vector<Scenario> RunsOf(const std::vector<Table>& tables) {
  std::vector<Scenario> runs;
  std::set<std::string> known;
  const auto add = [&](const Scenario& scenario) {
    if (known.insert(scenario.Key()).second) runs.push_back(scenario);
  };
  int stages = 0;
  uint32_t most = 0;
  for (const Table& table : tables) {
    stages = std::max(stages, table.stage + 1);
    for (const Table::Row& row : table.rows) {
      for (const Cell& cell : row.cells) most = std::max(most, cell.seeds);
    }
  }
  // What only narrows the headline's error comes last.
  for (const auto& [first, last] : {std::pair(1u, kFirstSeeds), std::pair(kFirstSeeds + 1, most)}) {
    for (int stage = 0; stage < stages; ++stage) {
      for (uint32_t seed = first; seed <= last; ++seed) {
        for (const Table& table : tables) {
          if (table.stage != stage) continue;
          for (const Table::Row& row : table.rows) {
            for (const Cell& cell : row.cells) {
              if (seed > cell.seeds) continue;
              Scenario scenario = cell.scenario;
              scenario.seed = seed;
              add(scenario.Lossless());
              add(scenario);
            }
          }
        }
      }
    }
  }
  return runs;
}

namespace {

// What `longhaul run` trains (cli/run.h, worker/demo).
Scenario Demo(const std::string& optimizer) {
  Scenario s;
  s.policy = kResidual.name;
  s.optimizer = optimizer;
  s.workers = 4;
  s.batch = 128;
  s.rounds = 500;
  s.skew = 0;
  s.shards = true;
  s.uneven = false;
  s.burst = 0;
  return s;
}

}  // namespace

std::vector<Scenario> ConsistencyRuns() {
  // Minutes, all of them: as many seeds as the default policy needs to show differences of a tenth or two.
  constexpr uint32_t kDemoSeeds = 8;
  constexpr uint32_t kManySeeds = 5;
  constexpr double kSlow = 10;
  constexpr double kDemoLoss = 0.02;
  std::vector<Scenario> runs;
  const auto add = [&runs](Scenario s, uint32_t seeds) {
    for (const int32_t staleness : {0, 3, -1}) {
      s.staleness = staleness;
      if (staleness == 0 && s.slow > 1) continue;
      for (s.seed = 1; s.seed <= seeds; ++s.seed) runs.push_back(s);
    }
  };
  for (const char* optimizer : {"sgd", "adam"}) {
    Scenario demo = Demo(optimizer);
    demo.loss = kDemoLoss;
    add(demo, demo.optimizer == "sgd" ? kDemoSeeds : kManySeeds);
  }
  for (const char* optimizer : {"sgd", "adam"}) {
    Scenario s = Centre(kResidual, optimizer);
    s.loss = 0;
    add(s, kManySeeds);
    s.slow = kSlow;
    add(s, kSeeds);
    add(Centre(kResidual, optimizer), kSeeds);
    for (const Policy& policy : {kZero, kCount, kStale, kIpw}) add(Centre(policy, optimizer), 1);
  }
  return runs;
}

}  // namespace longhaul::bench
