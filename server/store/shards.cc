#include "server/store/shards.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/placement.h"
#include "server/store/checkpoint.h"
#include "server/store/hashed_file.h"
#include "server/store/redo_log.h"

namespace longhaul::server::store {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxBytes = 4096;  // four numbers; what is longer is something else

std::string PathIn(const std::string& directory) { return directory + "/place.json"; }

using Array = std::shared_ptr<const ZeroedArray<float>>;

// Where a server is in the map, and which of its checkpoints are good as far as they say.
struct Source {
  std::string directory;
  StoredPlace place;
  std::map<uint64_t, std::string> by_rounds;  // path of the newest one of that round
  std::optional<RedoLog::Loaded> log = {};    // of a job that has not ended
  std::unique_ptr<FileLock> lock = {};        // then: no server writes it
};

struct Part {
  uint32_t server = 0;
  const TensorImage* image = nullptr;
};

Status Damaged(const std::string& tensor, const std::string& what) {
  return {StatusCode::kDataLoss, "tensor \"" + tensor + "\"" + what};
}

Status CheckParts(const std::string& name, const std::vector<Part>& parts, uint64_t count, uint32_t servers) {
  const std::vector<Shard> shards = PlaceTensor(name, count, servers);
  const auto held = [](const std::vector<Part>& all, uint32_t server) {
    const auto found = std::ranges::find(all, server, &Part::server);
    return found == all.end() ? 0 : found->image->count;
  };
  for (const Shard& shard : shards) {
    if (held(parts, shard.server) == shard.count) continue;
    return Damaged(name, ": the part of server " + std::to_string(shard.server + 1) +
                             " is missing, or is of another placement");
  }
  if (parts.size() != shards.size()) return Damaged(name, " has parts at servers that have none of it");
  const TensorImage& first = *parts.front().image;
  for (const Part& part : parts) {
    if (part.image->rounds != first.rounds || part.image->round != first.round) {
      return Damaged(name, ": one part is of round " + std::to_string(first.rounds) + ", another of round " +
                               std::to_string(part.image->rounds));
    }
    if (part.image->optimizer != first.optimizer) return Damaged(name, "'s parts have different optimizers");
  }
  return {};
}

const Array& StateOf(const TensorImage& image, size_t array) {
  return array == 0 ? image.values : image.state[array - 1].values;
}

TensorImage LikeButOf(const TensorImage& image, uint64_t count) {
  TensorImage like{.name = image.name, .count = count, .optimizer = image.optimizer, .rounds = image.rounds};
  like.round = image.round;
  like.shift_epoch = image.shift_epoch;
  // How often each session has pushed, and which ones it has followed. Which chunks counted is not asked for
  // any more, as nothing was on its way.
  for (Counted counted : image.counted) {
    counted.chunks.clear();
    like.counted.push_back(std::move(counted));
  }
  for (const auto& state : image.state) like.state.push_back({state.name, nullptr});
  return like;
}

void SetArray(TensorImage* image, size_t array, Array values) {
  (array == 0 ? image->values : image->state[array - 1].values) = std::move(values);
}

Result<Source> Look(Files& files, const std::string& directory) {
  Source source{.directory = directory, .place = {}, .by_rounds = {}};
  const auto read = [&]() -> Status {
    auto log = RedoLog::Open(&files, directory);
    if (!log.ok()) return log.status();
    source.log = log->TakeLoaded();
    if (source.log && source.log->over) source.log.reset();
    return {};
  };
  if (Status first = read(); !first.ok()) return first;
  if (source.log) {
    auto lock = files.Lock(directory + "/lock");
    if (!lock.ok()) return lock.status();
    source.lock = *std::move(lock);
    if (Status again = read(); !again.ok()) return again;
  }
  const auto place = ReadPlace(files, directory);
  if (!place.ok()) return place.status();
  if (*place) source.place = **place;
  const auto found = ListCheckpoints(files, directory);
  if (!found.ok()) return found.status();
  for (const CheckpointPath& checkpoint : *found) {  // newest first
    const auto manifest = ReadManifest(files, checkpoint.path);
    if (manifest.ok()) source.by_rounds.emplace(manifest->rounds, checkpoint.path);
  }
  return source;
}

// In the order of the map. kFailedPrecondition: they are not all of one.
Result<std::vector<Source>> LookAtAll(Files& files, const std::vector<std::string>& directories) {
  std::vector<Source> sources(directories.size());
  std::set<uint32_t> seen;
  for (const std::string& directory : directories) {
    auto source = Look(files, directory);
    if (!source.ok()) return source.status();
    const StoredPlace place = source->place;
    if (place.servers != directories.size()) {
      return Status(StatusCode::kFailedPrecondition, directory + " is of " + place.ToString() +
                                                         ", and there are " +
                                                         std::to_string(directories.size()) + " directories");
    }
    if (!seen.insert(place.server).second) {
      return Status(StatusCode::kFailedPrecondition, directory + " and " + sources[place.server].directory +
                                                         " are both of " + place.ToString());
    }
    sources[place.server] = *std::move(source);
  }
  for (const Source& source : sources) {
    if (source.place.map_epoch == sources.front().place.map_epoch) continue;
    return Status(
        StatusCode::kFailedPrecondition,
        source.directory + " is of another epoch of the shard map than " + sources.front().directory);
  }
  return sources;
}

// The newest round that every server has a checkpoint of.
std::optional<uint64_t> CommonRound(const std::vector<Source>& sources) {
  for (auto it = sources.front().by_rounds.rbegin(); it != sources.front().by_rounds.rend(); ++it) {
    if (std::ranges::all_of(sources, [&](const Source& s) { return s.by_rounds.contains(it->first); }))
      return it->first;
  }
  return std::nullopt;
}

}  // namespace

// --- The place ---

std::string StoredPlace::ToString() const {
  return "server " + std::to_string(server + 1) + " of " + std::to_string(servers);
}

Result<std::optional<StoredPlace>> ReadPlace(Files& files, const std::string& directory) {
  auto file = files.Open(PathIn(directory));
  if (file.status().code() == StatusCode::kNotFound) return std::optional<StoredPlace>();
  if (!file.ok()) return file.status();
  const Status damaged(StatusCode::kDataLoss,
                       PathIn(directory) + " does not say of which server the directory is");
  if ((*file)->size() > kMaxBytes) return damaged;
  std::vector<uint8_t> bytes((*file)->size());
  if (Status read = (*file)->Read(bytes); !read.ok()) return read;
  const json value = json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  StoredPlace place;
  for (const char* key : {"map_epoch", "server", "servers", "start"}) {
    if (!value.is_object() || !value.contains(key) || !value[key].is_number_unsigned()) return damaged;
  }
  place.map_epoch = value["map_epoch"];
  place.start = value["start"];
  const uint64_t server = value["server"];
  const uint64_t servers = value["servers"];
  if (place.map_epoch == 0 || server >= servers || servers > kMaxServers) return damaged;
  place.server = static_cast<uint32_t>(server);
  place.servers = static_cast<uint32_t>(servers);
  return std::optional(place);
}

Status WritePlace(Files& files, const std::string& directory, const StoredPlace& place) {
  const json value = {{"map_epoch", place.map_epoch},
                      {"server", place.server},
                      {"servers", place.servers},
                      {"start", place.start}};
  const std::string text = value.dump() + "\n";
  return ReplaceFile(files, PathIn(directory), BytesOf(text));
}

// --- Another number of servers ---

Result<JobImage> JoinParts(const std::vector<JobImage>& images) {
  std::map<std::string, std::vector<Part>> tensors;
  JobImage joined;
  for (uint32_t server = 0; server < images.size(); ++server) {
    for (const TensorImage& tensor : images[server].tensors)
      tensors[tensor.name].push_back({server, &tensor});
    joined.rounds = std::max(joined.rounds, images[server].rounds);
  }
  for (const auto& [name, parts] : tensors) {
    uint64_t count = 0;
    for (const Part& part : parts) count += part.image->count;
    const auto servers = static_cast<uint32_t>(images.size());
    if (Status fits = CheckParts(name, parts, count, servers); !fits.ok()) return fits;
    TensorImage whole = LikeButOf(*parts.front().image, count);
    for (size_t array = 0; array <= whole.state.size(); ++array) {
      auto values = std::make_shared<ZeroedArray<float>>(count);
      for (const Shard& shard : PlaceTensor(name, count, servers)) {
        const TensorImage& part = *std::ranges::find(parts, shard.server, &Part::server)->image;
        std::ranges::copy(StateOf(part, array)->span(),
                          values->span().begin() + static_cast<ptrdiff_t>(shard.first));
      }
      SetArray(&whole, array, std::move(values));
    }
    joined.tensors.push_back(std::move(whole));
  }
  return joined;
}

std::vector<JobImage> CutInParts(const JobImage& image, uint32_t servers) {
  std::vector<JobImage> images(servers);
  for (JobImage& each : images) each.rounds = image.rounds;
  for (const TensorImage& tensor : image.tensors) {
    for (const Shard& shard : PlaceTensor(tensor.name, tensor.count, servers)) {
      TensorImage part = LikeButOf(tensor, shard.count);
      for (size_t array = 0; array <= tensor.state.size(); ++array) {
        auto values = std::make_shared<ZeroedArray<float>>(shard.count);
        std::ranges::copy(StateOf(tensor, array)->span().subspan(shard.first, shard.count),
                          values->span().begin());
        SetArray(&part, array, std::move(values));
      }
      images[shard.server].tensors.push_back(std::move(part));
    }
  }
  return images;
}

namespace {

// What is written for each server of the new map, in its directory.
Status WriteEach(Files& files, const ReshardOptions& options, const JobImage& whole,
                 const std::function<Status(uint32_t, const std::string&, JobImage)>& write,
                 Resharded* resharded) {
  if (Status made = files.MakeDirectory(options.out); !made.ok()) return made;
  std::vector<JobImage> parts = CutInParts(whole, options.servers);
  for (uint32_t server = 0; server < options.servers; ++server) {
    const std::string directory = options.out + "/server-" + std::to_string(server + 1);
    if (Status written = write(server, directory, std::move(parts[server])); !written.ok()) return written;
    if (options.servers > 1) {
      const StoredPlace place{
          .map_epoch = resharded->map_epoch, .server = server, .servers = options.servers};
      if (Status stored = WritePlace(files, directory, place); !stored.ok()) return stored;
    }
    resharded->directories.push_back(directory);
  }
  return {};
}

Result<Resharded> ReshardCheckpoints(Files& files, const ReshardOptions& options,
                                     const std::vector<Source>& sources, Resharded resharded) {
  const auto rounds = CommonRound(sources);
  if (!rounds)
    return Status(StatusCode::kFailedPrecondition,
                  "the directories have no checkpoint of one round in common");
  std::vector<JobImage> images;
  CheckpointWriter::Description about;
  for (const Source& source : sources) {
    auto loaded = LoadCheckpoint(files, source.by_rounds.at(*rounds));
    if (!loaded.ok()) return loaded.status();
    const Manifest& manifest = loaded->manifest;
    if (!images.empty() && (manifest.job != about.job || manifest.settings != about.settings)) {
      return Status(StatusCode::kFailedPrecondition,
                    loaded->path + " is of another job than " + sources.front().directory);
    }
    about = {.job = manifest.job, .settings = manifest.settings, .written = manifest.written};
    images.push_back(std::move(loaded->image));
  }
  const auto whole = JoinParts(images);
  if (!whole.ok()) return whole.status();
  resharded.rounds = *rounds;
  const auto write = [&](uint32_t, const std::string& directory, const JobImage& part) -> Status {
    auto writer = CheckpointWriter::Open(&files, directory, 1);
    return writer.ok() ? writer->Write(part, about).status() : writer.status();
  };
  Status written = WriteEach(files, options, *whole, write, &resharded);
  return written.ok() ? Result<Resharded>(resharded) : written;
}

Result<Resharded> ReshardLogs(Files& files, const ReshardOptions& options, std::vector<Source> sources,
                              Resharded resharded) {
  const RedoLog::About about = sources.front().log->about;
  uint16_t symbol_bytes = sources.front().log->run.symbol_bytes;
  std::vector<uint64_t> numbers;
  std::vector<JobImage> images;
  for (Source& source : sources) {
    RedoLog::Loaded& log = *source.log;
    const bool same = log.about.job == about.job && log.about.settings == about.settings &&
                      log.about.world_size == about.world_size;
    if (!same) {
      return Status(StatusCode::kFailedPrecondition, "the round log in " + source.directory +
                                                         " is of another job than that in " +
                                                         sources.front().directory);
    }
    symbol_bytes = std::min(symbol_bytes, log.run.symbol_bytes);
    numbers.push_back(log.run.number);
    images.push_back({.tensors = std::move(log.tensors)});
    for (const TensorImage& tensor : images.back().tensors)
      images.back().rounds = std::max(images.back().rounds, tensor.rounds);
  }
  const auto whole = JoinParts(images);
  if (!whole.ok()) {
    return Status(whole.status().code(), whole.status().message() +
                                             "; the servers have not handed the job over together "
                                             "(longhaul hand-over), and can go on with it as they are");
  }
  resharded.rounds = whole->rounds;
  resharded.goes_on = true;
  const uint64_t identity = JobIdentity(numbers);
  const auto write = [&](uint32_t server, const std::string& directory, JobImage part) -> Status {
    if (Status made = files.MakeDirectory(directory); !made.ok()) return made;
    auto log = RedoLog::Open(&files, directory);
    if (!log.ok()) return log.status();
    const ResumedJob run{.number = NextJobNumber(identity, server), .symbol_bytes = symbol_bytes};
    if (Status begun = log->Begin(about, run, /*goes_on=*/false); !begun.ok()) return begun;
    std::vector<RedoLog::Image> tensors;
    for (TensorImage& tensor : part.tensors)
      tensors.push_back(std::make_shared<const TensorImage>(std::move(tensor)));
    return log->Append(tensors);
  };
  Status written = WriteEach(files, options, *whole, write, &resharded);
  return written.ok() ? Result<Resharded>(resharded) : written;
}

}  // namespace

Result<Resharded> Reshard(Files& files, const ReshardOptions& options) {
  auto sources = LookAtAll(files, options.directories);
  if (!sources.ok()) return sources.status();
  Resharded resharded;
  if (options.servers > 1) resharded.map_epoch = sources->front().place.map_epoch + 1;
  const auto goes_on = [](const Source& source) { return source.log.has_value(); };
  const auto ended = std::ranges::find_if_not(*sources, goes_on);
  if (ended == sources->end()) return ReshardLogs(files, options, *std::move(sources), resharded);
  const auto running = std::ranges::find_if(*sources, goes_on);
  if (running == sources->end()) return ReshardCheckpoints(files, options, *sources, resharded);
  return Status(StatusCode::kFailedPrecondition, "the job goes on by the round log in " + running->directory +
                                                     ", and is over by " + ended->directory);
}

}  // namespace longhaul::server::store
