#include "operator/controller/controller.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "operator/reconcile/objects.h"
#include "operator/resource/stamp.h"

namespace longhaul::kube {
namespace {

// Where what a job waits for does not wake it: an answer that is lost, a site that comes back.
constexpr Duration kAgain = std::chrono::seconds(1);
constexpr Duration kLookAtSites = std::chrono::seconds(10);
// Sites and pages of progress have connections of their own, which the home client's wait does not see.
constexpr Duration kSitePoll = std::chrono::milliseconds(100);
constexpr Duration kProgressPoll = std::chrono::milliseconds(20);

std::string SiteKey(const TrainingJob& job, const std::string& cluster) {
  for (const Site& site : job.spec.sites) {
    if (site.name == cluster) return job.name_space + "/" + site.kubeconfig_secret;
  }
  return cluster;
}

bool IsPlanOf(const Json& object, const TrainingJob& job) {
  return TextAt(object, {"kind"}) == "ConfigMap" && TextAt(object, {"metadata", "name"}) == PlanName(job) &&
         IsOfJob(object, job.uid);
}

std::string NameOfObject(const Json& object) {
  return TextAt(object, {"kind"}) + " " + TextAt(object, {"metadata", "name"});
}

}  // namespace

Duration RecentTimes::Quantile(double q) const {
  return longhaul::Quantile(std::vector<Duration>(times_.begin(), times_.end()), q);
}

Controller::Controller(api::RestClient* home, ControllerOptions options, Random chance)
    : options_(std::move(options)),
      chance_(chance),
      client_(home),
      home_(home, {options_.name_space, true, options_.informer}, chance_.Fork(1)),
      sites_(home, options_.sites, chance_.Fork(2)),
      key_(home, options_.key_name_space, options_.key_name),
      events_(home),
      permissions_(home),
      scripts_(home),
      survey_(home),
      queue_(options_.queue) {}

Controller::~Controller() {
  for (const auto& [call, key] : calls_) {
    if (call.first.empty()) client_->Cancel(call.second);
  }
}

void Controller::Run(Instant now) {
  const auto touched = [&](const std::string& key) { Add(key, now); };
  home_.Run(now);
  key_.Run(now);
  sites_.Run(now);
  sites_.Poll(now, [&](const std::string& site, api::RestEvent& event) {
    if (event.done) (void)OnAnswer({site, event.call}, event.result, now);
  });
  progress_.Poll();
  while (const auto job = progress_.NextChanged()) Add(*job, now);
  home_.TakeChanges(touched);
  sites_.TakeChanges(touched);
  if (stopping_ || !NotReady().empty()) return;
  while (work_.size() < kMostInWork) {
    const auto key = queue_.Take(now);
    if (!key) return;
    Begin(*key, now);
  }
}

bool Controller::Take(api::RestEvent* event, Instant now) {
  if (home_.Take(event, now)) return true;
  if (!event->done) return false;
  if (key_.Take(*event, now) || events_.Take(*event) || sites_.TakeHome(*event, now)) return true;
  if (const auto jobs = permissions_.Take(*event, now)) {
    for (const std::string& job : *jobs) Add(job, now);
    return true;
  }
  if (const auto jobs = scripts_.Take(event, now)) {
    for (const std::string& job : *jobs) Add(job, now);
    return true;
  }
  if (const auto done = survey_.Take(*event, now)) {
    if (*done) {
      for (const std::string& job : std::exchange(wait_for_survey_, {})) Add(job, now);
    }
    return true;
  }
  return OnAnswer({"", event->call}, event->result, now);
}

Instant Controller::NextDue(Instant now) const {
  Instant due = std::min({home_.NextDue(), key_.NextDue(), sites_.NextDue()});
  if (NotReady().empty() && work_.size() < kMostInWork && !stopping_) due = std::min(due, queue_.NextDue());
  if (sites_.open() > 0) due = std::min(due, now + kSitePoll);
  if (progress_.busy()) due = std::min(due, now + kProgressPoll);
  return due;
}

std::string Controller::NotReady() const {
  if (!key_.known()) return key_.trouble().empty() ? "reads the operator's key" : key_.trouble();
  if (home_.synced()) return "";
  const std::string trouble = home_.trouble();
  return trouble.empty() ? "lists the objects of jobs" : trouble;
}

ControllerCounters Controller::counters() const {
  ControllerCounters all = counters_;
  all.reconcile_p50 = reconcile_times_.Quantile(0.5);
  all.reconcile_p99 = reconcile_times_.Quantile(0.99);
  all.pass_p50 = pass_times_.Quantile(0.5);
  all.pass_p99 = pass_times_.Quantile(0.99);
  return all;
}

// --- a job's turn

void Controller::Begin(const std::string& key, Instant now) {
  const auto clock = std::chrono::steady_clock::now();
  const std::shared_ptr<const Json> object = home_.Job(key);
  const auto job =
      object == nullptr ? Result<TrainingJob>(Status(StatusCode::kNotFound, "")) : ParseTrainingJob(*object);
  if (!job.ok()) {  // gone, or it lacks what every object has
    queue_.Forget(key);
    progress_.Forget(key);
    queue_.Done(key, now);
    return;
  }
  auto seen = Gather(key, *object, *job, now);
  if (!seen) return Wait(key, now);
  Decision decision = Reconcile(options_.settings, *seen, options_.wall());
  if (decision.needs_script && GatherScript(key, *job, now, &*seen))
    decision = Reconcile(options_.settings, *seen, options_.wall());
  if (decision.needs_script) return Wait(key, now);
  ++counters_.reconciles;
  reconcile_times_.Add(std::chrono::steady_clock::now() - clock);
  Work& work = work_[key];
  work.job = object;
  work.begun = now;
  work.whole_script = seen->whole_script;
  work.actions.assign(std::make_move_iterator(decision.actions.begin()),
                      std::make_move_iterator(decision.actions.end()));
  work.requeue = decision.requeue_after;
  const bool remote =
      std::ranges::any_of(job->spec.sites, [](const Site& site) { return !site.kubeconfig_secret.empty(); });
  if (remote && !job->status.IsTrue("CleanedUp") && (!work.requeue || *work.requeue > kLookAtSites))
    work.requeue = kLookAtSites;
  Step(key, now);
}

// Comes again with the answer that it waits for, or without it.
void Controller::Wait(const std::string& key, Instant now) {
  ++counters_.waits;
  queue_.Done(key, now);
  (void)queue_.AddAfter(key, kAgain, now);
}

std::optional<Observed> Controller::Gather(const std::string& key, const Json& object, const TrainingJob& job,
                                           Instant now) {
  Observed seen;
  seen.job = object;
  if (!job.spec.profile.empty()) {
    const auto profile = home_.Profile(job.name_space + "/" + job.spec.profile);
    if (profile != nullptr) seen.profile = *profile;
  }
  home_.AddObjects(key, "", &seen.objects);
  seen.job_key = key_.KeyOf(job.uid);
  const bool ends = job.deleted || IsTerminal(job.status.phase);
  if (!ends && !job.status.IsTrue("Authorized") && job.spec_status.ok()) {
    auto answer = options_.ask_permission ? permissions_.Ask(job, key, HasProof(key_.key(), object), now)
                                          : PermissionDesk::Answer{Permission::kAllowed, false, ""};
    if (answer.asks) return std::nullopt;
    if (answer.permission == Permission::kUnknown) Say(object, "PermissionUnknown", answer.message, now);
    seen.permission = answer.permission;
    seen.permission_message = std::move(answer.message);
  }
  if (!GatherSites(key, job, now, &seen)) return std::nullopt;
  const bool allowed = job.status.IsTrue("Authorized") || seen.permission == Permission::kAllowed;
  if (!ends && allowed && !GatherPlan(key, job, now, &seen)) return std::nullopt;
  if (!ends) GatherProgress(key, job, now, &seen);
  return seen;
}

bool Controller::GatherSites(const std::string& key, const TrainingJob& job, Instant now, Observed* seen) {
  // Of a job that is over the site is not needed any more, until its anchor is to go.
  if (!job.deleted && job.status.IsTrue("CleanedUp")) return true;
  if (job.deleted && !job.has_finalizer) return true;
  bool known = true;
  for (const Site& site : job.spec.sites) {
    if (site.kubeconfig_secret.empty()) continue;
    const Sites::View view = sites_.Look(job.name_space, site.kubeconfig_secret, now);
    if (view.opening) {
      known = false;
    } else if (view.cluster == nullptr) {
      seen->unreachable.insert(site.name);
      seen->why_unreachable[site.name] = view.trouble;
    } else {
      view.cluster->AddObjects(key, site.name, &seen->objects);
    }
  }
  return known;
}

// What only a plan needs.
bool Controller::GatherPlan(const std::string& key, const TrainingJob& job, Instant now, Observed* seen) {
  const bool has_map = std::ranges::any_of(
      seen->objects, [&](const SiteObject& one) { return one.cluster.empty() && IsPlanOf(one.object, job); });
  const bool discovers = job.spec.capacity == Capacity::kDiscovered && !job.status.IsTrue("Started");
  if (!job.spec.script.config_map.empty() && (!has_map || discovers)) {
    if (!HasRoomForScript()) return false;
    auto view = scripts_.Look("ConfigMap", job.name_space, job.spec.script.config_map, key, now);
    if (!view.known) return false;
    seen->whole_script = true;
    if (!view.trouble.empty()) Say(seen->job, "ScriptUnreadable", view.trouble, now);
    seen->script_map = std::move(view.object);
  }
  if (!discovers || (!seen->profile && !job.spec.node)) return true;
  NodeConfig config;
  if (job.spec.node) {
    config = *job.spec.node;
  } else if (auto profile = ParseTrainingProfile(*seen->profile); profile.ok()) {
    config = std::move(profile->config);
  }
  const Machines* machines = survey_.Look(now);
  if (machines == nullptr) {
    wait_for_survey_.insert(key);
    return false;
  }
  if (!survey_.trouble().empty()) Say(seen->job, "CapacityUnknown", survey_.trouble(), now);
  seen->free = machines->Free(job.spec, config);
  return true;
}

bool Controller::HasRoomForScript() const {
  const auto whole = [](const auto& one) { return one.second.whole_script; };
  return std::ranges::count_if(work_, whole) < static_cast<std::ptrdiff_t>(ScriptDesk::kMost);
}

// Of the plan, which is as it was written, or of the job while there is none.
bool Controller::GatherScript(const std::string& key, const TrainingJob& job, Instant now, Observed* seen) {
  if (!HasRoomForScript()) return false;
  const auto map = std::ranges::find_if(
      seen->objects, [&](const SiteObject& one) { return one.cluster.empty() && IsPlanOf(one.object, job); });
  const bool planned = map != seen->objects.end();
  auto view = scripts_.Look(planned ? "ConfigMap" : "TrainingJob", job.name_space,
                            planned ? PlanName(job) : job.name, key, now);
  if (!view.known) return false;
  if (!view.trouble.empty()) Say(seen->job, "ScriptUnreadable", view.trouble, now);
  // What has gone, or is another one by now, is seen soon.
  Json& known = planned ? map->object : seen->job;
  if (!view.object || TextAt(*view.object, {"metadata", "uid"}) != TextAt(known, {"metadata", "uid"}))
    return false;
  if (planned) {
    known["data"]["script"] = At(*view.object, {"data", "script"});
  } else {
    known["spec"]["script"] = At(*view.object, {"spec", "script"});
  }
  seen->whole_script = true;
  return true;
}

void Controller::GatherProgress(const std::string& key, const TrainingJob& job, Instant now, Observed* seen) {
  seen->round = progress_.RoundOf(key, job.uid);
  if (options_.progress_port == 0 || !job.status.IsTrue("Started")) return;
  for (const SiteObject& one : seen->objects) {
    if (!one.cluster.empty() || TextAt(one.object, {"kind"}) != "Pod" || !IsOfJob(one.object, job.uid))
      continue;
    if (TextAt(one.object, {"metadata", "name"}) != ServerName(job) + "-0") continue;
    progress_.Ask(key, job.uid, TextAt(one.object, {"status", "podIP"}), options_.progress_port, now);
  }
}

// --- its actions

void Controller::Step(const std::string& key, Instant now) {
  Work& work = work_[key];
  while (!work.actions.empty()) {
    work.current = std::move(work.actions.front());
    work.actions.pop_front();
    work.looks = false;
    if (work.current.verb == Verb::kEvent) {
      events_.Say(*work.job, work.current.object, now, options_.wall());
      continue;
    }
    const auto request = RequestOf(work.current);
    if (!request) {
      Log(LogLevel::kWarning, key + ": no request for a " + NameOfObject(work.current.object));
      continue;
    }
    work.cluster = &home_;
    if (!work.current.cluster.empty()) {
      const auto job = ParseTrainingJob(*work.job);
      const std::string site = job.ok() ? SiteKey(*job, work.current.cluster) : "";
      work.cluster =
          sites_.Look(site.substr(0, site.find('/')), site.substr(site.find('/') + 1), now).cluster;
      if (work.cluster == nullptr) continue;  // it has just gone; the job looks again
    }
    if (work.cluster != &home_ && work.cluster->in_flight >= kMostOfSite) {
      ++counters_.postponed;
      return GiveUp(key, &work, now);
    }
    if (!Send(key, *request, &work)) {
      ++counters_.postponed;
      return GiveUp(key, &work, now);
    }
    return;
  }
  Finish(key, work.again, now);
}

void Controller::GiveUp(const std::string& key, Work* work, Instant now) {
  const Action& failed = work->current;
  // What the rest follows from is not written: none of it is done.
  if (failed.verb == Verb::kPatchStatus || failed.verb == Verb::kPatchJob) return Finish(key, true, now);
  work->again = true;
  std::erase_if(work->actions, [&](const Action& action) {
    return action.cluster == failed.cluster && action.verb != Verb::kEvent;
  });
  Step(key, now);
}

bool Controller::Send(const std::string& key, const api::ApiRequest& request, Work* work) {
  const Result<api::CallId> started = work->cluster->client()->Start(request);
  if (!started.ok()) {
    Log(LogLevel::kWarning, key + ": " + started.status().message());
    return false;
  }
  std::string site;
  if (work->cluster != &home_) {
    const auto job = ParseTrainingJob(*work->job);
    site = job.ok() ? SiteKey(*job, work->current.cluster) : "";
  }
  ++work->cluster->in_flight;
  calls_[{std::move(site), *started}] = key;
  return true;
}

bool Controller::OnAnswer(const Call& call, const api::ApiResult& result, Instant now) {
  const auto found = calls_.find(call);
  if (found == calls_.end()) return false;
  const std::string key = std::move(found->second);
  calls_.erase(found);
  Work& work = work_[key];
  --work.cluster->in_flight;
  if (work.looks) {
    OnLooked(key, &work, result, now);
  } else if (work.current.verb == Verb::kCreate) {
    OnCreated(key, &work, result, now);
  } else {
    OnWritten(key, &work, result, now);
  }
  return true;
}

void Controller::OnCreated(const std::string& key, Work* work, const api::ApiResult& result, Instant now) {
  if (result.ok()) {
    ++counters_.created;
    Log(LogLevel::kInfo, key + ": created " + NameOfObject(work->current.object));
    return Step(key, now);
  }
  if (result.code != api::ApiCode::kAlreadyExists) return OnFailure(key, work, result, now);
  // Secrets are made and not read.
  if (TextAt(work->current.object, {"kind"}) == "Secret") return Step(key, now);
  api::ApiRequest get = *RequestOf(work->current);
  get.verb = api::Verb::kGet;
  get.name = TextAt(work->current.object, {"metadata", "name"});
  get.body = nullptr;
  get.ignores_answer = false;
  work->looks = true;
  if (!Send(key, get, work)) GiveUp(key, work, now);
}

void Controller::OnLooked(const std::string& key, Work* work, const api::ApiResult& result, Instant now) {
  if (result.code == api::ApiCode::kNotFound) return GiveUp(key, work, now);  // it has gone meanwhile
  if (!result.ok()) return OnFailure(key, work, result, now);
  if (IsOfJob(result.body, TextAt(*work->job, {"metadata", "uid"}))) return Step(key, now);
  ++counters_.taken_names;
  Say(*work->job, "NameTaken",
      NameOfObject(work->current.object) +
          " is there already and is not this job's: delete it, or delete the job and give it another name",
      now);
  GiveUp(key, work, now);
}

void Controller::OnWritten(const std::string& key, Work* work, const api::ApiResult& result, Instant now) {
  const bool deletes = work->current.verb == Verb::kDelete;
  if (result.ok()) {
    ++(deletes ? counters_.deleted : counters_.statuses);
    if (deletes) Log(LogLevel::kInfo, key + ": deleted " + NameOfObject(work->current.object));
    return Step(key, now);
  }
  // Another uid has the name: what was meant is gone.
  if (deletes && (result.code == api::ApiCode::kNotFound || result.code == api::ApiCode::kConflict))
    return Step(key, now);
  if (result.code == api::ApiCode::kNotFound) return Finish(key, false, now);  // the job is gone
  if (result.code == api::ApiCode::kConflict) {
    ++counters_.conflicts;
    return GiveUp(key, work, now);
  }
  OnFailure(key, work, result, now);
}

void Controller::OnFailure(const std::string& key, Work* work, const api::ApiResult& result, Instant now) {
  ++counters_.failures;
  static constexpr const char* kWords[] = {"create", "delete", "write the status of", "write", "say"};
  std::string what = std::string("cannot ") + kWords[static_cast<size_t>(work->current.verb)] + " " +
                     NameOfObject(work->current.object);
  if (!work->current.cluster.empty()) what += " in site " + work->current.cluster;
  what += ": " + result.ToString();
  Log(LogLevel::kWarning, key + ": " + what);
  // A person has to do something: give a right, raise a quota.
  if (result.code == api::ApiCode::kForbidden || result.code == api::ApiCode::kInvalid)
    Say(*work->job, "ActionFailed", what, now);
  GiveUp(key, work, now);
}

void Controller::Finish(const std::string& key, bool again, Instant now) {
  const auto found = work_.find(key);
  const std::optional<Duration> requeue = found->second.requeue;
  pass_times_.Add(now - found->second.begun);
  work_.erase(found);
  if (!again) queue_.Forget(key);
  queue_.Done(key, now);
  if (again) {
    (void)queue_.AddRateLimited(key, now, chance_.Uniform());
  } else if (requeue) {
    (void)queue_.AddAfter(key, *requeue, now);
  }
}

void Controller::Say(const Json& job, std::string_view reason, const std::string& message, Instant now) {
  events_.Say(job, {{"type", "Warning"}, {"reason", reason}, {"message", message}}, now, options_.wall());
}

}  // namespace longhaul::kube
