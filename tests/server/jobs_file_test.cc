// --jobs FILE: what its sections say, and what is said of those that say something wrong.
#include "server/program/jobs_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace longhaul::server {
namespace {

using ::testing::HasSubstr;

class JobsFileTest : public ::testing::Test {
 protected:
  JobsFileTest() : path_(::testing::TempDir() + "jobs_file_test." + std::to_string(getpid()) + ".toml") {}
  ~JobsFileTest() override { std::remove(path_.c_str()); }

  Result<std::vector<JobFlags>> Read(const std::string& text, bool capacity_given = true) const {
    std::ofstream(path_) << text;
    return ReadJobs(path_, capacity_given);
  }
  // What is wrong with it, without the file's name; "" when nothing is.
  std::string Wrong(const std::string& text, bool capacity_given = true) const {
    const auto jobs = Read(text, capacity_given);
    if (jobs.ok()) return "";
    EXPECT_EQ(jobs.status().code(), StatusCode::kInvalidArgument);
    const std::string name = "jobs file " + path_ + ", ";
    const std::string message = jobs.status().message();
    return message.starts_with(name) ? message.substr(name.size()) : message;
  }

  std::string path_;
};

TEST_F(JobsFileTest, ASectionIsAJobAndItsOptionsWinOverThoseForAll) {
  const auto jobs = Read(
      "# two jobs\ninsecure = true\nworkers = 4\ncheckpoint-every = 50\nallow = [\"fra\", \"nyc\"]\n\n"
      "[job.resnet]\nlisten = \"127.0.0.1:7701\"\nworkers = 2 # fewer\nshare = 3\npolicy = \"zero\"\n"
      "  [job.\"bert large\"]   # the second\nlisten = \"127.0.0.1:7702\"\ninsecure = false\n"
      "key = \"b.key\"\nmax-memory-bytes = \"2gb\"\nallow = [\"ams\"]\n");
  ASSERT_TRUE(jobs.ok()) << jobs.status().ToString();
  ASSERT_EQ(jobs->size(), 2u);
  const JobFlags& a = (*jobs)[0];
  const JobFlags& b = (*jobs)[1];
  EXPECT_EQ(a.name, "resnet");
  EXPECT_EQ(a.line, 7);
  EXPECT_EQ(a.flags.server.job, "resnet") << "its workers say that name";
  EXPECT_EQ(a.flags.server.listen, "127.0.0.1:7701");
  EXPECT_EQ(a.flags.server.workers, 2u);
  EXPECT_EQ(a.flags.server.checkpoint_every, 50u);
  EXPECT_EQ(a.flags.server.job_spec.policy, LossPolicy::kZero);
  EXPECT_EQ(a.flags.share, 3u);
  EXPECT_THAT(a.flags.server.allow, ::testing::ElementsAre("fra", "nyc"));
  EXPECT_EQ(b.name, "bert large");
  EXPECT_EQ(b.flags.server.workers, 4u);
  EXPECT_FALSE(b.flags.server.insecure);
  EXPECT_EQ(b.flags.server.key_file, "b.key");
  EXPECT_EQ(b.flags.server.max_memory.value(), 2'000'000'000);
  EXPECT_EQ(b.flags.server.job_spec.policy, JobSpec().policy);
  EXPECT_EQ(b.flags.share, 1u);
  EXPECT_THAT(b.flags.server.allow, ::testing::ElementsAre("ams"));
}

TEST_F(JobsFileTest, WhatIsWrongIsToldWithItsLine) {
  EXPECT_EQ(Wrong("insecure = true\n[job.a]\n\nworkers = 5000\n"),
            "line 4: job a: --workers: Value 5000 not in range 1 to 1024");
  EXPECT_EQ(Wrong("workers = 5000\n[job.a]\n"),
            "line 1: job a: --workers: Value 5000 not in range 1 to 1024");
  EXPECT_EQ(Wrong("[job.a]\nworkres = 3\n"), "line 2: unknown option workres");
  EXPECT_EQ(Wrong("\nworkres = 3\n[job.a]\n"), "line 2: unknown option workres");
  EXPECT_THAT(Wrong("[job.a]\nkey = \"k\"\ninsecure = true\n"), HasSubstr("line 2: job a: --key excludes"));
  EXPECT_EQ(Wrong("[job.a]\nmin-workers = 3\nworkers = 2\n"),
            "line 2: job a: --min-workers 3 is more than --workers 2");
  EXPECT_THAT(Wrong("[job.a]\nallow = [\"fra\",\n\"nyc\"]\n"), HasSubstr("line 2: allow = ["));
  EXPECT_EQ(Wrong("[job.a]\npolicy = \"\x1b[2J\"\n").find('\x1b'), std::string::npos)
      << "a terminal obeys it";
  EXPECT_EQ(Wrong("workers = 2\n"), "line 1: it has no section [job.NAME]: a job is one");
  EXPECT_THAT(Wrong(""), HasSubstr("it is empty"));
  EXPECT_THAT(ReadJobs("/no/such.toml", true).status().message(), HasSubstr("No such file"));
}

TEST_F(JobsFileTest, ASectionHasOneForm) {
  for (const char* section : {"[jobs]", "[job]", "[job.]", "[job.a", "[job.a b]", "[job.a.b]", "[[job.a]]",
                              "[job.\"\"]", "[job.\"a\\\\b\"]", "[job.\"a]", "[job.a] b", "[job.\"\x1b\"]"}) {
    EXPECT_THAT(Wrong("insecure = true\n" + std::string(section) + "\n"),
                ::testing::AllOf(HasSubstr("line 2: ["), HasSubstr("a section is [job.NAME]")));
  }
  EXPECT_EQ(Wrong("[job.A_z-9]\n[job.\"a.b (c)\"]\nlisten = \":1\"\n"), "");
  EXPECT_THAT(Wrong("[job." + std::string(257, 'a') + "]\n"), HasSubstr("line 1: the job's name is longer"));
}

TEST_F(JobsFileTest, WhatIsTheProcessesIsNoJobs) {
  for (const char* option :
       {"capacity = \"1gbit\"", "metrics = \":1\"", "no-seccomp = true", "log-level = \"info\"",
        "progress = \"json\"", "jobs = \"x\"", "config = \"x\"", "inject = \"x\""}) {
    EXPECT_THAT(Wrong("[job.a]\n" + std::string(option) + "\n"), HasSubstr("line 2: "));
    EXPECT_THAT(Wrong("[job.a]\n" + std::string(option) + "\n"), HasSubstr("is the whole process'"));
  }
  EXPECT_EQ(Wrong("[job.a]\njob = \"b\"\n"), "line 2: job: the name of the section is the job's");
  EXPECT_EQ(Wrong("[job.a]\nshare = 2\n", false),
            "line 2: job a: there is nothing to share without --capacity");
}

TEST_F(JobsFileTest, NoTwoJobsHaveANameAPortADirectoryOrAFileInCommon) {
  EXPECT_EQ(Wrong("[job.a]\n[job.b]\nlisten = \":1\"\n[job.a]\n"),
            "line 4: job a is there already, on line 1");
  EXPECT_EQ(Wrong("[job.a]\nlisten = \"10.0.0.1:7\"\n[job.b]\n\nlisten = \"10.0.0.1:7\"\n"),
            "line 5: job b: listen 10.0.0.1:7 is job a's already (line 2)");
  EXPECT_THAT(Wrong("[job.a]\nlisten = \"10.0.0.1:7\"\n[job.b]\nlisten = \"0.0.0.0:7\"\n"),
              HasSubstr("line 4"));
  EXPECT_EQ(Wrong("[job.a]\nlisten = \"10.0.0.1:7\"\n[job.b]\nlisten = \"10.0.0.2:7\"\n"), "");
  EXPECT_EQ(Wrong("listen = \"127.0.0.1:0\"\n[job.a]\n[job.b]\n"), "") << "any free port";
  EXPECT_THAT(Wrong("[job.a]\n[job.b]\n"), HasSubstr("line 2: job b: listen 127.0.0.1:7700 is job a's"))
      << "the default";
  const std::string ports = "listen = \"127.0.0.1:0\"\n";
  EXPECT_THAT(Wrong(ports + "[job.a]\ncheckpoint-dir = \"d/x/\"\n[job.b]\ncheckpoint-dir = \"d/./y/../x\"\n"),
              HasSubstr("line 5: job b: checkpoint-dir"));
  EXPECT_THAT(Wrong(ports + "checkpoint-dir = \"d\"\n[job.a]\n[job.b]\n"),
              HasSubstr("is job a's already (line 2)"));
  EXPECT_THAT(Wrong(ports + "[job.a]\njson = \"j\"\n[job.b]\njson = \"j\"\n"),
              HasSubstr("line 5: job b: json"));
  EXPECT_EQ(Wrong(ports + "[job.a]\ncheckpoint-dir = \"d1\"\n[job.b]\ncheckpoint-dir = \"d2\"\n"), "");
}

TEST_F(JobsFileTest, AProcessHas256JobsAtMost) {
  std::string text = "listen = \"127.0.0.1:0\"\n";
  for (int i = 0; i < 256; ++i) text += "[job.j" + std::to_string(i) + "]\n";
  const auto most = Read(text);
  ASSERT_TRUE(most.ok()) << most.status().ToString();
  EXPECT_EQ(most->size(), 256u);
  EXPECT_EQ(Wrong(text + "[job.more]\n"), "line 258: a process has at most 256 jobs");
}

TEST_F(JobsFileTest, JobsWithoutABoundOnMemoryHaveEqualPartsOfWhatIsLeft) {
  const auto memory = [](std::vector<int64_t> bounds, uint64_t available) {
    std::vector<JobFlags> jobs(bounds.size());
    for (size_t i = 0; i < bounds.size(); ++i) jobs[i].flags.server.max_memory = ByteCount(bounds[i]);
    const Status divided = DivideMemory(available, &jobs);
    std::vector<int64_t> after;
    for (const JobFlags& job : jobs) after.push_back(job.flags.server.max_memory.value());
    return divided.ok() ? after : std::vector<int64_t>();
  };
  EXPECT_THAT(memory({0, 300, 0}, 800), ::testing::ElementsAre(200, 300, 200));
  EXPECT_THAT(memory({0, 300, 0}, 0), ::testing::ElementsAre(0, 300, 0)) << "nothing is known";
  EXPECT_THAT(memory({900, 300}, 800), ::testing::ElementsAre(900, 300)) << "the operator has said so";
  EXPECT_TRUE(memory({700, 0}, 800).empty()) << "nothing is left";
}

}  // namespace
}  // namespace longhaul::server
