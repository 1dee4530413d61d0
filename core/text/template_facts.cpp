#include "core/text/template_facts.h"

#include "core/base/json.h"

namespace bolt {

TemplateFacts recognise_template(std::string_view source) {
  const auto has = [&](std::string_view marker) { return source.find(marker) != source.npos; };
  TemplateFacts out;
  if (has("<|im_start|>") && has("enable_thinking")) {
    out.kind = "v3";
  } else if (has("<SPECIAL_10>")) {
    out.kind = "v2";
  } else {
    return out;
  }
  out.facts = JsonWriter().begin_object().member("source", std::string(source)).end_object().take();
  return out;
}

}  // namespace bolt
