#include "operator/controller/cluster.h"

#include <algorithm>

namespace longhaul::kube {
namespace {

std::string JobOf(const Json& object) {
  const std::string name = TextAt(object, {"metadata", "labels", kJobLabel});
  return name.empty() ? name : TextAt(object, {"metadata", "namespace"}) + "/" + name;
}

}  // namespace

Cluster::Cluster(api::RestClient* client, const ClusterOptions& options, Random chance) : client_(client) {
  std::vector<std::string_view> kinds = {"Pod", "Service", "ConfigMap"};
  if (options.home)
    kinds.insert(kinds.end(), {"StatefulSet", "PersistentVolumeClaim", "TrainingProfile", "TrainingJob"});
  for (const std::string_view name : kinds) {
    const Kind* kind = FindKind(name);
    api::ApiRequest what;
    what.type = kind->type;
    what.name_space = options.name_space;
    if (kind->version != kApiVersion) what.label_selector = kJobLabel;
    api::InformerOptions informer = options.informer;
    informer.slim = [kind](Json* object) { Slim(*kind, object); };
    copies_.push_back({kind, std::make_unique<api::InformerLoop>(client, std::move(what), informer,
                                                                 chance.Fork(copies_.size()))});
  }
  failures_seen_.resize(copies_.size());
}

void Cluster::Run(Instant now) {
  bool well = true;
  for (size_t i = 0; i < copies_.size(); ++i) {
    copies_[i].loop->Run(now);
    const api::Informer& informer = copies_[i].loop->informer();
    const uint64_t failures = informer.counters().failures;
    failed_in_a_row_ += failures - failures_seen_[i];
    failures_seen_[i] = failures;
    well = well && informer.trouble().empty();
  }
  if (well) failed_in_a_row_ = 0;
}

bool Cluster::Take(api::RestEvent* event, Instant now) {
  return std::ranges::any_of(copies_, [&](Copy& copy) { return copy.loop->Take(event, now); });
}

Instant Cluster::NextDue() const {
  Instant due = Instant::Infinite();
  for (const Copy& copy : copies_) due = std::min(due, copy.loop->NextDue());
  return due;
}

bool Cluster::synced() const {
  return std::ranges::all_of(copies_, [](const Copy& copy) { return copy.loop->informer().synced(); });
}

std::string Cluster::trouble() const {
  for (const Copy& copy : copies_) {
    const std::string& trouble = copy.loop->informer().trouble();
    if (!trouble.empty()) return copy.kind->type.plural + ": " + trouble;
  }
  return "";
}

Cluster::Copy* Cluster::Find(std::string_view kind) {
  const auto found = std::ranges::find_if(copies_, [&](const Copy& copy) { return copy.kind->name == kind; });
  return found == copies_.end() ? nullptr : &*found;
}
const Cluster::Copy* Cluster::Find(std::string_view kind) const {
  return const_cast<Cluster*>(this)->Find(kind);
}

void Cluster::Note(const Copy& copy, size_t index, const api::Change& change,
                   const std::function<void(const std::string&)>& touched) {
  if (copy.kind->name == "TrainingJob") return touched(change.key);
  if (copy.kind->name == "TrainingProfile") {
    // Of its namespace; what does not need it any more sees that nothing is to be done.
    const std::string prefix = change.key.substr(0, change.key.find('/') + 1);
    for (const auto& [key, job] : Find("TrainingJob")->loop->informer().objects()) {
      if (key.starts_with(prefix)) touched(key);
    }
    return;
  }
  const std::string before = change.before == nullptr ? "" : JobOf(*change.before);
  const std::string after = change.after == nullptr ? "" : JobOf(*change.after);
  if (!before.empty() && before != after) {
    const auto found = of_job_.find(before);
    if (found != of_job_.end()) {
      found->second.erase({index, change.key});
      if (found->second.empty()) of_job_.erase(found);
    }
    touched(before);
  }
  if (after.empty()) return;
  of_job_[after].insert({index, change.key});
  touched(after);
}

void Cluster::TakeChanges(const std::function<void(const std::string&)>& touched) {
  for (size_t i = 0; i < copies_.size(); ++i) {
    while (const auto change = copies_[i].loop->informer().Next()) Note(copies_[i], i, *change, touched);
  }
}

std::shared_ptr<const Json> Cluster::Job(const std::string& key) const {
  return Find("TrainingJob")->loop->informer().Find(key);
}

std::shared_ptr<const Json> Cluster::Profile(const std::string& key) const {
  return Find("TrainingProfile")->loop->informer().Find(key);
}

void Cluster::AddObjects(const std::string& job, const std::string& cluster,
                         std::vector<SiteObject>* objects) const {
  const auto found = of_job_.find(job);
  if (found == of_job_.end()) return;
  for (const auto& [index, key] : found->second) {
    const auto object = copies_[index].loop->informer().Find(key);
    if (object != nullptr) objects->push_back({cluster, *object});
  }
}

size_t Cluster::jobs() const {
  const Copy* jobs = Find("TrainingJob");
  return jobs == nullptr ? 0 : jobs->loop->informer().objects().size();
}

size_t Cluster::objects() const {
  size_t sum = 0;
  for (const Copy& copy : copies_) sum += copy.loop->informer().objects().size();
  return sum;
}

api::InformerCounters Cluster::counters() const {
  api::InformerCounters sum;
  for (const Copy& copy : copies_) {
    const api::InformerCounters& one = copy.loop->informer().counters();
    sum.lists += one.lists;
    sum.watches += one.watches;
    sum.events += one.events;
    sum.gone += one.gone;
    sum.failures += one.failures;
    sum.overflows += one.overflows;
  }
  return sum;
}

}  // namespace longhaul::kube
