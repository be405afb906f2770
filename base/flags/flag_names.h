// The library's errors name options as its API does, in single quotes: 'key_file'. Programs say them as their
// flags.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace longhaul::cli {

// "give 'key_file' what ..." -> "give --key what ...".
inline std::string WithFlagNames(std::string message) {
  constexpr std::pair<std::string_view, std::string_view> kFlags[] = {{"'key_file'", "--key"},
                                                                      {"'insecure'", "--insecure"},
                                                                      {"'insecure_bind'", "--insecure-bind"},
                                                                      {"'next_key_file'", "--next-key"},
                                                                      {"'server_name'", "--server-name"},
                                                                      {"'allow'", "--allow"},
                                                                      {"'cipher'", "--cipher"}};
  for (const auto& [name, flag] : kFlags) {
    for (size_t at = message.find(name); at != std::string::npos; at = message.find(name, at + flag.size())) {
      message.replace(at, name.size(), flag);
    }
  }
  return message;
}

}  // namespace longhaul::cli
