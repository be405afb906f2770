// The cores over a RestClient: what they want is sent, what comes is given to them. One thread; the owner
// polls the client and offers each event:
//
//   client->Poll(limit);
//   while (auto event = client->Next()) { if (!pods.Take(*event)) election.Take(*event); }
//   pods.Run(); election.Run();
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/instant.h"
#include "base/random.h"
#include "operator/api/core/informer.h"
#include "operator/api/core/leader_election.h"
#include "operator/api/rest_client.h"

namespace longhaul::kube::api {

// steady_clock as an Instant: what the cores here are given.
Instant SteadyNow();

// Keeps an Informer up.
class InformerLoop {
 public:
  // what: type, name_space and selectors. The client outlives this; what runs at the end is cancelled.
  InformerLoop(RestClient* client, ApiRequest what, const InformerOptions& options, Random chance)
      : client_(client), what_(std::move(what)), informer_(options), chance_(chance) {}
  ~InformerLoop() { client_->Cancel(call_); }
  InformerLoop(const InformerLoop&) = delete;
  InformerLoop& operator=(const InformerLoop&) = delete;

  // Begins what is due.
  void Run(Instant now = SteadyNow());
  // False: it is of another request. The event may be taken apart.
  bool Take(RestEvent* event, Instant now = SteadyNow());
  // When Run has something to do, unless an event comes first.
  Instant NextDue() const { return due_; }
  Informer& informer() { return informer_; }

 private:
  void Begin(Verb verb, const Informer::Want& want, Instant now);

  RestClient* client_;
  ApiRequest what_;
  Informer informer_;
  Random chance_;
  CallId call_ = 0;  // 0: none runs
  bool watching_ = false;
  Instant due_;
};

// Keeps a lease, or waits for it.
class ElectionLoop {
 public:
  ElectionLoop(RestClient* client, const LeaseOptions& options, Random chance)
      : client_(client), election_(options), chance_(chance) {}
  ~ElectionLoop() { client_->Cancel(call_); }
  ElectionLoop(const ElectionLoop&) = delete;
  ElectionLoop& operator=(const ElectionLoop&) = delete;

  void Run(Instant now = SteadyNow());
  bool Take(RestEvent* event, Instant now = SteadyNow());
  Instant NextDue() const { return election_.NextDue(); }
  LeaderElection& election() { return election_; }
  const LeaderElection& election() const { return election_; }

 private:
  RestClient* client_;
  LeaderElection election_;
  Random chance_;
  CallId call_ = 0;
};

// All pages of a list, one after the other; blocks as RestClient::Call does. The body has all `items`.
// kTooLarge: there are more than max_items. An expired continue token begins the list again, once.
ApiResult ListAll(RestClient* client, ApiRequest list, size_t max_items);

}  // namespace longhaul::kube::api
