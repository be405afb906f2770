// What is tried. A row says what is done and what has to come of it; scenario.cc measures.
#include <signal.h>

#include "bench/faults/scenario.h"

namespace longhaul::bench::faults {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const std::string kUsual = JobOptions().link;
constexpr const char* kDead = "rate 100mbit delay 10ms loss 100%";

JobOptions With(const Words& server_words, const std::string& member = "") {
  JobOptions options;
  options.server_words = server_words;
  options.member = member;
  return options;
}

const Words kTwoAreEnough = {"--min-workers", "2"};

std::vector<Scenario> OfProcesses() {
  return {
      {.name = "worker killed",
       .fault = "kill -9 of worker 2; all are needed",
       .begin = [](Job& job) { job.SignalWorker(2, SIGKILL); },
       .outcome = Outcome::kEnds,
       .named = "rank 2.*(silent|lost)"},
      {.name = "worker killed, two are enough",
       .fault = "kill -9 of worker 2; --min-workers 2",
       .options = With(kTwoAreEnough),
       .begin = [](Job& job) { job.SignalWorker(2, SIGKILL); },
       .named = "rank 2.*(silent|lost)"},
      {.name = "worker restarted",
       .fault = "kill -9 of worker 2, and its command line once more after 0.5 s",
       .begin =
           [](Job& job) {
             job.SignalWorker(2, SIGKILL);
             job.RunFor(milliseconds(500));
             job.StartWorkerAgain(2);
           },
       .named = "\"event\":\"join\".*\"rank\":2"},
      {.name = "worker paused",
       .fault = "SIGSTOP of worker 2 for 2 s",
       .begin = [](Job& job) { job.SignalWorker(2, SIGSTOP); },
       .end = [](Job& job) { job.SignalWorker(2, SIGCONT); },
       .length = seconds(2)},
      {.name = "worker stopped for good",
       .fault = "SIGSTOP of worker 2; --min-workers 2",
       .options = With(kTwoAreEnough),
       .begin = [](Job& job) { job.SignalWorker(2, SIGSTOP); },
       .named = "rank 2.*(silent|lost)"},
      {.name = "worker told to stop",
       .fault = "SIGTERM of worker 2; all are needed",
       .begin = [](Job& job) { job.SignalWorker(2, SIGTERM); },
       .outcome = Outcome::kEnds,
       .named = "rank 2.*(left|SIGTERM)"},
      {.name = "server paused",
       .fault = "SIGSTOP of the server for 2 s",
       .begin = [](Job& job) { job.SignalServer(SIGSTOP); },
       .end = [](Job& job) { job.SignalServer(SIGCONT); },
       .length = seconds(2)},
      {.name = "server killed",
       .fault = "kill -9 of the server",
       .begin = [](Job& job) { job.SignalServer(SIGKILL); },
       .outcome = Outcome::kEnds,
       .named = "server .*silent"},
      {.name = "server restarted",
       .fault = "kill -9 of the server, and its command line once more after 0.5 s",
       .begin =
           [](Job& job) {
             job.SignalServer(SIGKILL);
             job.RunFor(milliseconds(500));
             job.StartServerAgain();
           },
       .outcome = Outcome::kEnds,
       .named = "restarted|reset|silent"},
      {.name = "server told to stop",
       .fault = "SIGTERM of the server",
       .begin = [](Job& job) { job.SignalServer(SIGTERM); },
       .outcome = Outcome::kEnds,
       .named = "(Cancelled|Aborted|shut)"},
      {.name = "output unread",
       .fault = "the server's standard output is read no more",
       .begin = [](Job& job) { job.StopReadingServer(); },
       .end = [](Job&) {},
       .length = seconds(3)},
  };
}

std::vector<Scenario> OfTheNetwork() {
  const auto heal = [](Job& job) { job.HealLinks(); };
  return {
      {.name = "outage",
       .fault = "no packet either way for 2 s, all sites",
       .begin = [](Job& job) { job.SetAllLinks(kDead); },
       .end = heal,
       .length = seconds(2)},
      {.name = "outage up",
       .fault = "no packet from worker 2 for 2 s",
       .begin = [](Job& job) { job.SetUp(2, kDead); },
       .end = heal,
       .length = seconds(2)},
      {.name = "outage down",
       .fault = "no packet to worker 2 for 2 s",
       .begin = [](Job& job) { job.SetDown(2, kDead); },
       .end = heal,
       .length = seconds(2)},
      {.name = "site cut off",
       .fault = "no packet either way, worker 2, for good; --min-workers 2",
       .options = With(kTwoAreEnough),
       .begin = [](Job& job) { job.SetLink(2, kDead); },
       .named = "rank 2.*(silent|lost)"},
      {.name = "loss 30 %",
       .fault = "1 % -> 30 % each way for 5 s, all sites",
       .begin = [](Job& job) { job.SetAllLinks("rate 100mbit delay 10ms loss 30%"); },
       .end = heal,
       .length = seconds(5)},
      {.name = "loss in bursts",
       .fault = "10 % in bursts of 20 packets for 5 s, all sites",
       .begin = [](Job& job) { job.SetAllLinks("rate 100mbit delay 10ms loss 10% burst 20"); },
       .end = heal,
       .length = seconds(5)},
      {.name = "rate / 20",
       .fault = "100 -> 5 Mbit/s for 5 s, worker 2",
       .begin = [](Job& job) { job.SetLink(2, "rate 5mbit delay 10ms loss 1%"); },
       .end = heal,
       .length = seconds(5)},
      {.name = "RTT x 10",
       .fault = "20 -> 200 ms for 5 s, all sites",
       .begin = [](Job& job) { job.SetAllLinks("rate 100mbit delay 100ms loss 1%"); },
       .end = heal,
       .length = seconds(5)},
      {.name = "reordering and copies",
       .fault = "30 % overtake, 20 % twice, for 3 s, all sites",
       .begin = [](Job& job) { job.SetAllLinks(kUsual + " reorder 30% duplicate 20%"); },
       .end = heal,
       .length = seconds(3)},
      {.name = "flipped bits",
       .fault = "a bit of 5 % of the packets for 3 s, all sites",
       .begin = [](Job& job) { job.SetAllLinks(kUsual + " corrupt 5%"); },
       .end = heal,
       .length = seconds(3)},
      {.name = "MTU shrinks",
       .fault = "datagrams above 1,300 bytes vanish, worker 2, for good",
       .begin = [](Job& job) { job.SetLink(2, kUsual + " mtu 1300"); }},
      {.name = "address changes",
       .fault = "worker 2's host takes another address",
       .begin = [](Job& job) { job.ChangeAddress(2); }},
  };
}

std::vector<Scenario> OfMembers() {
  const auto misbehave = [](Job& job) { job.SignalWorker(2, SIGUSR1); };
  return {
      {.name = "member idles",
       .fault = "worker 2 lives and pushes no more; --min-workers 2",
       .options = With(kTwoAreEnough, "idle"),
       .begin = misbehave,
       .idle_timeouts = 12,  // a worker that evaluates is not idle: server/tensor/patience.h
       .named = "rank 2"},
      {.name = "member hoards barriers",
       .fault = "worker 2 opens 70 barriers",
       .options = With({}, "barriers"),
       .begin = misbehave,
       .named = "ResourceExhausted"},
      {.name = "member hoards tensors",
       .fault = "worker 2 declares 5,000 tensors",
       .options = With({}, "tensors"),
       .begin = misbehave,
       .named = "the declaration of tensor .* by worker rank 2"},
      {.name = "member declares 1 GiB",
       .fault = "worker 2 declares 268 M elements with Adam",
       .options = With({}, "huge"),
       .begin = misbehave},
      {.name = "member pushes NaN",
       .fault = "worker 2 pushes NaN",
       .options = With({}, "nan"),
       .begin = misbehave,
       .named = "not finite"},
      {.name = "member pushes 1e30",
       .fault = "worker 2 pushes values of 1e30; --norm-guard 100",
       .options = With({"--norm-guard", "100"}, "large"),
       .begin = misbehave,
       .named = "rejected.*rank 2|\"rejected\""},
      {.name = "stranger with another key",
       .fault = "a worker with another key asks to join",
       .begin =
           [](Job& job) {
             job.RunInSite(job.WorkerSite(0),
                           {ProgramPath("longhaul"), "keygen", "--out", job.File("other.key")});
             job.StartStranger(
                 0, "stranger",
                 {ProgramPath("longhaul-worker"), "--join", kServerAddress, "--rank", "0", "--world-size",
                  "3", "--connect-timeout", "3", "--key", job.File("other.key")});
           },
       .named = "key|handshake"},
      {.name = "second worker of a rank",
       .fault = "another worker asks for rank 1, which lives",
       .begin =
           [](Job& job) {
             job.StartStranger(0, "stranger",
                               {ProgramPath("longhaul-worker"), "--join", kServerAddress, "--rank", "1",
                                "--world-size", "3", "--connect-timeout", "5", "--key", job.key_file()});
           },
       .named = "rank 1 is taken|AlreadyExists"},
  };
}

std::vector<Scenario> All() {
  std::vector<Scenario> all = OfProcesses();
  for (auto* more : {&OfTheNetwork, &OfMembers}) {
    for (Scenario& scenario : (*more)()) all.push_back(std::move(scenario));
  }
  return all;
}

}  // namespace

const std::vector<Scenario>& Scenarios() {
  static const std::vector<Scenario> all = All();
  return all;
}

}  // namespace longhaul::bench::faults
