// An API server in memory, over HTTP, as far as the operator uses one: objects of every kind with versions,
// lists by pages, watches with a history, compare-and-swap, preconditions, reviews of access; with the
// controllers and kubelets that a job needs, and with faults.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "operator/resource/fields.h"
#include "tests/operator/api/fault_server.h"

namespace longhaul::kube {

class ModelApiServer {
 public:
  using Request = api::FaultRequest;
  using Peer = api::FaultServer::Peer;

  ModelApiServer();

  std::string url() const { return http_.url(); }

  // As a person, a kubelet or a controller: plural is "pods", key "team/resnet-node-0".
  Json Create(const std::string& plural, Json object);
  std::optional<Json> Get(const std::string& plural, const std::string& key) const;
  std::vector<Json> All(const std::string& plural) const;
  std::map<std::string, std::string> Phases(const std::string& plural) const;  // key -> status.phase
  bool Change(const std::string& plural, const std::string& key, const std::function<void(Json*)>& change);
  void Remove(const std::string& plural, const std::string& key);

  // StatefulSets have a pod that becomes ready, pods that are deleted go, and so does what belonged to an
  // object that is gone.
  void RunControllers();
  // Worker pods: on a machine, running and ready; at their end.
  void MakeReady(const std::string& key);
  void EndPod(const std::string& key, int exit_code);
  std::vector<std::string> Workers() const;  // keys of pods that are there

  // Faults: all connections are cut, and refused until Return.
  void GoAway();
  void Return();
  // What watches could go on from is forgotten: they get 410.
  void Compact();
  // Each request that is no watch fails with this chance: 429, 500, 503, or an answer that is lost.
  void Fail(double chance, uint64_t seed);
  // Requests of this kind get 403: "POST pods"; "": none.
  void Forbid(const std::string& what);
  // An answer to a GET of one object of `plural` becomes what `change` makes of it; null: as it is.
  void Misread(const std::string& plural, std::function<void(int* code, Json* object)> change);

  std::set<std::string> may_use;  // users, and groups as "group vision"; set it before requests come
  int reviews() const;
  uint64_t requests() const;  // but for lists and watches
  // How often each pod was made, by key.
  std::map<std::string, int> made() const;
  std::vector<std::string> said(const std::string& reason) const;  // messages of events

 private:
  struct Happened {
    uint64_t version;
    std::string plural, type;
    Json object;
  };
  struct Target {
    std::string plural, name_space, name, part, kind_version;
    std::map<std::string, std::string> query;
  };
  static Target Parse(const std::string& target);

  bool Serve(const Request& request, Peer& peer);
  void Answer(Peer& peer, int code, const Json& body) const { peer.Answer(code, body.dump()); }
  void Refuse(Peer& peer, int code, const std::string& reason, const std::string& message) const;
  void List(const Target& target, Peer& peer);
  bool Watch(const Target& target, Peer& peer);
  std::pair<int, Json> Write(const std::string& method, const Target& target, const Json& body);
  std::pair<int, Json> Review(const Json& body);
  std::pair<int, Json> Make(const Target& target, Json object);
  std::pair<int, Json> Delete(const Target& target, const Json& options);
  std::pair<int, Json> Patch(const Target& target, const Json& patch);
  void Put(const std::string& plural, const std::string& key, Json object, const char* type);
  void Erase(const std::string& plural, const std::string& key);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::map<std::string, Json>> objects_;
  std::vector<Happened> history_;
  uint64_t version_ = 100, floor_ = 0, next_uid_ = 1;
  double chance_ = 0;
  std::string forbidden_;
  std::string misread_;
  std::function<void(int*, Json*)> change_;
  Random random_{1};
  int reviews_ = 0;
  uint64_t requests_ = 0;
  std::map<std::string, int> made_;
  api::FaultServer http_;  // the last: its threads use the rest
};

}  // namespace longhaul::kube
