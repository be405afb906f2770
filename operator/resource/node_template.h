// The pod template of training nodes: what a person may ask of the pods that the operator makes.
//
// Pods are created with the operator's rights, so a job must not get by its template what its author could
// not have: another service account, the host's files or network, privileges, Secrets. A TrainingProfile is
// written by an administrator, and may have them; the right to use a profile is the RBAC verb `use` on it.
#pragma once

#include <string>

#include "operator/resource/fields.h"

namespace longhaul::kube {

enum class TemplateOrigin { kJob, kProfile };

// kInvalidArgument: what is wrong with it at which path, and the remedy. An absent (null) template is fine.
Status CheckTemplate(const Json& pod_template, TemplateOrigin origin, const std::string& path);

// Labels, annotations, volumes, containers and variables of these names are the operator's.
inline constexpr std::string_view kReservedLabel = "longhaul.dev/";
inline constexpr std::string_view kReservedVolume = "longhaul-";
inline constexpr std::string_view kReservedVariable = "LONGHAUL_";
inline constexpr std::string_view kTrainer = "trainer";

}  // namespace longhaul::kube
