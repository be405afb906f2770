// A job of two workers with tensors of three chunks, whose images a keeper of the test takes.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "tests/server/fake_worker.h"

namespace longhaul::server {

// Hands out what an earlier server has left.
struct RestoringKeeper : ImageKeeper {
  const TensorImage* Find(const std::string& tensor) const override {
    const auto found = restored.find(tensor);
    return found == restored.end() ? nullptr : &found->second;
  }
  TensorImage Take(const std::string& tensor) override {
    return std::move(restored.extract(tensor).mapped());
  }
  std::map<std::string, TensorImage> restored;
};

struct TwoWorkerJob {
  static constexpr size_t kSymbol = 64;
  static constexpr uint32_t kChunks = 3;

  // The workers have not joined. settings: for two.
  TwoWorkerJob(ServerSettings settings, ImageKeeper* keeper)
      : coordinator(std::move(settings), &events, nullptr, ByteCount(1 << 20), nullptr, keeper) {
    coordinator.SetNow(At(0));
    for (FakeWorker* worker : {&a, &b}) worker->connection.max_chunk_bytes = kSymbol;
  }

  const uint32_t elements = codec::ChunkElementsFor(kSymbol);
  const uint64_t count = uint64_t{kChunks} * elements;
  Recorder events;
  Coordinator coordinator;
  FakeWorker a{coordinator, 0};
  FakeWorker b{coordinator, 1};
};

}  // namespace longhaul::server
