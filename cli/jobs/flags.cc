#include <cstdio>

#include "cli/job_commands.h"
#include "cli/jobs/commands.h"
#include "operator/resource/training_job.h"

namespace longhaul::cli {
namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 fine; 1 the API server refuses, or there is no such job%s; 2 bad options, job or "
    "kubeconfig; "
    "3 no\nAPI server there, or it does not answer.";

std::string ExitCodes(const char* more = "") {
  char text[300];
  std::snprintf(text, sizeof text, kExitCodes, more);
  return text;
}

void AddCluster(CLI::App* command, ClusterOptions* cluster) {
  command->add_option("-n,--namespace", cluster->name_space, "of the job; none = the kubeconfig's");
  command
      ->add_option(
          "--kubeconfig", cluster->kubeconfig,
          "the cluster and the credentials for it; none = $KUBECONFIG, or ~/.kube/config, or in a pod its "
          "service account")
      ->type_name("FILE");
  command->add_option("--context", cluster->context, "of the kubeconfig; none = its current one");
}

CLI::App* AddSubmit(CLI::App& app, SubmitOptions* o) {
  CLI::App* command = app.add_subcommand("submit", "start a training job on a Kubernetes cluster");
  CLI::Option* file =
      command->add_option("file", o->file, "a TrainingJob, as YAML or JSON; or the options --name to --data")
          ->type_name("FILE");
  const auto of_job = [&](CLI::Option* option) { return option->excludes(file); };
  of_job(command->add_option("--name", o->job.name, "of the job: a-z, 0-9 and -"));
  of_job(
      command->add_option("--gpus", o->job.gpus, "of the whole job; the operator divides them among nodes"))
      ->check(CLI::Range(1, kube::kMostGpus));
  of_job(command->add_option("--image", o->job.image,
                             "container image with longhaul and what the script needs"));
  of_job(command->add_option("--profile", o->job.profile, "the TrainingProfile that the nodes follow"));
  of_job(command->add_option("--script", o->script_file, "what every rank runs"))->type_name("FILE");
  of_job(command->add_option("--data", o->job.claim, "PersistentVolumeClaim with the training data"))
      ->type_name("CLAIM");
  command->add_flag("--wait", o->wait, "show how it goes, until its end");
  AddCluster(command, &o->cluster);
  command->footer(
      "Examples: longhaul submit job.yaml --wait\n"
      "          longhaul submit --name resnet --gpus 15 --profile a100 --image registry.example/worker "
      "--script "
      "train.py\n"
      "The operator of training jobs must run there (docs/howto/kubernetes.md). Interrupting --wait leaves "
      "the "
      "job as\nit is.\n" +
      ExitCodes("; with --wait, also: the job has failed"));
  return command;
}

CLI::App* AddJobs(CLI::App& app, JobsOptions* o) {
  CLI::App* command = app.add_subcommand("jobs", "list the training jobs of a cluster, or say all of one");
  CLI::Option* name = command->add_option("name", o->name, "of one: its nodes, conditions and events");
  command->add_flag("-A,--all-namespaces", o->all_namespaces, "the jobs of all namespaces")->excludes(name);
  command->add_flag("--json", o->json, "as the API server has it");
  AddCluster(command, &o->cluster);
  command->footer("Example: longhaul jobs resnet -n training\n" + ExitCodes());
  return command;
}

CLI::App* AddLogs(CLI::App& app, LogsOptions* o) {
  CLI::App* command = app.add_subcommand("logs", "print what a node of a training job writes");
  command->add_option("name", o->name, "of the job")->required();
  command->add_option("--node", o->node, "its number, from 0")
      ->check(CLI::Range(0, 1023))
      ->capture_default_str();
  command->add_option("--container", o->container, "trainer: the script's output; engine: longhaul-offload's")
      ->check(CLI::IsMember({"trainer", "engine"}))
      ->capture_default_str();
  command->add_flag("--follow", o->follow, "wait for the node to start, and go on until it ends");
  AddCluster(command, &o->cluster);
  command->footer("Example: longhaul logs resnet --node 1 --follow\n" + ExitCodes());
  return command;
}

CLI::App* AddCancel(CLI::App& app, CancelOptions* o) {
  CLI::App* command = app.add_subcommand("cancel", "delete a training job, with its pods and checkpoints");
  command->add_option("name", o->name, "of the job")->required();
  AddCluster(command, &o->cluster);
  command->footer(
      "Asks for nothing, and says what it did. To pause a job instead: kubectl patch tjob NAME --type=merge "
      "-p\n"
      "'{\"spec\":{\"runPolicy\":{\"suspend\":true}}}'\n" +
      ExitCodes());
  return command;
}

}  // namespace

struct JobCommands::Impl {
  SubmitOptions submit;
  JobsOptions jobs;
  LogsOptions logs;
  CancelOptions cancel;
  CLI::App *of_submit, *of_jobs, *of_logs, *of_cancel;
};

JobCommands::JobCommands(CLI::App& app) : impl_(std::make_unique<Impl>()) {
  impl_->of_submit = AddSubmit(app, &impl_->submit);
  impl_->of_jobs = AddJobs(app, &impl_->jobs);
  impl_->of_logs = AddLogs(app, &impl_->logs);
  impl_->of_cancel = AddCancel(app, &impl_->cancel);
}
JobCommands::~JobCommands() = default;

std::string JobCommands::given() const {
  for (const CLI::App* command : {impl_->of_submit, impl_->of_jobs, impl_->of_logs, impl_->of_cancel}) {
    if (*command) return command->get_name();
  }
  return "";
}

int JobCommands::Run() {
  if (*impl_->of_jobs) return RunJobs(impl_->jobs);
  if (*impl_->of_logs) return RunLogs(impl_->logs);
  if (*impl_->of_cancel) return RunCancel(impl_->cancel);
  if (!impl_->submit.file.empty()) return RunSubmit(impl_->submit);
  for (const char* name : {"--name", "--gpus", "--image", "--profile", "--script"}) {
    if (impl_->of_submit->count(name) > 0) continue;
    std::fprintf(stderr, "longhaul submit: %s is missing; or name a FILE with the job\n", name);
    return kJobsUsage;
  }
  return RunSubmit(impl_->submit);
}

std::string JobCommands::WhyAbsent(const std::string&) { return ""; }

}  // namespace longhaul::cli
