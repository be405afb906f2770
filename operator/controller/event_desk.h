// Events about jobs (kubectl describe): each once, counted when it comes again, and never waited for.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "operator/api/rest_client.h"
#include "operator/controller/kinds.h"

namespace longhaul::kube {

struct EventCounters {
  uint64_t sent = 0;
  uint64_t merged = 0;   // said again within kQuiet: not sent
  uint64_t dropped = 0;  // beyond kMostOpen, or refused by the API server
};

class EventDesk {
 public:
  static constexpr size_t kMostOpen = 64;    // at once
  static constexpr size_t kMostKept = 4096;  // known ones; the oldest go first
  static constexpr Duration kQuiet = std::chrono::minutes(1);

  explicit EventDesk(api::RestClient* client) : client_(client) {}
  ~EventDesk();
  EventDesk(const EventDesk&) = delete;
  EventDesk& operator=(const EventDesk&) = delete;

  // event: {"type", "reason", "message"}. wall: since the Unix epoch.
  void Say(const Json& job, const Json& event, Instant now, Instant wall);
  bool Take(const api::RestEvent& event);
  const EventCounters& counters() const { return counters_; }

 private:
  struct Known {
    int64_t count = 0;
    Instant said;
  };
  void Send(const api::ApiRequest& request, std::string name, Json again);

  struct Open {
    std::string name;
    Json again;  // what an event is patched with that is there already
    std::string name_space;
  };
  api::RestClient* client_;
  std::map<std::string, Known> known_;
  std::deque<std::string> order_;  // of known_
  std::map<api::CallId, Open> open_;
  EventCounters counters_;
};

}  // namespace longhaul::kube
