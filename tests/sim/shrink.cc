#include "tests/sim/shrink.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <sstream>
#include <string_view>

namespace longhaul::sim {
namespace {

using Numbers = std::vector<uint32_t>;

// "workers=0.2" -> {0, 2}; empty when it is no list of numbers.
Numbers NumbersOf(std::string_view text) {
  Numbers numbers;
  while (!text.empty()) {
    uint32_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc()) return {};
    numbers.push_back(number);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (!text.empty() && text.front() != '.') return {};
    if (!text.empty()) text.remove_prefix(1);
  }
  return numbers;
}

void ForLinks(RunPlan* plan, const std::function<void(wan::LinkOptions&)>& change) {
  for (wan::LinkOptions& link : plan->up) change(link);
  for (wan::LinkOptions& link : plan->down) change(link);
}

void ForJobs(RunPlan* plan, const std::function<void(JobPlan&)>& change) {
  for (JobPlan& job : plan->jobs) change(job);
}

void WithoutLoss(RunPlan* plan) {
  ForLinks(plan, [](wan::LinkOptions& link) { link.loss = link.loss_burst = 0; });
  for (Fault& fault : plan->faults) fault.weather.loss.reset();
}

void WithoutGate(JobPlan& job) {
  if (job.gate == 0) return;
  job.rounds = job.gate;
  job.gate = 0;
}

const std::map<std::string_view, std::function<void(RunPlan*)>>& Switches() {
  const auto links = [](auto change) { return [change](RunPlan* plan) { ForLinks(plan, change); }; };
  const auto jobs = [](auto change) { return [change](RunPlan* plan) { ForJobs(plan, change); }; };
  static const std::map<std::string_view, std::function<void(RunPlan*)>> switches = {
      {"no-loss", WithoutLoss},
      {"no-jitter",
       links([](wan::LinkOptions& link) { link.jitter = Duration(0), link.jitter_reorders = false; })},
      {"no-copies", links([](wan::LinkOptions& link) { link.duplicate = 0; })},
      {"no-reorder", links([](wan::LinkOptions& link) { link.reorder = 0; })},
      {"no-damage", links([](wan::LinkOptions& link) { link.corrupt = 0; })},
      {"no-keys", [](RunPlan* plan) { plan->protection = Protection::kTag, plan->key_update_packets = 0; }},
      {"no-injections", [](RunPlan* plan) { plan->injections.clear(); }},
      {"no-gate", jobs(WithoutGate)},
      {"no-barriers", jobs([](JobPlan& job) { job.barriers = false; })},
      {"no-think", jobs([](JobPlan& job) { job.think = Duration(0); })},
      {"no-delays", jobs([](JobPlan& job) { std::ranges::fill(job.start_delays, Duration(0)); })},
      {"no-fec", jobs([](JobPlan& job) { job.fec_k = 0; })},
      {"no-deterministic", jobs([](JobPlan& job) { job.deterministic = false; })},
      {"no-weights", jobs([](JobPlan& job) { std::ranges::fill(job.weights, 1.0f); })},
      {"no-stragglers",
       jobs([](JobPlan& job) { job.straggler_factor = 0, job.round_bound = Duration(0), job.quorum = 0; })},
  };
  return switches;
}

// What is left out keeps its place until the end, so that numbers stay those of the drawn plan.
struct LeftOut {
  std::vector<bool> faults, jobs;
  std::vector<std::vector<bool>> tensors;
};

void SetWorkers(JobPlan& job, uint32_t workers) {
  if (workers == 0 || workers >= job.workers) return;
  job.workers = workers;
  job.min_workers = std::min(job.min_workers, workers);
  job.start_workers = std::min(job.start_workers, workers);
  job.quorum = std::min(job.quorum, workers);
  job.weights.resize(workers);
  job.start_delays.resize(workers);
  for (TensorPlan& tensor : job.tensors) tensor.initial_offers &= (uint64_t{1} << workers) - 1;
}

void SetRounds(JobPlan& job, uint32_t rounds) {
  if (rounds == 0 || rounds >= job.rounds) return;
  job.gate =
      job.gate > 0 ? std::max(1u, std::min(job.gate, rounds - std::min(rounds, job.rounds - job.gate))) : 0;
  job.rounds = rounds;
}

bool ApplyNumbers(std::string_view name, const Numbers& n, RunPlan* plan, LeftOut* out) {
  if (name == "fault" && n.size() == 1 && n[0] < out->faults.size()) {
    out->faults[n[0]] = true;
  } else if (name == "job" && n.size() == 1 && n[0] < out->jobs.size()) {
    out->jobs[n[0]] = true;
  } else if (n.size() >= 2 && n[0] < plan->jobs.size()) {
    JobPlan& job = plan->jobs[n[0]];
    if (name == "workers" && n.size() == 2) {
      SetWorkers(job, n[1]);
    } else if (name == "rounds" && n.size() == 2) {
      SetRounds(job, n[1]);
    } else if (name == "tensor" && n.size() == 2 && n[1] < job.tensors.size()) {
      out->tensors[n[0]][n[1]] = true;
    } else if (name == "chunks" && n.size() == 3 && n[1] < job.tensors.size() && n[2] > 0) {
      job.tensors[n[1]].chunks = std::min(job.tensors[n[1]].chunks, n[2]);
    } else {
      return false;
    }
  } else {
    return false;
  }
  return true;
}

template <typename T>
void Remove(const std::vector<bool>& out, std::vector<T>* from) {
  size_t at = 0;
  std::erase_if(*from, [&](const T&) { return out[at++]; });
}

void RemoveLeftOut(const LeftOut& out, RunPlan* plan) {
  for (size_t j = 0; j < plan->jobs.size(); ++j) Remove(out.tensors[j], &plan->jobs[j].tensors);
  Remove(out.faults, &plan->faults);
  std::erase_if(plan->faults, [&](const Fault& fault) {
    return out.jobs[fault.job] || fault.rank >= plan->jobs[fault.job].workers;
  });
  for (Fault& fault : plan->faults) {
    fault.job -= static_cast<uint32_t>(std::count(out.jobs.begin(), out.jobs.begin() + fault.job, true));
  }
  Remove(out.jobs, &plan->jobs);
}

// Such that runs of one kind of failure look alike.
std::string Kind(const std::vector<std::string>& violations) {
  if (violations.empty()) return "";
  std::string kind;
  for (const char c : violations.front()) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '-') kind += c;
  }
  return kind.substr(0, 60);
}

// Everything that may be tried on a plan, the largest things first.
Edits Candidates(const RunPlan& plan) {
  Edits all;
  const auto text = [](size_t n) { return std::to_string(n); };
  for (size_t j = 0; j < plan.jobs.size() && plan.jobs.size() > 1; ++j) all.push_back("job=" + text(j));
  for (size_t f = 0; f < plan.faults.size(); ++f) all.push_back("fault=" + text(f));
  for (size_t j = 0; j < plan.jobs.size(); ++j) {
    const JobPlan& job = plan.jobs[j];
    for (size_t t = 0; t < job.tensors.size(); ++t) all.push_back("tensor=" + text(j) + "." + text(t));
  }
  for (const auto& [name, apply] : Switches()) all.emplace_back(name);
  for (size_t j = 0; j < plan.jobs.size(); ++j) {
    const JobPlan& job = plan.jobs[j];
    for (uint32_t n = 1; n < job.workers; n = n * 2) all.push_back("workers=" + text(j) + "." + text(n));
    if (job.workers > 1) all.push_back("workers=" + text(j) + "." + text(job.workers - 1));
    for (uint32_t n = 1; n < job.rounds; ++n) all.push_back("rounds=" + text(j) + "." + text(n));
    for (size_t t = 0; t < job.tensors.size(); ++t) {
      for (uint32_t n = 1; n < job.tensors[t].chunks; n *= 2)
        all.push_back("chunks=" + text(j) + "." + text(t) + "." + text(n));
    }
  }
  return all;
}

bool IsRunnable(const RunPlan& plan) {
  return !plan.jobs.empty() &&
         std::ranges::none_of(plan.jobs, [](const JobPlan& job) { return job.tensors.empty(); });
}

}  // namespace

bool Apply(const Edits& edits, RunPlan* plan, std::string* error) {
  LeftOut out{std::vector<bool>(plan->faults.size()), std::vector<bool>(plan->jobs.size()), {}};
  for (const JobPlan& job : plan->jobs) out.tensors.emplace_back(job.tensors.size());
  for (const std::string& edit : edits) {
    const size_t equals = edit.find('=');
    const auto known = Switches().find(edit);
    if (known != Switches().end()) {
      known->second(plan);
    } else if (equals == std::string::npos ||
               !ApplyNumbers(edit.substr(0, equals), NumbersOf(std::string_view(edit).substr(equals + 1)),
                             plan, &out)) {
      *error = "\"" + edit + "\" is no edit of this plan";
      return false;
    }
  }
  RemoveLeftOut(out, plan);
  if (IsRunnable(*plan)) return true;
  *error = "nothing is left of a job";
  return false;
}

std::string Join(const Edits& edits) {
  std::string text;
  for (const std::string& edit : edits) text += (text.empty() ? "" : " ") + edit;
  return text;
}

Edits Split(const std::string& text) {
  std::istringstream words(text);
  Edits edits;
  for (std::string word; words >> word;) edits.push_back(word);
  return edits;
}

Shrunk Shrink(const RunPlan& plan, const std::function<std::vector<std::string>(const RunPlan&)>& run,
              uint32_t most_runs) {
  Shrunk smallest{{}, plan, run(plan), 1};
  const std::string kind = Kind(smallest.violations);
  const Edits candidates = Candidates(plan);
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (const std::string& candidate : candidates) {
      if (smallest.runs >= most_runs) return smallest;
      if (std::ranges::find(smallest.edits, candidate) != smallest.edits.end()) continue;
      Shrunk next = smallest;
      next.edits.push_back(candidate);
      next.plan = plan;
      std::string error;
      if (!Apply(next.edits, &next.plan, &error) || next.plan.ToString() == smallest.plan.ToString())
        continue;
      next.violations = run(next.plan);
      ++smallest.runs;
      if (Kind(next.violations) != kind) continue;
      next.runs = smallest.runs;
      smallest = std::move(next);
      smaller = true;
    }
  }
  return smallest;
}

}  // namespace longhaul::sim
