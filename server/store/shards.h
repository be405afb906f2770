// What servers of a job keep where there are several (decision 0029): of which server a directory is, and how
// checkpoints, or the round logs of a job that goes on, are cut anew for another number of servers, values
// and optimizer's state, bit for bit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/disk/files.h"
#include "longhaul/status.h"
#include "server/tensor/job_image.h"

namespace longhaul::server::store {

// DIR/place.json, which a server that is started again reads before it asks for its place. A job of one
// server has none.
struct StoredPlace {
  uint64_t map_epoch = 0;
  uint32_t server = 0;
  uint32_t servers = 1;
  uint64_t start = 0;  // of the server that has the place: a later start has a higher one

  // "server 2 of 3".
  std::string ToString() const;
  bool operator==(const StoredPlace&) const = default;
};

// None: there is no such file. kDataLoss: it is damaged.
Result<std::optional<StoredPlace>> ReadPlace(Files& files, const std::string& directory);
// Returns when it is on the disk. REQUIRES: the directory is there, and locked.
Status WritePlace(Files& files, const std::string& directory, const StoredPlace& place);

// The whole tensors; images: of all servers, in the order of the shard map. kDataLoss, naming the tensor: a
// part is missing, is of another round or has another optimizer.
Result<JobImage> JoinParts(const std::vector<JobImage>& images);
// The part of each server.
std::vector<JobImage> CutInParts(const JobImage& image, uint32_t servers);

struct ReshardOptions {
  std::vector<std::string> directories;  // of all servers that there were, in any order
  uint32_t servers = 1;                  // that there will be, 1..kMaxServers
  std::string out;                       // OUT/server-1, OUT/server-2, ... are their directories; OUT is new
};
struct Resharded {
  uint64_t rounds = 0;
  uint64_t map_epoch = 0;  // of the new map; 0: one server has none
  bool goes_on = false;    // the job had not ended: the new servers go on with it
  std::vector<std::string> directories = {};
};
// Of a job that has not ended, by the round logs: what each has last, which is of one round when the servers
// have handed the job over together; its workers know the new servers as those that go on. Else of each
// directory the newest checkpoint of a round that all of them have. Errors: kFailedPrecondition (they are not
// all servers of one job, once each; the job goes on at some only; they have no round in common),
// kAlreadyExists (OUT), kDataLoss (as JoinParts), or as LoadCheckpoint, RedoLog and CheckpointWriter.
Result<Resharded> Reshard(Files& files, const ReshardOptions& options);

}  // namespace longhaul::server::store
