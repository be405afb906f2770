// `longhaul submit`, `jobs`, `logs`, `cancel` and longhaul-operator: what cannot work is said in one line,
// with the documented exit code: 2 for wrong usage and kubeconfigs, 3 for an API server that is not there or
// a port that cannot be had.
#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "tests/e2e/support/job.h"

namespace longhaul::e2e {
namespace {

using ::testing::HasSubstr;

struct JobMistake {
  std::string name, program;
  std::vector<std::string> arguments;  // @ is the folder of the test
  int code;
  std::vector<std::string> words;
};

// For gtest's messages.
void PrintTo(const JobMistake& mistake, std::ostream* out) { *out << mistake.program << " " << mistake.name; }

#ifdef LONGHAUL_HAS_OPERATOR

class JobUsage : public JobTest, public ::testing::WithParamInterface<JobMistake> {
 protected:
  // Without a cluster that the test does not name, and with kubeconfigs of which "away" names a port that
  // refuses.
  void SetUp() override {
    JobTest::SetUp();
    for (const char* name : {"KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"})
      unsetenv(name);
    setenv("HOME", directory().c_str(), 1);
    std::ofstream(directory() + "/away") << R"(current-context: c
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: c, context: {cluster: c, user: u, namespace: training}}]
)";
    std::ofstream(directory() + "/broken") << "contexts: [\n";
    std::ofstream(directory() + "/job.yaml") << R"(apiVersion: longhaul.dev/v1alpha1
kind: TrainingJob
metadata: {name: resnet}
spec: {totalGPUs: 15, image: worker, profileRef: {name: a100}, script: {inline: "true"}}
)";
    std::ofstream(directory() + "/no_gpus.yaml") << R"(apiVersion: longhaul.dev/v1alpha1
kind: TrainingJob
metadata: {name: resnet}
spec: {image: worker, profileRef: {name: a100}, script: {inline: "true"}}
)";
  }
};

TEST_P(JobUsage, IsSaidInOneLineWithItsExitCode) {
  std::vector<std::string> arguments = GetParam().arguments;
  for (std::string& argument : arguments) {
    if (const size_t at = argument.find('@'); at != std::string::npos) argument.replace(at, 1, directory());
  }
  Program& program = Start(GetParam().program, arguments);
  ExpectEnd(program, GetParam().code);
  std::string said = program.Errors();
  // CLI11's own second line.
  if (const size_t at = said.find("Run with --help for more information.\n"); at != std::string::npos)
    said.resize(at);
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
  for (const std::string& word : GetParam().words) EXPECT_THAT(said, HasSubstr(word));
  EXPECT_EQ(program.Output(), "");
}

JobMistake Of(const std::string& name, std::vector<std::string> arguments, int code,
              std::vector<std::string> words) {
  return {name, "longhaul", std::move(arguments), code, std::move(words)};
}
JobMistake OfOperator(const std::string& name, std::vector<std::string> arguments, int code,
                      std::vector<std::string> words) {
  return {"Operator" + name, "longhaul-operator", std::move(arguments), code, std::move(words)};
}

INSTANTIATE_TEST_SUITE_P(
    Mistakes, JobUsage,
    ::testing::Values(
        Of("SubmitOfNothing", {"submit"}, 2, {"longhaul submit: --name is missing", "FILE"}),
        Of("SubmitUnknownFlag", {"submit", "@/job.yaml", "--bogus"}, 2, {"--bogus"}),
        Of("SubmitNoFile", {"submit", "@/none.yaml"}, 2, {"longhaul submit: ", "/none.yaml: No such file"}),
        Of("SubmitNoYaml", {"submit", "@/broken"}, 2, {"longhaul submit: ", "/broken: no YAML", "line 2"}),
        Of("SubmitOfAJobThatNoClusterTakes", {"submit", "@/no_gpus.yaml", "--kubeconfig", "@/away"}, 2,
           {"longhaul submit: ", "spec.totalGPUs: is missing"}),
        Of("SubmitFileAndFlags", {"submit", "@/job.yaml", "--gpus", "15"}, 2, {"file excludes --gpus"}),
        Of("SubmitNoGpus", {"submit", "--name", "a", "--gpus", "0"}, 2, {"--gpus", "0", "1 to 4096"}),
        Of("SubmitWithoutAScript",
           {"submit", "--name", "a", "--gpus", "15", "--image", "i", "--profile", "p"}, 2,
           {"longhaul submit: --script is missing"}),
        Of("SubmitNoScript",
           {"submit", "--name", "a", "--gpus", "15", "--image", "i", "--profile", "p", "--script",
            "@/none.py"},
           2, {"longhaul submit: --script: ", "/none.py: No such file"}),
        Of("SubmitWithoutACluster", {"submit", "@/job.yaml"}, 2,
           {"longhaul submit: which cluster?", "--kubeconfig"}),
        Of("SubmitNoKubeconfig", {"submit", "@/job.yaml", "--kubeconfig", "@/none"}, 2,
           {"longhaul submit: kubeconfig: ", "/none: No such file"}),
        Of("SubmitBrokenKubeconfig", {"submit", "@/job.yaml", "--kubeconfig", "@/broken"}, 2,
           {"longhaul submit: kubeconfig: ", "no YAML", "/broken"}),
        Of("SubmitNoContext", {"submit", "@/job.yaml", "--kubeconfig", "@/away", "--context", "d"}, 2,
           {"longhaul submit: kubeconfig: there is no context \"d\""}),
        Of("SubmitToNoServer", {"submit", "@/job.yaml", "--kubeconfig", "@/away"}, 3,
           {"longhaul submit: Unreachable: http://127.0.0.1:9"}),
        Of("JobsUnknownFlag", {"jobs", "--bogus"}, 2, {"--bogus"}),
        Of("JobsOneOfAll", {"jobs", "a", "-A"}, 2, {"name excludes --all-namespaces"}),
        Of("JobsNoName", {"jobs", "A", "--kubeconfig", "@/away"}, 2,
           {"longhaul jobs: \"A\" is no name of a job"}),
        Of("JobsWithoutACluster", {"jobs"}, 2, {"longhaul jobs: which cluster?"}),
        Of("JobsOfNoServer", {"jobs", "--kubeconfig", "@/away"}, 3, {"longhaul jobs: Unreachable: "}),
        Of("LogsOfNothing", {"logs"}, 2, {"longhaul logs: name is required"}),
        Of("LogsNoNode", {"logs", "a", "--node", "x"}, 2, {"--node", "x", "0 to 1023"}),
        Of("LogsNoContainer", {"logs", "a", "--container", "ring"}, 2,
           {"--container", "ring", "trainer,engine"}),
        Of("LogsNoKubeconfig", {"logs", "a", "--kubeconfig", "@/none"}, 2,
           {"longhaul logs: kubeconfig: ", "No such file"}),
        Of("LogsOfNoServer", {"logs", "a", "--kubeconfig", "@/away"}, 3, {"longhaul logs: Unreachable: "}),
        Of("CancelOfNothing", {"cancel"}, 2, {"longhaul cancel: name is required"}),
        Of("CancelOfTwo", {"cancel", "a", "b"}, 2, {"b"}),
        Of("CancelNoName", {"cancel", "a/b", "--kubeconfig", "@/away"}, 2,
           {"longhaul cancel: \"a/b\" is no name"}),
        Of("CancelAtNoServer", {"cancel", "a", "--kubeconfig", "@/away"}, 3,
           {"longhaul cancel: Unreachable: "}),
        OfOperator("UnknownFlag", {"--bogus"}, 2, {"--bogus"}), OfOperator("StrayWord", {"job"}, 2, {"job"}),
        OfOperator("OutsideOfAPod", {}, 2, {"longhaul-operator: ", "this is no pod", "--kubeconfig"}),
        OfOperator("NoKubeconfig", {"--kubeconfig", "@/none"}, 2, {"--kubeconfig: ", "/none: No such file"}),
        OfOperator("BrokenKubeconfig", {"--kubeconfig", "@/broken"}, 2,
                   {"--kubeconfig: ", "no YAML", "/broken"}),
        OfOperator("ContextOfNoKubeconfig", {"--context", "c"}, 2, {"--context requires --kubeconfig"}),
        OfOperator("Permission", {"--permission", "never"}, 2, {"--permission", "never", "review,admission"}),
        OfOperator("GangTimeout", {"--gang-timeout", "-1"}, 2, {"--gang-timeout", "-1"}),
        OfOperator("NoConfig", {"--config", "@/none.toml"}, 2, {"/none.toml"}),
        OfOperator("MetricsWithoutPort", {"--kubeconfig", "@/away", "--metrics", "127.0.0.1"}, 2,
                   {"--metrics: ", "the port is missing"}),
        OfOperator("MetricsElsewhere", {"--kubeconfig", "@/away", "--metrics", "192.0.2.1:9"}, 3,
                   {"--metrics: cannot listen on TCP 192.0.2.1:9"}),
        OfOperator("WebhookWithoutCertificates", {"--webhook", "127.0.0.1:0"}, 2,
                   {"--webhook requires --webhook-certificates"}),
        OfOperator("WebhookWithoutPort",
                   {"--kubeconfig", "@/away", "--webhook", "127.0.0.1", "--webhook-certificates", "@"}, 2,
                   {"--webhook: ", "the port is missing"})),
    [](const auto& test) { return test.param.name; });

class OperatorAlone : public JobUsage {};

TEST_F(OperatorAlone, SaysThatTheApiServerIsNotThereAndWaitsForIt) {
  Program& program = Start("longhaul-operator", {"--kubeconfig", directory() + "/away"});
  EXPECT_TRUE(program.WaitForError("the lease cannot be read or written: Unreachable: http://127.0.0.1:9"))
      << program.Errors();
  EXPECT_TRUE(program.running());
  program.Signal(SIGTERM);
  ExpectEnd(program, 0);
}

#else

class JobUsage : public JobTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(JobUsage, IsNotInThisBuild) {
  Program& program = Start("longhaul", {GetParam()});
  ExpectEnd(program, 2);
  EXPECT_THAT(program.Errors(), HasSubstr("'" + GetParam() + "' is not in this build"));
  EXPECT_THAT(program.Errors(), HasSubstr("-DLONGHAUL_OPERATOR=ON"));
}

INSTANTIATE_TEST_SUITE_P(Commands, JobUsage, ::testing::Values("submit", "jobs", "logs", "cancel"));

#endif

}  // namespace
}  // namespace longhaul::e2e
