// Variables of the environment, as programs of ps-lite read them.
#pragma once

#include <cstdlib>

namespace ps {

class Environment {
 public:
  static Environment* Get() {
    static Environment environment;
    return &environment;
  }
  // Null: not set.
  const char* find(const char* name) const { return std::getenv(name); }
};

inline int GetEnv(const char* name, int otherwise) {
  const char* const value = Environment::Get()->find(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

}  // namespace ps
