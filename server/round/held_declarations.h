// Declarations that wait until more members have said the same (server/round/declarations.h). Not
// thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/instant.h"
#include "longhaul/status.h"
#include "server/tensor/parameter_store.h"

namespace longhaul::server {

class HeldDeclarations {
 public:
  // A client's threads declare one tensor each at a time.
  static constexpr uint32_t kMaxPerMember = 256;

  struct Request {
    uint32_t rank = 0;
    uint32_t request = 0;
    bool has_initial = false;
  };
  struct Held {
    TensorSpec spec;
    double cost = 0;
    Instant since;
    std::vector<Request> requests;  // one of a rank; in order of arrival
    bool Has(uint32_t rank) const;
  };

  explicit HeldDeclarations(uint32_t ranks) : held_(ranks, 0) {}

  // Errors: kSettingsMismatch (held with another shape), kFailedPrecondition (the rank waits for it already),
  // kResourceExhausted (kMaxPerMember).
  Status Add(const TensorSpec& spec, double cost, const Request& request, Instant now);
  // The first that is admissible; it is held no longer.
  std::optional<Held> Take(const std::function<bool(const Held&)>& admissible);
  // The rank's call waits no longer: what it waited for, without it. None: there is no such one.
  std::optional<Held> GiveUp(uint32_t rank, uint32_t request);
  bool Has(const std::string& tensor) const { return all_.contains(tensor); }
  // The rank's worker is gone.
  void Forget(uint32_t rank);
  // What most members wait for; of such, the oldest. Null when nothing is held.
  const Held* MostWanted() const;

 private:
  using Map = std::map<std::string, Held>;
  // Erases what no request asks for any more.
  Map::iterator Remove(Map::iterator held, const std::function<bool(const Request&)>& which);

  Map all_;
  std::vector<uint32_t> held_;  // by rank: requests
};

}  // namespace longhaul::server
