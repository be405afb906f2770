// Ranks of several systems take turns: those of one begin an all-reduce together, while those of all others
// sleep. In memory that the bench and the ranks' programs map from a file.
//
// Each rank sends as many 1s as it has floats: a result is as many times the number of ranks.
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace longhaul::offload {

struct Turns {
  static constexpr size_t kRanks = 4;
  // Floats of a page: the result of the turn before is no result of this one.
  static constexpr size_t kClearEvery = 1024;

  pthread_barrier_t barrier;  // the ranks and the bench
  size_t bytes = 0;           // of a message
  bool over = false;
  bool wrong = false;
  // Of the turn, when each rank began and ended it: what the bench's own clock says depends on when it is
  // woken.
  std::chrono::steady_clock::time_point begin[kRanks], end[kRanks];

  // Ends the process when there is no such file.
  static Turns* Map(const char* file) {
    const int fd = open(file, O_RDWR | O_CLOEXEC);
    void* const memory =
        fd < 0 ? MAP_FAILED : mmap(nullptr, sizeof(Turns), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
      std::perror(file);
      std::exit(2);
    }
    close(fd);
    return static_cast<Turns*>(memory);
  }

  // A rank's part: all_reduce() until it is over. clear: this rank wipes `receive` before each.
  template <typename AllReduce>
  void Take(size_t rank, float* receive, bool clear, AllReduce all_reduce) {
    const size_t count = bytes / sizeof(float);
    for (;;) {
      for (size_t i = 0; clear && i < count; i += kClearEvery) receive[i] = 0;
      pthread_barrier_wait(&barrier);
      if (over) return;
      begin[rank] = std::chrono::steady_clock::now();
      all_reduce();
      end[rank] = std::chrono::steady_clock::now();
      pthread_barrier_wait(&barrier);
      if (std::any_of(receive, receive + count, [](float v) { return v != kRanks; })) wrong = true;
      pthread_barrier_wait(&barrier);
    }
  }
};

}  // namespace longhaul::offload
