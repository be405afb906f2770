#include "cli/ring_report.h"

#include <cstdio>

#include "base/units_text.h"

namespace longhaul::cli {
namespace {

using nlohmann::json;
using offload::ringsim::Curve;
using offload::ringsim::RingModel;
using offload::ringsim::Row;

double Us(Duration time) { return static_cast<double>(time.count()) / 1e3; }

template <typename... Values>
std::string Text(const char* format, Values... values) {
  char line[256];
  std::snprintf(line, sizeof(line), format, values...);
  return line;
}

std::string Percent(double saving) {
  return saving == offload::ringsim::kStuck ? "stuck" : Text("%.1f %%", 100 * saving);
}

std::string RowsText(const RingModel& model, const std::vector<Row>& rows) {
  const std::string quoted = "dT " + TimeText(offload::ringsim::Quoted(model));
  const std::string longer = "dT " + TimeText(offload::ringsim::Long(model));
  std::string text = Text("%-48s %10s %10s %24s\n", "", quoted.c_str(), longer.c_str(), "largest");
  for (const Row& row : rows) {
    text += Text("%-48s %10s %10s %10s at %7.1f us\n", row.what.c_str(), Percent(row.at_quoted).c_str(),
                 Percent(row.at_long).c_str(), Percent(row.peak.saving).c_str(), Us(row.peak.at));
  }
  return text;
}

json SavingJson(double saving) { return saving == offload::ringsim::kStuck ? json() : json(saving); }

json CurveJson(const Curve& curve) { return {{"name", curve.name}, {"x", curve.x}, {"y", curve.y}}; }

json CurvesJson(const std::vector<Curve>& curves) {
  json list = json::array();
  for (const Curve& curve : curves) list.push_back(CurveJson(curve));
  return list;
}

json RowsJson(const std::vector<Row>& rows) {
  json list = json::array();
  for (const Row& row : rows) {
    list.push_back({{"what", row.what},
                    {"saving_quoted", SavingJson(row.at_quoted)},
                    {"saving_long", SavingJson(row.at_long)},
                    {"largest", row.peak.saving},
                    {"largest_at_us", Us(row.peak.at)}});
  }
  return list;
}

// A named block of data: x, then a column a curve; their x are the same.
std::string Block(const std::string& name, const std::vector<Curve>& curves, double scale) {
  std::string text = "$" + name + " << END\nx";
  for (const Curve& curve : curves) text += "\t" + curve.name;
  text += "\n";
  for (size_t i = 0; i < curves[0].x.size(); ++i) {
    text += Text("%g", curves[0].x[i]);
    for (const Curve& curve : curves) text += Text("\t%.4g", scale * curve.y[i]);
    text += "\n";
  }
  return text + "END\n";
}

// What is drawn over alpha has few tics: they would meet.
std::string Panel(const std::string& name, const std::string& title, const std::string& x,
                  const std::string& y, size_t curves) {
  return "set title \"" + title + "\"\nset xlabel \"" + x + "\"\nset ylabel \"" + y + "\"\nset xtics " +
         (x == "alpha" ? "0.5" : "autofreq") + "\n" +
         (curves == 1 ? "unset key" : "set key outside right noenhanced") +
         "\nplot for [i=2:" + std::to_string(curves + 1) + "] $" + name +
         " using 1:i title columnheader(i) linewidth 2\n";
}

}  // namespace

uint64_t RingReport::failures() const {
  uint64_t failures = 0;
  for (const RingTally& of : random)
    failures += of.policy == "seed_skip" ? 0 : of.tally.stuck + of.tally.wrong;
  return failures;
}

std::string RingText(const RingReport& report) {
  const RingModel& model = report.model;
  std::string text = "ring of " + std::to_string(model.nodes) + " nodes: T " + TimeText(model.reduce_time) +
                     ", link " + TimeText(model.link_delay) + ", " + std::to_string(model.chunk.value()) +
                     " bytes at " + RateText(model.rate) + ", Ttrans " + TimeText(model.transfer()) + "\n\n";
  text += "The paper's rule (seed_skip), one slow reduce\n";
  text += Text("  dT %s, alpha %g: T_ring %.3f us, saved %.1f %%; largest %.1f %% at dT %.2f us\n\n",
               TimeText(offload::ringsim::Quoted(model)).c_str(), model.alpha, report.paper.ring_time.y[8],
               100 * report.paper.quoted, 100 * report.paper.at_model.saving, Us(report.paper.at_model.at));
  text += Text("%-12s", "saved, dT us");
  for (const Curve& curve : report.paper.over_slow) text += Text("%12s", curve.name.c_str());
  text += Text("%12s\n", "T_ring, us");
  for (size_t i = 0; i < report.paper.ring_time.x.size(); i += 2) {
    text += Text("%-12g", report.paper.ring_time.x[i]);
    for (const Curve& curve : report.paper.over_slow) text += Text("%10.1f %%", 100 * curve.y[2 * i]);
    text += Text("%12.3f\n", report.paper.ring_time.y[i]);
  }
  text += "\nWhat that hides (the same rule, alpha " + NumberText(model.alpha) + ")\n" +
          RowsText(model, report.hides);
  text += "\nPolicies with learned deadlines\n" + RowsText(model, report.policies);
  text += "\nRandom runs with many slow nodes, seed " + std::to_string(report.seed) + "\n";
  text += Text("%-12s %-44s %8s %8s %8s %8s\n", "policy", "", "runs", "stuck", "wrong", "saved");
  for (const RingTally& of : report.random) {
    text +=
        Text("%-12s %-44s %8llu %8llu %8llu %6.1f %%\n", of.policy.c_str(), of.load.c_str(),
             static_cast<unsigned long long>(of.tally.runs), static_cast<unsigned long long>(of.tally.stuck),
             static_cast<unsigned long long>(of.tally.wrong), 100 * of.tally.saving());
    if (!of.tally.first.empty()) text += "  first: " + of.tally.first + "\n";
  }
  return text;
}

json RingJson(const RingReport& report) {
  const RingModel& model = report.model;
  json random = json::array();
  for (const RingTally& of : report.random) {
    random.push_back({{"policy", of.policy},
                      {"load", of.load},
                      {"runs", of.tally.runs},
                      {"stuck", of.tally.stuck},
                      {"wrong", of.tally.wrong},
                      {"first", of.tally.first},
                      {"saving", of.tally.saving()}});
  }
  return {{"ok", report.failures() == 0},
          {"nodes", model.nodes},
          {"reduce_us", Us(model.reduce_time)},
          {"link_us", Us(model.link_delay)},
          {"bytes", model.chunk.value()},
          {"rate_bps", model.rate.bits_per_second()},
          {"alpha", model.alpha},
          {"quoted_us", Us(offload::ringsim::Quoted(model))},
          {"long_us", Us(offload::ringsim::Long(model))},
          {"saving_quoted", report.paper.quoted},
          {"largest", report.paper.at_model.saving},
          {"largest_at_us", Us(report.paper.at_model.at)},
          {"ring_time", CurveJson(report.paper.ring_time)},
          {"saving_over_delay", CurvesJson(report.paper.over_slow)},
          {"saving_over_alpha", CurvesJson(report.paper.over_alpha)},
          {"largest_over_alpha", CurveJson(report.paper.peak_over_alpha)},
          {"hides", RowsJson(report.hides)},
          {"policies", RowsJson(report.policies)},
          {"seed", report.seed},
          {"random", random},
          {"gnuplot", RingPlot(report)}};
}

std::string RingPlot(const RingReport& report) {
  const auto& paper = report.paper;
  return "set terminal svg size 1000,640 font \"sans,11\" background \"white\"\n"
         "set datafile separator tab\nset style data lines\nset grid\nset key outside right noenhanced\nset "
         "yrange [0:*]\n" +
         Block("time", {paper.ring_time}, 1) + Block("delay", paper.over_slow, 100) +
         Block("alpha", paper.over_alpha, 100) + Block("largest", {paper.peak_over_alpha}, 100) +
         "set multiplot layout 2,2\n" +
         Panel("time", "the ring's time grows with the delay", "dT, us", "us", 1) +
         Panel("delay", "what the rule saves rises, then falls", "dT, us", "saved, %",
               paper.over_slow.size()) +
         Panel("alpha", "of large delays it is the same for every alpha", "alpha", "saved, %",
               paper.over_alpha.size()) +
         Panel("largest", "the largest saving", "alpha", "saved, %", 1) + "unset multiplot\n";
}

}  // namespace longhaul::cli
