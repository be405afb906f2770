#include "tests/sim/coverage.h"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "base/reached.h"
#include "tests/sim/scenarios.h"

namespace longhaul::sim {
namespace {

// What no cluster of honest workers comes to; other tests do.
struct Beyond {
  std::string_view mark;
  std::string_view why;
};
constexpr Beyond kBeyond[] = {
    {"a long packet is not opened for the failures before it", "takes a flood: test_attack"},
    {"INITs beyond what their address may begin", "takes a flood: test_attack"},
    {"an INIT beyond the number of connections", "takes a flood: test_attack"},
    {"a candidate too many", "takes a replayer at many addresses: test_transport"},
    {"a job is handed over to other servers", "takes an operator: test_server"},
    {"an earlier attempt is refused", "takes an operator: test_server, test_e2e"},
    {"a client takes another port", "takes a driver with another one: test_transport"},
    {"a stranger is displaced", "takes connections that do not join: test_attack"},
    {"RETRY is sent", "takes many handshakes at once: test_attack"},
    {"RETRY is followed", "takes many handshakes at once: test_attack"},
    {"REFUSE is heard", "takes a server without room or with another key: test_transport"},
    {"a contribution is not finite", "honest workers refuse to send it: test_server"},
    {"a contribution is too large", "takes a gradient that explodes: test_server"},
    {"a chunk arrives while earlier ones are replayed",
     "takes an owner that does not poll at once: test_transport"},
    {"a long packet of another connection", "takes two connections of one peer: test_transport"},
    {"a pull is held", "takes more pulls than models may be pinned for: test_server"},
    {"no room for a chunk before its window", "takes more early chunks than are kept: test_transport"},
    {"the server disconnects a peer", "takes a member that violates the protocol: test_server"},
    {"a worker that another one has followed is refused", "takes a zombie: test_server"},
    {"a push comes again of which a part has counted", "takes a round that ends in between: test_server"},
    {"the window of a round that went on is refused", "takes a worker two rounds behind: test_server"},
    {"a chunk comes when its step is made, and is of the next one", "steps of one worker: test_server"},
    {"a push is over that earlier steps have all of", "steps of one worker: test_server"},
    {"a step has chunks of a worker that is gone, and no window that closes it",
     "steps of one worker: test_server"},
    {"a member that does nothing holds the others no longer", "steps of one worker: test_server"},
    // Less than ten times in 1,000 seeds: a sweep may miss them.
    {"a result is outdated before it was sent", "seldom"},
    {"a second WINDOW_NACK within a round trip", "seldom"},
};

}  // namespace

std::vector<std::string> RunScenarios() {
  std::vector<std::string> wrong;
  for (const Scenario& scenario : Scenarios()) {
    const RunResult result = RunCluster(scenario.plan);
    for (const std::string& violation : result.violations) wrong.push_back(scenario.name + ": " + violation);
    if (const std::string missing = scenario.expect(result); !missing.empty()) {
      wrong.push_back(scenario.name + ": " + missing);
    }
  }
  return wrong;
}

Coverage ReachedMarks() {
  Coverage coverage;
  for (const Mark& mark : AllMarks()) {
    ++coverage.marks;
    const auto beyond = std::ranges::find(kBeyond, mark.name, &Beyond::mark);
    if (mark.times > 0) {
      ++coverage.reached;
    } else if (beyond == std::end(kBeyond)) {
      coverage.never.emplace_back(mark.name);
    } else {
      coverage.beyond.push_back(std::string(beyond->mark) + " (" + std::string(beyond->why) + ")");
    }
  }
  for (const Beyond& beyond : kBeyond) {
    const auto is_it = [&](const Mark& mark) { return mark.name == beyond.mark; };
    if (std::ranges::none_of(AllMarks(), is_it))
      coverage.never.push_back("no mark is called \"" + std::string(beyond.mark) + "\"");
  }
  return coverage;
}

std::string MarksTable() {
  std::vector<std::pair<uint64_t, std::string>> rows;
  for (const Mark& mark : AllMarks()) rows.emplace_back(mark.times.load(), mark.name);
  std::ranges::sort(rows);
  std::ostringstream out;
  for (const auto& [times, name] : rows) out << times << "  " << name << "\n";
  return out.str();
}

}  // namespace longhaul::sim
