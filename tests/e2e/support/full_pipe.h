#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "base/files.h"

namespace longhaul::e2e {

// A pipe without room, whose reader does not read.
class FullPipe {
 public:
  FullPipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    reader_.Reset(ends[0]);
    writer_.Reset(ends[1]);
    const std::string page(4096, '.');
    while (::write(writer_.get(), page.data(), page.size()) > 0) {
    }
    EXPECT_EQ(::fcntl(writer_.get(), F_SETFL, 0), 0);
  }
  // In a child: its output goes here.
  std::function<int()> TakesOutput() const {
    return [fd = writer_.get()] {
      return ::dup2(fd, STDOUT_FILENO) >= 0 && ::dup2(fd, STDERR_FILENO) >= 0 ? 0 : 1;
    };
  }

 private:
  FileDescriptor reader_, writer_;
};

}  // namespace longhaul::e2e
