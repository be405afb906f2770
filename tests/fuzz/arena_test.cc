// The arena finds what it is for. Each planted bug touches memory that was restored by copy, or that came
// after; it runs in a process of its own, which has to die with the report that fits. What is right has to
// live.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>

#include "tests/fuzz/arena.h"
#include "tests/fuzz/property.h"

using longhaul::fuzz::Arena;
using longhaul::fuzz::Prepared;

// No symbols: a report is read for its first line.
extern "C" const char* __asan_default_options() { return "symbolize=0:detect_leaks=0"; }

namespace {

constexpr size_t kBytes = 100;

struct State {
  explicit State(uint8_t) : block(new char[kBytes]{}), spare(new char[kBytes]{}) {}
  ~State() {
    delete[] block;
    delete[] spare;
  }
  char* block;
  char* spare;
};

// The optimizer knows nothing of it.
char* Hidden(char* pointer) {
  asm volatile("" : "+r"(pointer) : : "memory");
  return pointer;
}
void Write(char* at) { *static_cast<volatile char*>(at) = 1; }
char Read(const char* at) { return *static_cast<const volatile char*>(at); }

char* left_over = nullptr;  // memory of the input before

struct Case {
  const char* name;
  const char* report;  // a part of it; null: lives
  void (*first)(State&);
  void (*second)(State&);
};

void Nothing(State&) {}
void FreesBlock(State& s) { delete[] Hidden(s.block); }

const Case kCases[] = {
    {"write after the end of a restored block", "heap-buffer-overflow", Nothing,
     [](State& s) { Write(Hidden(s.block) + kBytes); }},
    {"write before a restored block", "heap-buffer-overflow", Nothing,
     [](State& s) { Write(Hidden(s.block) - 1); }},
    {"read after the end of a new block", "heap-buffer-overflow", Nothing,
     [](State&) { (void)Read(Hidden(new char[64]) + 64); }},
    {"read after the end of a new block of an odd size", "heap-buffer-overflow", Nothing,
     [](State&) { (void)Read(Hidden(new char[61]) + 61); }},
    {"memcpy over the end", "heap-buffer-overflow", Nothing,
     [](State& s) { std::memcpy(Hidden(s.block), Hidden(s.spare), kBytes + 1); }},
    {"write over the end of memory from malloc", "heap-buffer-overflow", Nothing,
     [](State&) { Write(Hidden(static_cast<char*>(std::malloc(3000))) + 3000); }},
    {"write to a restored block that was freed", "heap-use-after-free", Nothing,
     [](State& s) {
       FreesBlock(s);
       Write(s.block);
     }},
    {"read of a new block that was freed, others of its size after it", "heap-use-after-free", Nothing,
     [](State&) {
       char* const freed = Hidden(new char[kBytes]);
       delete[] freed;
       for (int i = 0; i < 5; ++i) delete[] Hidden(new char[kBytes]);
       (void)Read(Hidden(freed));
     }},
    {"restored block freed twice", "freed twice", Nothing,
     [](State& s) {
       FreesBlock(s);
       FreesBlock(s);
     }},
    {"new block freed twice", "freed twice", Nothing,
     [](State&) {
       char* const freed = Hidden(new char[kBytes]);
       delete[] Hidden(freed);
       delete[] Hidden(freed);
     }},
    {"freed in the middle", "freed twice", Nothing, [](State& s) { delete[] Hidden(s.block + 16); }},
    {"read of what the input before allocated", "heap-buffer-overflow",
     [](State&) { left_over = new char[kBytes]; }, [](State&) { (void)Read(Hidden(left_over)); }},
    {"what the input before freed and wrote is as it was", nullptr,
     [](State& s) {
       Write(s.spare);
       FreesBlock(s);
     },
     [](State& s) {
       FUZZ_REQUIRE(Read(Hidden(s.spare)) == 0 && Read(Hidden(s.block)) == 0);
       Write(s.block + kBytes - 1);
       FreesBlock(s);
     }},
    {"allocation without bound", "allocates without bound", Nothing,
     [](State&) {
       for (int i = 0; i < 1000; ++i) Write(Hidden(new char[1 << 20]));
     }},
    {"all sizes and alignments have their bytes", nullptr, Nothing,
     [](State&) {
       for (size_t bytes = 1; bytes < 300'000; bytes += 1 + bytes / 7) {
         const std::unique_ptr<char[]> block(new char[bytes]);
         std::memset(Hidden(block.get()), 1, bytes);
         void* aligned = nullptr;
         FUZZ_REQUIRE(posix_memalign(&aligned, 64, bytes) == 0 &&
                      reinterpret_cast<uintptr_t>(aligned) % 64 == 0);
         std::memset(aligned, 1, bytes);
         std::free(aligned);
         std::free(std::realloc(std::calloc(1, bytes), 2 * bytes));
       }
     }},
};

[[noreturn]] void RunChild(const Case& one) {
  static Prepared<State> states;
  states.With(0, Nothing);
  states.With(0, one.first);
  states.With(0, one.second);
  std::_Exit(0);
}

// What it has written to stderr, and whether it has ended as it should.
std::string Output(const Case& one, int* status) {
  std::array<int, 2> ends{};
  FUZZ_REQUIRE(::pipe(ends.data()) == 0);
  const pid_t child = ::fork();
  FUZZ_REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    RunChild(one);
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t n = 0; (n = ::read(ends[0], part.data(), part.size())) > 0;) text.append(part.data(), n);
  ::close(ends[0]);
  FUZZ_REQUIRE(::waitpid(child, status, 0) == child);
  return text;
}

}  // namespace

int main() {
  int wrong = 0;
  for (const Case& one : kCases) {
    int status = 0;
    const std::string text = Output(one, &status);
    const bool lives = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    const bool right = one.report == nullptr ? lives : !lives && text.find(one.report) != std::string::npos;
    std::printf("%-60s %s\n", one.name, right ? "ok" : "WRONG");
    if (!right) std::printf("%s\n", text.substr(0, 2000).c_str());
    wrong += right ? 0 : 1;
  }
  std::printf("%d of %zu wrong\n", wrong, std::size(kCases));
  return wrong == 0 ? 0 : 1;
}
