// The JSON files of a package, to text and back: config.json and graph.json. Each has one spelling,
// so a reader can demand that a file equals what its own content implies.
#pragma once

#include <string>

#include "core/base/json.h"
#include "core/pack/model_facts.h"
#include "core/pack/package.h"

namespace bolt {

std::string config_json(const ModelFacts& facts, const ModelConfig& model);
// `path` names the file in errors. Throws Error(input) for anything but config_json's own output
// with valid sizes.
void parse_config_json(const std::string& path, const std::string& text, ModelFacts& facts,
                       ModelConfig& model);

std::string graph_json(const Graph& graph);
// Fills geometry and every weight's format and place into a graph whose shapes follow from the
// config (graph_skeleton). Throws Error(input) naming the weight: another shape, an unknown or
// unfitting format, a place that is not aligned.
void parse_graph_json(const std::string& path, const std::string& text, Graph& graph);

// A weight's member of a graph's file, and its place read into one of the same shape; nothing is
// written of one that is not there.
void write_weight(JsonWriter& json, const std::string& name, const Weight& w);
void read_weight(const JsonValue& place, Weight& w);

// Where `text` first differs from `expected`, as "line N", both not equal.
std::string first_difference(const std::string& text, const std::string& expected);

}  // namespace bolt
