// `bolt bench`: options and help. --make writes a package of generated weights; the work is
// core/pack/make.h's.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <mutex>

#include "cmd/action.h"
#include "cmd/build_info.h"
#include "cmd/options.h"
#include "cmd/status_line.h"
#include "cmd/streams.h"
#include "cmd/values.h"
#include "core/base/interrupt.h"
#include "core/base/json.h"
#include "core/pack/make.h"
#include "core/pack/shapes.h"
#include "core/pack/tile_codec.h"

namespace bolt {
namespace {

struct BenchCommand {
  MakeOptions make;
  SayOptions say;
};

Exit run_make(BenchCommand& command) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  if (command.say.json) require_stdout();
  catch_interrupts();  // the work unwinds and removes what it had not finished
  StatusLine status(!command.say.quiet && stderr_is_terminal());
  std::mutex lock;
  command.make.bolt_version = build_info().version;
  command.make.progress = [&](const char* phase, std::uint64_t done, std::uint64_t total) {
    const std::lock_guard<std::mutex> hold(lock);
    if (!status.due() || total == 0) return;
    status.show(fmt::format("{} {:3.0f}%", phase,
                            100.0 * static_cast<double>(done) / static_cast<double>(total)));
  };
  const std::vector<PackageFile> files = make_package(command.make);
  status.clear();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  std::uint64_t bytes = 0;
  for (const PackageFile& file : files) bytes += file.bytes;
  if (command.say.json) {
    JsonWriter json;
    json.begin_object()
        .member("package", command.make.target)
        .member("shape", command.make.shape)
        .member("format", format_name(command.make.format))
        .member("seed", command.make.seed)
        .member("bytes", bytes)
        .member("package_sha256", files.front().sha256)
        .member("seconds", seconds);
    write_out(json.end_object().take() + "\n");
  } else if (!command.say.quiet) {
    write_err(fmt::format("{}: generated weights, {} in {}, {:.1f} MB in {:.1f} s\n",
                          command.make.target, command.make.shape, format_name(command.make.format),
                          static_cast<double>(bytes) / 1e6, seconds));
  }
  return Exit::ok;
}

std::string shapes_help() {
  std::string text = "Shapes:\n";
  for (const std::string& name : shape_names()) {
    text += fmt::format("  {:<11} {}\n", name, find_shape(name).about);
  }
  return text;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto command = std::make_shared<BenchCommand>();
  CLI::App* sub = app.add_subcommand("bench", "Make packages of generated weights to measure with");
  add_text(*sub, "--make", command->make.shape, "SHAPE",
           "Write a package of generated weights of this shape, or of a config.json's")
      ->required();
  Names<Format> formats;
  for (const Format format : {Format::bf16, Format::f32, Format::f16, Format::q8, Format::nvfp4}) {
    formats.emplace_back(format_name(format), format);
  }
  add_choice(*sub, "--format", command->make.format, formats, "Format of the linear weights");
  add_parsed(*sub, "--experts", "FORMAT", "Format of the routed experts, where theirs is another",
             [command, formats](const std::string& option, const std::string& text) {
               command->make.experts = parse_name(option, text, formats);
             });
  sub->add_option("OUT", command->make.target, "Package to make")->required();
  add_parsed(*sub, "--seed", "N", "Seed of the generated weights (default 1)",
             [command](const std::string& option, const std::string& text) {
               command->make.seed = parse_u64(option, text);
             });
  sub->add_flag("--force", command->make.force, "Replace a package that is there already");
  add_integer(*sub, "-t,--threads", command->make.n_threads, 0, 4096, "Threads; 0: every core");
  add_say_options(*sub, command->say);
  sub->footer(shapes_help() +
              "Generated weights are noise: replies mean nothing, speeds and memory do.\n"
              "Exit status: 0 done, 2 usage, 3 a config.json that is no Nemotron-H, 6 disk.");
  sub->callback([command, &action] { action = [command] { return run_make(*command); }; });
}

}  // namespace bolt
