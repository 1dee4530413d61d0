// One function a section; `put` leaves out what has no value.
#include "receipts/body.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "receipts/fields.h"
#include "receipts/status.h"

namespace bolt::receipts {
namespace {

void put(Value& body, std::string_view path, const std::string& text) {
  if (!text.empty()) body.set(path, text);
}
void put(Value& body, std::string_view path, const std::optional<std::int64_t>& number) {
  if (number) body.set(path, *number);
}
void put(Value& body, std::string_view path, const std::vector<std::string>& texts) {
  if (!texts.empty()) body.set(path, Value::Array(texts.begin(), texts.end()));
}
void put(Value& body, std::string_view path, Value::Array list) {
  if (!list.empty()) body.set(path, std::move(list));
}

std::string_view view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

Digest must_be_digest(const std::string& text, std::string_view where) {
  const auto digest = digest_from_hex(text);
  if (!digest) {
    throw Failure(Status::fault,
                  fmt::format("receipt: {} is no SHA-256 that can be sealed", where));
  }
  return *digest;
}

void set_build(Value& body, const Build& build) {
  put(body, "build.exe", build.exe);
  Value::Array modules, cubins;
  for (const Module& module : build.modules) {
    Value entry;
    put(entry, "name", module.name);
    put(entry, "sha256", module.sha256);
    put(entry, "build_id", module.build_id);
    modules.push_back(std::move(entry));
  }
  for (const Cubin& cubin : build.cubins) {
    Value entry;
    put(entry, "arch", cubin.arch);
    put(entry, "sha256", cubin.sha256);
    cubins.push_back(std::move(entry));
  }
  put(body, "build.modules", std::move(modules));
  put(body, "build.cubins", std::move(cubins));
  put(body, "build.commit", build.commit);
  put(body, "build.tree", build.tree);
  put(body, "build.diff", build.diff);
  put(body, "build.published", build.published);
  put(body, "build.toolchain", build.toolchain);
  put(body, "build.flags", build.flags);
  put(body, "build.rebuilds", build.rebuilds);
}

void set_package(Value& body, const PackageFacts& package, bool with_files) {
  std::vector<PackageFileFact> files = package.files;
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  if (with_files) {
    Value::Array list;
    for (const PackageFileFact& file : files) {
      Value entry;
      entry.set("path", file.path);
      entry.set("role", file.role);
      entry.set("bytes", static_cast<std::int64_t>(file.bytes));
      entry.set("sha256", file.sha256);
      entry.set("how", file.how);
      entry.set("links", static_cast<std::int64_t>(file.links));
      list.push_back(std::move(entry));
    }
    put(body, "package.files", std::move(list));
    put(body, "package.source", package.source);
  }
  body.set("package.sha256", package_digest(files));
  put(body, "package.vocab", package.vocab);
}

void set_arith(Value& body, const Arith& arith, bool whole) {
  body.set("arith.id", arith.id);
  body.set("arith.sha256", arith.sha256);
  if (!whole) return;
  body.set("arith.kv", arith.kv);
  body.set("arith.scope", arith.scope);
  body.set("arith.width_invariant", arith.width_invariant);
}

void set_device(Value& body, const Device& device) {
  body.set("device.kind", device.kind);
  body.set("device.arch", device.arch);
  put(body, "device.sms", device.sms);
  body.set("device.ranks", device.ranks);
  body.set("device.threads", device.threads);
  put(body, "device.name", device.name);
  put(body, "device.driver", device.driver);
  put(body, "device.runtime", device.runtime);
  put(body, "device.uuid_tag", device.uuid_tag);
}

void set_redaction(Value& body, const Redaction& redaction, const Binder& binder) {
  using Mode = Redaction::Mode;
  body.set("redaction.mode", redaction.mode == Mode::plain   ? "plain"
                             : redaction.mode == Mode::keyed ? "keyed"
                                                             : "salted");
  put(body, "redaction.key_id", binder.key_id());
  if (redaction.drop_info) body.set("redaction.dropped", true);
}

void set_task(Value& body, const TaskFacts& task, const Binder& binder) {
  body.set("task.prompt_ids", bind_hex(binder, "ids", {ids_bytes(task.prompt_ids)}));
  body.set("task.prompt_n", static_cast<std::int64_t>(task.prompt_ids.size()));
  if (task.has_prompt_text) body.set("task.text", bind_hex(binder, "text", {task.prompt_text}));
  put(body, "task.template", task.template_sha256);
  const Sampling& sampling = task.sampling;
  body.set("task.sampling.kind", sampling.kind);
  if (sampling.kind != "greedy") {
    body.set("task.sampling.temperature", f32_hex(sampling.temperature));
    body.set("task.sampling.top_k", sampling.top_k);
    body.set("task.sampling.top_p", f32_hex(sampling.top_p));
    body.set("task.sampling.min_p", f32_hex(sampling.min_p));
    body.set("task.sampling.rng", sampling.rng);
    body.set("task.sampling.seed", u64_hex(sampling.seed));
  }
  put(body, "task.stop_ids", Value::Array(task.stop_ids.begin(), task.stop_ids.end()));
  Value::Array stop_texts;
  for (const std::string& text : task.stop_texts) {
    stop_texts.emplace_back(bind_hex(binder, "stop", {text}));
  }
  put(body, "task.stop_texts", std::move(stop_texts));
  body.set("task.ignore_eos", task.ignore_eos);
  if (task.max_new >= 0) body.set("limits.max_new", task.max_new);
  body.set("limits.context", task.context);
}

void set_mode(Value& body, const Mode& mode) {
  body.set("mode.kind", mode.kind);
  body.set("mode.depth", mode.depth);
  body.set("mode.adaptive", mode.adaptive);
  body.set("mode.source", mode.source);
  body.set("mode.geometry", mode.geometry);
  put(body, "mode.costs", mode.costs);
}

void set_sched(Value& body, const Sched& sched) {
  body.set("sched.slots", sched.slots);
  body.set("sched.peers", sched.peers);
  body.set("sched.cache", sched.cache);
  body.set("sched.cached_n", sched.cached_n);
}

void set_out(Value& body, const RunFacts& facts, const Binder& binder, const Digest& task) {
  const OutFacts& out = facts.out;
  const auto n = static_cast<std::int64_t>(out.ids.size());
  body.set("out.n", n);
  body.set("out.ids", bind_hex(binder, "ids", {ids_bytes(out.ids)}));
  const std::int64_t stride = chain_stride(n);
  body.set("out.chain.stride", stride);
  put(body, "out.chain.marks", chain_marks(binder, task, out.ids, stride));
  if (out.has_text) body.set("out.text", bind_hex(binder, "text", {out.text}));
  body.set("out.nonfinite", out.nonfinite);
  if (!out.logits.empty()) body.set("out.logits", digest_list(binder, "logits", out.logits));
  if (!out.state.empty()) {
    body.set("out.state.sha256", digest_list(binder, "state", out.state));
    body.set("out.state.boundary", out.state_boundary);
  }
  if (out.margin && !facts.redaction.drop_info) {
    body.set("out.margin.value", f32_hex(out.margin->value));
    body.set("out.margin.at", out.margin->at);
  }
  body.set("stop.kind", facts.stop.kind);
  put(body, "stop.id", facts.stop.id);
  put(body, "stop.at", facts.stop.at);
  body.set("out.key", out_key(body, binder));
}

void set_count(Value& body, const CountFacts& count) {
  body.set("count.target", count.target);
  body.set("count.segments", count.segments);
  body.set("count.rounds", count.rounds);
  body.set("count.prompt_passes", count.prompt_passes);
  body.set("count.drafted", count.drafted);
  put(body, "count.accepted_at", Value::Array(count.accepted_at.begin(), count.accepted_at.end()));
  body.set("count.bonus", count.bonus);
  body.set("count.cut", count.cut);
  body.set("count.head_levels", count.head_levels);
  put(body, "count.block_passes", count.block_passes);
  body.set("count.copy.rounds", count.copy_rounds);
  body.set("count.copy.drafted", count.copy_drafted);
  body.set("count.copy.accepted", count.copy_accepted);
  put(body, "count.state_copies", count.state_copies);
  put(body, "count.bytes", count.state_bytes);
}

// Leaves out what only informs, as the facts' owner chose before sealing.
void drop_info(Value& body) {
  for (const char* name : {"device", "env", "admission", "count", "time"}) {
    body.object().erase(name);
  }
  // A planned run must say which prompt it answers.
  if (body.find("series") == nullptr) body.object().erase("request");
  for (const Field& field : fields()) {
    const std::size_t dot = field.path.find('.');
    if (field.column != 'I' || dot == std::string_view::npos || field.path == "redaction.dropped" ||
        field.path.starts_with("request.") || field.path.find('[') != std::string_view::npos) {
      continue;
    }
    const auto section = body.object().find(field.path.substr(0, dot));
    if (section == body.object().end() || !section->second.is_object()) continue;
    Value::Object& entries = section->second.object();
    const auto entry = entries.find(field.path.substr(dot + 1));
    if (entry != entries.end()) entries.erase(entry);
  }
}

}  // namespace

std::string f32_hex(float value) {
  return fmt::format("{:08x}", std::bit_cast<std::uint32_t>(value));
}
std::string u64_hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::string digest_list(const Binder& binder, std::string_view tag,
                        const std::vector<std::string>& digests) {
  std::string all;
  for (const std::string& digest : digests) all += view(must_be_digest(digest, tag));
  return bind_hex(binder, tag, {all});
}

Digest task_digest(const Value& body, const Binder& binder) {
  Value inputs;
  for (const Field& field : fields()) {
    const std::string_view path = field.path;
    if (field.column != 'T' || field.type == FieldType::object || path == "_type" ||
        path.starts_with("limits.") || path == "task.sha256" || path.ends_with("[]")) {
      continue;
    }
    const Value* value = body.find(path);
    if (value != nullptr) inputs.set(path, *value);
  }
  return binder.bind("task", {canonical(inputs)});
}

std::string out_key(const Value& body, const Binder& binder) {
  const Digest task = must_be_digest(body.string_at("task.sha256"), "task.sha256");
  const Digest ids = must_be_digest(body.string_at("out.ids"), "out.ids");
  const Value* stop = body.find("stop");
  return bind_hex(binder, "out",
                  {view(task), u64le(static_cast<std::uint64_t>(body.int_at("out.n"))), view(ids),
                   canonical(stop != nullptr ? *stop : Value())});
}

void set_common(Value& body, const char* kind, const Common& common) {
  body.set("_type", std::string(kBodyType));
  body.set("kind", kind);
  body.set("run_id", common.run_id);
  put(body, "challenge", common.challenge);
  set_build(body, common.build);
  if (std::string_view("run session bench").find(kind) != std::string_view::npos) {
    body.set("build.jit", common.build.jit);
  }
  if (common.device) set_device(body, *common.device);
  Value::Array env;
  for (const EnvEntry& entry : common.env) {
    Value e;
    e.set("name", entry.name);
    put(e, "value", entry.value);
    put(e, "sha256", entry.sha256);
    env.push_back(std::move(e));
  }
  put(body, "env", std::move(env));
  if (common.admission) {
    body.set("admission.exclusive", common.admission->exclusive);
    body.set("admission.others", common.admission->others);
    body.set("admission.lock", common.admission->lock);
  }
  const Times& time = common.time;
  body.set("time.utc", time.utc);
  const std::pair<const char*, std::int64_t> spans[] = {
      {"time.load_ns", time.load_ns},     {"time.prefill_ns", time.prefill_ns},
      {"time.decode_ns", time.decode_ns}, {"time.first_token_ns", time.first_token_ns},
      {"time.total_ns", time.total_ns},   {"time.sealed_us", time.sealed_us},
  };
  for (const auto& [path, ns] : spans) {
    if (ns > 0) body.set(path, ns);
  }
  Value::Array parents;
  for (const Parent& parent : common.parents) {
    Value p;
    p.set("role", parent.role);
    p.set("rid", parent.rid);
    parents.push_back(std::move(p));
  }
  put(body, "parents", std::move(parents));
  put(body, "limits_stated", common.limits_stated);
  put(body, "not_run", common.not_run);
}

Value run_body(const RunFacts& facts) {
  Value body;
  const Binder binder = Binder::of(facts.redaction);
  set_common(body, "run", facts.common);
  const bool pack = in_pack(body);
  if (pack) {  // the session says the rest
    const std::string exe = body.string_at("build.exe");
    const bool jit = facts.common.build.jit;
    body.object().erase("build");
    body.set("build.exe", exe);
    body.set("build.jit", jit);
    body.object().erase("env");
    body.object().erase("admission");
    body.object().erase("device");
  }
  set_package(body, facts.package, !pack);
  set_arith(body, facts.arith, true);
  set_redaction(body, facts.redaction, binder);
  set_task(body, facts.task, binder);
  if (facts.request) {
    body.set("request.input", bind_hex(binder, "line", {facts.request->input}));
    body.set("request.line", facts.request->line);
    if (!facts.request->id.empty()) {
      body.set("request.id", bind_hex(binder, "id", {facts.request->id}));
    }
  }
  const Digest task = task_digest(body, binder);
  body.set("task.sha256", hex(task));
  set_mode(body, facts.mode);
  set_sched(body, facts.sched);
  set_out(body, facts, binder, task);
  set_count(body, facts.count);
  if (facts.series) {
    body.set("series.plan", facts.series->plan);
    body.set("series.cell", facts.series->cell);
    body.set("series.pass", facts.series->pass);
    body.set("series.index", facts.series->index);
    body.set("series.order", facts.series->order);
  }
  if (facts.redaction.drop_info) drop_info(body);
  return body;
}

Value conversion_body(const ConversionFacts& facts) {
  Value body;
  set_common(body, "conversion", facts.common);
  set_package(body, facts.package, true);
  set_arith(body, facts.arith, false);
  body.set("conversion.source_name", facts.source_name);
  Value::Array files;
  for (const SourceFile& file : facts.source_files) {
    Value entry;
    entry.set("path", file.path);
    entry.set("bytes", static_cast<std::int64_t>(file.bytes));
    entry.set("sha256", file.sha256);
    files.push_back(std::move(entry));
  }
  put(body, "conversion.source_files", std::move(files));
  body.set("conversion.quant", facts.quant.empty() ? "none" : facts.quant);
  put(body, "conversion.keep", facts.keep);
  body.set("conversion.geometry", facts.geometry);
  body.set("conversion.without_mtp", facts.without_mtp);
  body.set("conversion.verified", facts.verified);
  body.set("conversion.tensors", facts.tensors);
  body.set("conversion.values_compared", facts.values_compared);
  body.set("conversion.values_requantised", facts.values_requantised);
  put(body, "conversion.draft_vocab", facts.draft_vocab_sha256);
  return body;
}

Value session_body(const SessionFacts& facts) {
  Value body;
  set_common(body, "session", facts.common);
  set_package(body, facts.package, true);
  set_arith(body, facts.arith, true);
  set_redaction(body, facts.redaction, Binder::of(facts.redaction));
  set_mode(body, facts.mode);
  set_sched(body, facts.sched);
  body.set("session.phase", facts.totals ? "closed" : "open");
  if (facts.totals) {
    body.set("session.lines", facts.totals->lines);
    body.set("session.answered", facts.totals->answered);
    body.set("session.failed", facts.totals->failed);
    const std::vector<std::int64_t>& failed = facts.totals->failed_lines;
    put(body, "session.failed_lines", Value::Array(failed.begin(), failed.end()));
    std::vector<Digest> rids;
    for (const std::string& rid : facts.totals->rids) rids.push_back(must_be_digest(rid, "a rid"));
    body.set("session.root", hex(merkle_root(rids)));
  }
  return body;
}

}  // namespace bolt::receipts
