#include "operator/controller/free_gpus.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace longhaul::kube {
namespace {

// Extended resources are whole numbers, as text or as a number.
int64_t CountOf(const Json& quantity) {
  if (quantity.is_number_integer()) return std::max<int64_t>(0, quantity.get<int64_t>());
  if (!quantity.is_string()) return 0;
  const auto& text = quantity.get_ref<const std::string&>();
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  return error == std::errc() && end == text.data() + text.size() ? std::max<int64_t>(0, count) : 0;
}

bool Tolerates(const Json& toleration, const Json& taint) {
  const std::string effect = TextAt(toleration, {"effect"}), key = TextAt(toleration, {"key"});
  if (!effect.empty() && effect != TextAt(taint, {"effect"})) return false;
  const bool exists = TextAt(toleration, {"operator"}) == "Exists";
  if (key.empty()) return exists;
  return key == TextAt(taint, {"key"}) &&
         (exists || TextAt(toleration, {"value"}) == TextAt(taint, {"value"}));
}

bool Tolerated(const Json& taints, const Json& tolerations) {
  if (!taints.is_array()) return true;
  return std::ranges::all_of(taints, [&](const Json& taint) {
    if (TextAt(taint, {"effect"}) == "PreferNoSchedule") return true;
    return tolerations.is_array() && std::ranges::any_of(tolerations, [&](const Json& toleration) {
             return Tolerates(toleration, taint);
           });
  });
}

template <typename Labels>
bool Has(const Labels& labels, const std::string& key, const std::string& value) {
  const auto found = labels.find(key);
  return found != labels.end() && found->second == value;
}

}  // namespace

void Machines::AddNode(const Json& node) {
  Machine machine;
  const Json& labels = At(node, {"metadata", "labels"});
  if (labels.is_object()) {
    for (const auto& [key, value] : labels.items()) {
      if (value.is_string()) machine.labels[key] = value.get<std::string>();
    }
  }
  machine.taints = At(node, {"spec", "taints"});
  machine.schedulable = At(node, {"spec", "unschedulable"}) != true;
  const Json& allocatable = At(node, {"status", "allocatable"});
  if (allocatable.is_object()) {
    for (const auto& [name, quantity] : allocatable.items()) {
      if (name.find('/') != std::string::npos) machine.free[name] = CountOf(quantity);
    }
  }
  machines_[TextAt(node, {"metadata", "name"})] = std::move(machine);
}

void Machines::AddPod(const Json& pod) {
  const auto found = machines_.find(TextAt(pod, {"spec", "nodeName"}));
  const std::string phase = TextAt(pod, {"status", "phase"});
  if (found == machines_.end() || phase == "Succeeded" || phase == "Failed") return;
  const Json& containers = At(pod, {"spec", "containers"});
  if (!containers.is_array()) return;
  for (const Json& container : containers) {
    const Json& requests = At(container, {"resources", "requests"});
    if (!requests.is_object()) continue;
    for (const auto& [name, quantity] : requests.items()) {
      const auto free = found->second.free.find(name);
      if (free != found->second.free.end()) free->second -= CountOf(quantity);
    }
  }
}

std::vector<FreeGpus> Machines::Free(const TrainingJobSpec& spec, const NodeConfig& config) const {
  std::vector<FreeGpus> all;
  const Json& selector = At(config.node_template, {"spec", "nodeSelector"});
  const Json& tolerations = At(config.node_template, {"spec", "tolerations"});
  for (const auto& [name, of_name] : machines_) {
    const Machine& machine = of_name;  // clang 14 captures no binding
    const auto free = machine.free.find(config.gpu_resource);
    if (free == machine.free.end() || free->second <= 0 || !machine.schedulable) continue;
    bool fits = Tolerated(machine.taints, tolerations);
    if (selector.is_object()) {
      for (const auto& [key, value] : selector.items())
        fits = fits && value.is_string() && Has(machine.labels, key, value.get<std::string>());
    }
    if (!fits) continue;
    const int gpus = static_cast<int>(std::min<int64_t>(free->second, kMostGpus));
    if (spec.sites.empty()) all.push_back({"", gpus});
    for (const Site& site : spec.sites) {
      const bool here =
          site.kubeconfig_secret.empty() && std::ranges::all_of(site.node_selector, [&](const auto& label) {
            return Has(machine.labels, label.first, label.second);
          });
      if (!here) continue;
      all.push_back({site.name, gpus});
      break;  // a machine is given once
    }
  }
  return all;
}

const Machines* FreeSurvey::Look(Instant now) {
  if (call_ == 0 && at_ && now - *at_ < kLasts) return &machines_;
  if (call_ == 0) {
    ++surveys_;
    next_ = {};
    pods_ = false;
    token_.clear();
    Ask();
  }
  return nullptr;
}

void FreeSurvey::Ask() {
  api::ApiRequest list;
  list.verb = api::Verb::kList;
  list.type = FindKind(pods_ ? "Pod" : "Node")->type;
  list.continue_token = token_;
  list.time_limit = std::chrono::seconds(15);
  if (pods_) list.field_selector = "status.phase!=Succeeded,status.phase!=Failed";
  list.page_limit = page_;
  const Result<api::CallId> started = client_->Start(list);
  call_ = started.ok() ? *started : 0;
}

std::optional<bool> FreeSurvey::Take(const api::RestEvent& event, Instant now) {
  if (call_ == 0 || event.call != call_) return std::nullopt;
  call_ = 0;
  const api::ApiResult& page = event.result;
  if (page.code == api::ApiCode::kTooLarge && page_ > 1) {
    page_ = std::max(1u, page_ / 4);
    Ask();
    return call_ == 0;
  }
  if (!page.ok()) {
    trouble_ =
        std::string(pods_ ? "pods" : "machines") + " of the cluster cannot be listed: " + page.ToString();
    machines_ = {};
    at_ = now;
    return true;
  }
  const Json& items = At(page.body, {"items"});
  if (items.is_array()) {
    for (const Json& item : items) pods_ ? next_.AddPod(item) : next_.AddNode(item);
  }
  token_ = TextAt(page.body, {"metadata", "continue"});
  page_ = std::min(kPage, page_ * 2);
  if (token_.empty() && pods_) {
    machines_ = std::exchange(next_, {});
    trouble_.clear();
    at_ = now;
    return true;
  }
  if (token_.empty()) pods_ = true;
  Ask();
  // Where it cannot be asked now, it begins anew when a job looks.
  return call_ == 0;
}

}  // namespace longhaul::kube
