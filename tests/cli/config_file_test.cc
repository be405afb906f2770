// --config FILE: what its lines say, and what is said of those that say nothing.
#include "base/flags/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace longhaul::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ConfigFileTest : public ::testing::Test {
 protected:
  ConfigFileTest() : path_(::testing::TempDir() + "config_file_test." + std::to_string(getpid()) + ".toml") {}
  ~ConfigFileTest() override { std::remove(path_.c_str()); }

  // What the program says of a file with `text`; "" when it is content.
  std::string Read(const std::string& text, std::vector<std::string> words = {}) {
    CLI::App app;
    app.add_option("--workers", workers_);
    app.add_option("--allow", allow_);
    app.add_option("--key", key_);
    app.add_flag("--insecure", insecure_)->excludes("--key");
    app.add_flag("--insecure-bind", insecure_bind_)->needs("--insecure");
    app.add_flag("--once", once_)->envname("CONFIG_FILE_TEST_ONCE");
    AddConfigFile(app, "workers = 4");
    std::ofstream(path_) << text;
    words.insert(words.begin(), {path_, "--config"});  // last first
    try {
      app.parse(std::move(words));
    } catch (const CLI::ParseError& error) {
      return error.what();
    }
    return "";
  }
  std::string At(int line) const { return "config file " + path_ + ", line " + std::to_string(line) + ": "; }

  std::string path_;
  int workers_ = 0;
  std::vector<std::string> allow_;
  std::string key_;
  bool insecure_ = false, insecure_bind_ = false, once_ = false;
};

TEST_F(ConfigFileTest, OptionsAreLinesWithOrWithoutComments) {
  EXPECT_EQ(Read("# a job\n; of ours\n\nworkers = 3 # [of them]\n  key=\"a.key\"\nonce = true\n"
                 "allow = [\"fra\", \"nyc\"] # [sites]\n"),
            "");
  EXPECT_EQ(workers_, 3);
  EXPECT_EQ(key_, "a.key");
  EXPECT_TRUE(once_);
  EXPECT_THAT(allow_, ElementsAre("fra", "nyc"));
  EXPECT_EQ(Read("allow = fra\nallow = nyc\n"), "");
  EXPECT_THAT(allow_, ElementsAre("fra", "nyc"));
}

TEST_F(ConfigFileTest, WhatIsTooLongIsNotReadToItsEnd) {
  const std::string comment = "#" + std::string(1022, '.') + "\n";
  std::string text;
  while (text.size() < size_t{1} << 20) text += comment;
  EXPECT_EQ(Read(text), "");
  EXPECT_EQ(Read(text + "#"), At(1) + "it is larger than 1 MiB: no list of options");
}

TEST_F(ConfigFileTest, TheCommandLineWins) {
  EXPECT_EQ(Read("workers = 3\n", {"5", "--workers"}), "");
  EXPECT_EQ(workers_, 5);
}

TEST_F(ConfigFileTest, SectionsAreRefusedWithTheirLine) {
  for (const char* section : {"[server]", "  [server]  ", "[server] # of ours", "[[server]]", "[server"}) {
    EXPECT_THAT(Read("workers = 3\n" + std::string(section) + "\nonce = true\n"),
                AllOf(HasSubstr(At(2) + "["), HasSubstr("there are no sections here")));
  }
}

TEST_F(ConfigFileTest, UnknownOptionsAreRefusedWithTheirLine) {
  EXPECT_EQ(Read("\nworkres = 3\n"), At(2) + "unknown option workres");
  EXPECT_EQ(Read("server.workers = 3\n"), At(1) + "unknown option server.workers");
  EXPECT_EQ(Read("key = a\nbogus\n"), At(2) + "unknown option bogus");
  EXPECT_EQ(Read("config = other.toml\n"), At(1) + "unknown option config");
  EXPECT_THAT(Read("= 3\n"), HasSubstr(At(1)));
  EXPECT_EQ(Read("\x1b]0;pwned = 3\n"), At(1) + "unknown option ?]0;pwned") << "a terminal would obey";
}

TEST_F(ConfigFileTest, ListsGoOnOneLine) {
  for (const char* list : {"allow = [\n  \"fra\",\n  \"nyc\"\n]\n",
                           "allow = [ \"fra\", # a site\n \"nyc\" ]\n", "allow = [\"fra\"\n"}) {
    EXPECT_THAT(Read(list), AllOf(HasSubstr(At(1) + "allow = ["), HasSubstr("a list goes on one line")));
  }
}

TEST_F(ConfigFileTest, AFlagThatIsFalseExcludesAndNeedsNothing) {
  for (const char* value : {"false", "FALSE", "off", "no", "0"}) {
    EXPECT_EQ(Read("key = a.key\ninsecure = " + std::string(value) + "\n"), "") << value;
    EXPECT_FALSE(insecure_);
  }
  EXPECT_EQ(Read("key = a.key\ninsecure-bind = false\n"), "");
  EXPECT_THAT(Read("key = a.key\ninsecure = true\n"), HasSubstr("excludes"));
  EXPECT_THAT(Read("key = a.key\ninsecure\n"), HasSubstr("excludes"));
  EXPECT_THAT(Read("key = a.key\ninsecure = perhaps\n"), Not(""));
}

TEST_F(ConfigFileTest, AFlagThatIsFalseStillWinsOverTheEnvironment) {
  setenv("CONFIG_FILE_TEST_ONCE", "1", 1);
  EXPECT_EQ(Read("once = false\n"), "");
  EXPECT_FALSE(once_);
  EXPECT_EQ(Read(""), "");
  EXPECT_TRUE(once_);
  unsetenv("CONFIG_FILE_TEST_ONCE");
}

}  // namespace
}  // namespace longhaul::cli
