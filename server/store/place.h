// Of which server of its job a directory of checkpoints is (decision 0029): DIR/place.json, which a server
// that is started again reads before it asks for its place. A job of one server has none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "longhaul/status.h"
#include "server/store/files.h"

namespace longhaul::server::store {

struct StoredPlace {
  uint64_t map_epoch = 0;
  uint32_t server = 0;
  uint32_t servers = 1;
  uint64_t start = 0;  // a server was started so many times with this place

  // "server 2 of 3".
  std::string ToString() const;
  bool operator==(const StoredPlace&) const = default;
};

// None: there is no such file. kDataLoss: it is damaged.
Result<std::optional<StoredPlace>> ReadPlace(Files& files, const std::string& directory);
// Returns when it is on the disk. REQUIRES: the directory is there, and locked.
Status WritePlace(Files& files, const std::string& directory, const StoredPlace& place);

}  // namespace longhaul::server::store
