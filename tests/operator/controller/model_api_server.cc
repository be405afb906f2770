#include "tests/operator/controller/model_api_server.h"

#include <chrono>
#include <utility>

#include "operator/reconcile/observed.h"
#include "operator/resource/timestamps.h"

namespace longhaul::kube {
namespace {

using std::chrono::milliseconds;

std::string KeyOf(const Json& object) {
  const std::string name_space = TextAt(object, {"metadata", "namespace"});
  const std::string name = TextAt(object, {"metadata", "name"});
  return name_space.empty() ? name : name_space + "/" + name;
}

std::string Now() {
  return TimestampText(Instant::FromNanoseconds(
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count()));
}

std::string Decoded(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

Json StatusOf(int code, const std::string& reason, const std::string& message) {
  return {
      {"kind", "Status"}, {"status", "Failure"}, {"code", code}, {"reason", reason}, {"message", message}};
}

void SetCondition(Json* pod, const char* type, const char* value) {
  Json& conditions = (*pod)["status"]["conditions"];
  if (!conditions.is_array()) conditions = Json::array();
  for (Json& condition : conditions) {
    if (condition["type"] == type) {
      condition["status"] = value;
      return;
    }
  }
  conditions.push_back({{"type", type}, {"status", value}});
}

bool Selected(const Json& object, const std::string& selector) {
  return selector.empty() || At(object, {"metadata", "labels"}).contains(selector);
}

bool Ended(const Json& pod) {
  const std::string phase = TextAt(pod, {"status", "phase"});
  return phase == "Succeeded" || phase == "Failed";
}

}  // namespace

ModelApiServer::ModelApiServer()
    : http_([this](const Request& request, Peer& peer) { return Serve(request, peer); }) {
  http_.ForgetRequests();
}

// --- what others do

Json ModelApiServer::Create(const std::string& plural, Json object) {
  const std::lock_guard lock(mutex_);
  Target target;
  target.plural = plural;
  return Make(target, std::move(object)).second;
}

std::optional<Json> ModelApiServer::Get(const std::string& plural, const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto of = objects_.find(plural);
  if (of == objects_.end() || !of->second.contains(key)) return std::nullopt;
  return of->second.at(key);
}

std::vector<Json> ModelApiServer::All(const std::string& plural) const {
  const std::lock_guard lock(mutex_);
  std::vector<Json> all;
  if (const auto of = objects_.find(plural); of != objects_.end()) {
    for (const auto& [key, object] : of->second) all.push_back(object);
  }
  return all;
}

std::map<std::string, std::string> ModelApiServer::Phases(const std::string& plural) const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> phases;
  if (const auto of = objects_.find(plural); of != objects_.end()) {
    for (const auto& [key, object] : of->second) phases[key] = TextAt(object, {"status", "phase"});
  }
  return phases;
}

bool ModelApiServer::Change(const std::string& plural, const std::string& key,
                            const std::function<void(Json*)>& change) {
  const std::lock_guard lock(mutex_);
  const auto found = objects_[plural].find(key);
  if (found == objects_[plural].end()) return false;
  Json object = found->second;
  change(&object);
  Put(plural, key, std::move(object), "MODIFIED");
  return true;
}

void ModelApiServer::Remove(const std::string& plural, const std::string& key) {
  const std::lock_guard lock(mutex_);
  Erase(plural, key);
}

void ModelApiServer::RunControllers() {
  const std::lock_guard lock(mutex_);
  std::set<std::string> uids;
  for (const auto& [plural, objects] : objects_) {
    for (const auto& [key, object] : objects) uids.insert(TextAt(object, {"metadata", "uid"}));
  }
  std::vector<std::pair<std::string, std::string>> gone;
  for (const auto& [plural, objects] : objects_) {
    for (const auto& [key, object] : objects) {
      const Json& owners = At(object, {"metadata", "ownerReferences"});
      const bool orphan = owners.is_array() && !owners.empty() && !uids.contains(TextAt(owners[0], {"uid"}));
      const bool deleted = plural == "pods" && object["metadata"].contains("deletionTimestamp");
      if (orphan || deleted) gone.emplace_back(plural, key);
    }
  }
  for (const auto& [plural, key] : gone) Erase(plural, key);
  std::vector<std::string> sets;
  for (const auto& [key, set] : objects_["statefulsets"]) {
    if (NumberAt(set, {"status", "readyReplicas"}, 0) == 0 || !objects_["pods"].contains(key + "-0"))
      sets.push_back(key);
  }
  for (const std::string& key : sets) {
    const std::string pod = key + "-0";
    Json set = objects_["statefulsets"][key];
    if (!objects_["pods"].contains(pod)) {
      Json made = set["spec"]["template"];
      made["apiVersion"] = "v1";
      made["kind"] = "Pod";
      made["metadata"]["name"] = pod.substr(pod.find('/') + 1);
      made["metadata"]["namespace"] = set["metadata"]["namespace"];
      made["metadata"]["ownerReferences"] = Json::array({{{"uid", set["metadata"]["uid"]}}});
      made["status"] = {{"phase", "Running"}, {"hostIP", "192.0.2.7"}, {"podIP", "127.0.0.1"}};
      Target target;
      target.plural = "pods";
      (void)Make(target, std::move(made));
    } else if (NumberAt(set, {"status", "readyReplicas"}, 0) == 0) {
      set["status"]["readyReplicas"] = 1;
      Put("statefulsets", key, std::move(set), "MODIFIED");
    }
  }
}

void ModelApiServer::MakeReady(const std::string& key) {
  (void)Change("pods", key, [](Json* pod) {
    if (Ended(*pod)) return;
    (*pod)["status"]["phase"] = "Running";
    (*pod)["status"]["podIP"] = "10.0.0.1";
    SetCondition(pod, "PodScheduled", "True");
    SetCondition(pod, "Ready", "True");
  });
}

void ModelApiServer::EndPod(const std::string& key, int exit_code) {
  (void)Change("pods", key, [exit_code](Json* pod) {
    (*pod)["status"]["phase"] = exit_code == 0 ? "Succeeded" : "Failed";
    (*pod)["status"]["containerStatuses"] =
        Json::array({{{"name", "trainer"}, {"state", {{"terminated", {{"exitCode", exit_code}}}}}}});
  });
}

std::vector<std::string> ModelApiServer::Workers() const {
  std::vector<std::string> keys;
  const std::lock_guard lock(mutex_);
  const auto pods = objects_.find("pods");
  if (pods == objects_.end()) return keys;
  for (const auto& [key, pod] : pods->second) {
    if (TextAt(pod, {"metadata", "labels", kRoleLabel}) == "worker") keys.push_back(key);
  }
  return keys;
}

void ModelApiServer::GoAway() {
  http_.RefuseConnections(true);
  http_.DropConnections();
}

void ModelApiServer::Return() { http_.RefuseConnections(false); }

void ModelApiServer::Compact() {
  const std::lock_guard lock(mutex_);
  history_.clear();
  floor_ = ++version_;
  changed_.notify_all();
}

void ModelApiServer::Fail(double chance, uint64_t seed) {
  const std::lock_guard lock(mutex_);
  chance_ = chance;
  random_ = Random(seed);
}

void ModelApiServer::Forbid(const std::string& what) {
  const std::lock_guard lock(mutex_);
  forbidden_ = what;
}

void ModelApiServer::Misread(const std::string& plural, std::function<void(int*, Json*)> change) {
  const std::lock_guard lock(mutex_);
  misread_ = plural;
  change_ = std::move(change);
}

int ModelApiServer::reviews() const {
  const std::lock_guard lock(mutex_);
  return reviews_;
}

uint64_t ModelApiServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

std::map<std::string, int> ModelApiServer::made() const {
  const std::lock_guard lock(mutex_);
  return made_;
}

std::vector<std::string> ModelApiServer::said(const std::string& reason) const {
  std::vector<std::string> messages;
  for (const Json& event : All("events")) {
    if (event["reason"] == reason) messages.push_back(event["message"]);
  }
  return messages;
}

// --- requests

ModelApiServer::Target ModelApiServer::Parse(const std::string& target) {
  Target parsed;
  const size_t question = std::min(target.find('?'), target.size());
  std::vector<std::string> parts;
  for (size_t at = 1; at < question;) {
    const size_t end = std::min(target.find('/', at), question);
    parts.push_back(Decoded(target.substr(at, end - at)));
    at = end + 1;
  }
  size_t next = parts[0] == "api" ? 2 : 3;
  if (next < parts.size() && parts[next] == "namespaces" && next + 2 < parts.size()) {
    parsed.name_space = parts[next + 1];
    next += 2;
  }
  if (next < parts.size()) parsed.plural = parts[next];
  if (next + 1 < parts.size()) parsed.name = parts[next + 1];
  if (next + 2 < parts.size()) parsed.part = parts[next + 2];
  for (size_t at = question + 1; at < target.size();) {
    const size_t end = std::min(target.find('&', at), target.size());
    const std::string pair = target.substr(at, end - at);
    parsed.query[pair.substr(0, pair.find('='))] = Decoded(pair.substr(pair.find('=') + 1));
    at = end + 1;
  }
  return parsed;
}

void ModelApiServer::Refuse(Peer& peer, int code, const std::string& reason,
                            const std::string& message) const {
  peer.Answer(code, StatusOf(code, reason, message).dump());
}

bool ModelApiServer::Serve(const Request& request, Peer& peer) {
  const Target target = Parse(request.target);
  if (target.query.contains("watch")) return Watch(target, peer);
  int fault = 0;
  {
    const std::lock_guard lock(mutex_);
    const bool list = request.method == "GET" && target.name.empty();
    if (!list) ++requests_;
    if (random_.Chance(chance_)) fault = 1 + static_cast<int>(random_.Below(4));
  }
  switch (fault) {
    case 1:
      peer.Answer(429, StatusOf(429, "TooManyRequests", "slower").dump(), "Retry-After: 0\r\n");
      return true;
    case 2:
      Refuse(peer, 500, "InternalError", "etcdserver: leader changed");
      return true;
    case 3:
      Refuse(peer, 503, "ServiceUnavailable", "apiserver is shutting down");
      return true;
    default:
      break;
  }
  if (request.method == "GET" && target.name.empty()) {
    if (fault != 0) {
      peer.Reset();
      return false;
    }
    List(target, peer);
    return true;
  }
  const Json body = request.body.empty() ? Json() : Json::parse(request.body, nullptr, false);
  std::pair<int, Json> answer;
  {
    const std::lock_guard lock(mutex_);
    answer = Write(request.method, target, body);
    if (request.method == "GET" && target.plural == misread_ && change_)
      change_(&answer.first, &answer.second);
  }
  if (fault != 0) {  // done, and the answer is lost
    peer.Reset();
    return false;
  }
  Answer(peer, answer.first, answer.second);
  return true;
}

void ModelApiServer::List(const Target& target, Peer& peer) {
  Json items = Json::array();
  const std::string selector = target.query.contains("labelSelector") ? target.query.at("labelSelector") : "";
  const size_t limit = target.query.contains("limit") ? std::stoul(target.query.at("limit")) : 500;
  std::string from = target.query.contains("continue") ? target.query.at("continue") : "";
  std::string next, version;
  {
    const std::lock_guard lock(mutex_);
    // The version of the first page: what changes while there are pages to come is told by the watch.
    version = from.empty() ? std::to_string(version_) : from.substr(0, from.find(':'));
    if (!from.empty()) from = from.substr(from.find(':') + 1);
    for (const auto& [key, object] : objects_[target.plural]) {
      const bool here = target.name_space.empty() || key.starts_with(target.name_space + "/");
      if (!here || key <= from || !Selected(object, selector)) continue;
      if (items.size() == limit) {
        next = version + ":" + KeyOf(items.back());
        break;
      }
      items.push_back(object);
    }
  }
  for (Json& item : items) {  // as the API server lists its own kinds
    item.erase("kind");
    item.erase("apiVersion");
  }
  Json metadata = {{"resourceVersion", version}};
  if (!next.empty()) metadata["continue"] = next;
  Answer(peer, 200, {{"kind", "List"}, {"metadata", metadata}, {"items", items}});
}

bool ModelApiServer::Watch(const Target& target, Peer& peer) {
  uint64_t from = std::stoull(target.query.at("resourceVersion"));
  const std::string selector = target.query.contains("labelSelector") ? target.query.at("labelSelector") : "";
  peer.BeginChunks();
  for (;;) {
    std::string lines;
    {
      std::unique_lock lock(mutex_);
      if (from < floor_) {
        lock.unlock();
        peer.Chunk(Json({{"type", "ERROR"}, {"object", StatusOf(410, "Expired", "too old resource version")}})
                       .dump() +
                   "\n");
        peer.EndChunks();
        return true;
      }
      auto at = std::lower_bound(history_.begin(), history_.end(), from + 1,
                                 [](const Happened& one, uint64_t version) { return one.version < version; });
      for (; at != history_.end(); ++at) {
        from = at->version;
        const bool here = target.name_space.empty() || KeyOf(at->object).starts_with(target.name_space + "/");
        if (at->plural != target.plural || !here || !Selected(at->object, selector)) continue;
        lines += Json({{"type", at->type}, {"object", at->object}}).dump() + "\n";
      }
      if (lines.empty()) changed_.wait_for(lock, milliseconds(20));
    }
    if (!lines.empty() ? !peer.Chunk(lines) : !peer.Pause(milliseconds(1))) return false;
    if (http_.ending()) return false;
  }
}

std::pair<int, Json> ModelApiServer::Write(const std::string& method, const Target& target,
                                           const Json& body) {
  if (target.plural == "subjectaccessreviews") return Review(body);
  if (method + " " + target.plural == forbidden_)
    return {403, StatusOf(403, "Forbidden", "exceeded quota: " + forbidden_)};
  if (method == "POST") return Make(target, body);
  const std::string key = target.name_space.empty() ? target.name : target.name_space + "/" + target.name;
  auto& objects = objects_[target.plural];
  const auto found = objects.find(key);
  if (found == objects.end())
    return {404, StatusOf(404, "NotFound", target.plural + " \"" + key + "\" not found")};
  if (method == "GET") return {200, found->second};
  if (method == "DELETE") return Delete(target, body);
  if (method == "PATCH") return Patch(target, body);
  if (TextAt(body, {"metadata", "resourceVersion"}) != TextAt(found->second, {"metadata", "resourceVersion"}))
    return {409, StatusOf(409, "Conflict", "the object has been modified")};
  Json object = body;
  object["metadata"]["uid"] = found->second["metadata"]["uid"];
  Put(target.plural, key, std::move(object), "MODIFIED");
  return {200, objects[key]};
}

std::pair<int, Json> ModelApiServer::Review(const Json& body) {
  ++reviews_;
  Json answer = body;
  const Json& what = At(body, {"spec", "resourceAttributes"});
  const bool use = TextAt(what, {"verb"}) == "use" && TextAt(what, {"resource"}) == "trainingprofiles" &&
                   TextAt(what, {"group"}) == "longhaul.dev" && TextAt(what, {"name"}) == "a100";
  bool has_role = may_use.contains(TextAt(body, {"spec", "user"}));
  for (const Json& group : At(body, {"spec", "groups"}))
    has_role |= may_use.contains("group " + group.get<std::string>());
  answer["status"] = {{"allowed", use && has_role}};
  return {201, answer};
}

std::pair<int, Json> ModelApiServer::Make(const Target& target, Json object) {
  const std::string key = KeyOf(object);
  if (objects_[target.plural].contains(key))
    return {409, StatusOf(409, "AlreadyExists", target.plural + " \"" + key + "\" already exists")};
  object["metadata"]["uid"] = "uid-" + std::to_string(next_uid_++);
  object["metadata"]["creationTimestamp"] = Now();
  if (target.plural == "pods") {
    ++made_[key];
    if (!object.contains("status")) object["status"]["phase"] = "Pending";
  }
  Put(target.plural, key, std::move(object), "ADDED");
  return {201, objects_[target.plural][key]};
}

std::pair<int, Json> ModelApiServer::Delete(const Target& target, const Json& options) {
  const std::string key = target.name_space + "/" + target.name;
  Json object = objects_[target.plural][key];
  const std::string uid = TextAt(options, {"preconditions", "uid"});
  if (!uid.empty() && uid != object["metadata"]["uid"])
    return {409, StatusOf(409, "Conflict", "the UID in the precondition is another one")};
  const Json& finalizers = At(object, {"metadata", "finalizers"});
  const bool held = finalizers.is_array() && !finalizers.empty();
  const bool at_once = NumberAt(options, {"gracePeriodSeconds"}, 30) == 0 || Ended(object);
  if (held || (target.plural == "pods" && !at_once)) {
    object["metadata"]["deletionTimestamp"] = Now();
    Put(target.plural, key, object, "MODIFIED");
  } else {
    Erase(target.plural, key);
  }
  return {200, object};
}

// Server-side apply of what this operator applies: the whole status, or the finalizers; merge patches of
// events.
std::pair<int, Json> ModelApiServer::Patch(const Target& target, const Json& patch) {
  const std::string key = target.name_space + "/" + target.name;
  Json object = objects_[target.plural][key];
  for (const char* field : {"resourceVersion", "uid"}) {
    const std::string wanted = TextAt(patch, {"metadata", field});
    if (!wanted.empty() && wanted != TextAt(object, {"metadata", field}))
      return {409, StatusOf(409, "Conflict", std::string("another ") + field)};
  }
  if (target.part == "status") {
    object["status"] = patch["status"];
  } else if (patch.contains("metadata") && patch["metadata"].contains("finalizers")) {
    object["metadata"]["finalizers"] = patch["metadata"]["finalizers"];
  } else {
    object.merge_patch(patch);
  }
  const bool released = object["metadata"].contains("deletionTimestamp") && target.plural == "trainingjobs" &&
                        At(object, {"metadata", "finalizers"}).empty();
  if (released) {
    Erase(target.plural, key);
    return {200, object};
  }
  Put(target.plural, key, std::move(object), "MODIFIED");
  return {200, objects_[target.plural][key]};
}

void ModelApiServer::Put(const std::string& plural, const std::string& key, Json object, const char* type) {
  object["metadata"]["resourceVersion"] = std::to_string(++version_);
  history_.push_back({version_, plural, type, object});
  objects_[plural][key] = std::move(object);
  changed_.notify_all();
}

void ModelApiServer::Erase(const std::string& plural, const std::string& key) {
  const auto found = objects_[plural].find(key);
  if (found == objects_[plural].end()) return;
  Json object = std::move(found->second);
  objects_[plural].erase(found);
  object["metadata"]["resourceVersion"] = std::to_string(++version_);
  history_.push_back({version_, plural, "DELETED", std::move(object)});
  changed_.notify_all();
}

}  // namespace longhaul::kube
