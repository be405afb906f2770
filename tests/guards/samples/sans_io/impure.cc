// What tests/guards/sans_io.py must find; never linked into anything.
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <random>

long Impure() {
  std::random_device device;
  return static_cast<long>(device()) + std::chrono::steady_clock::now().time_since_epoch().count() + std::time(nullptr) +
         socket(AF_INET, SOCK_DGRAM, 0) + (std::getenv("HOME") != nullptr ? 1 : 0);
}

// A member function of that name is none of the guard's business.
struct Ledger {
  long time(long t);
  long socket() { return time(3); }
};
long Pure(Ledger& ledger) { return ledger.socket(); }
