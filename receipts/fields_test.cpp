#include "receipts/fields.h"

#include <doctest/doctest.h>

#include <fstream>
#include <set>

using namespace bolt::receipts;

namespace {

std::string manual() {
  std::ifstream in(std::string(BOLT_SOURCE_DIR) + "/man/bolt-receipt.5");
  return std::string((std::istreambuf_iterator<char>(in)), {});
}

// "RSC(BP)": kinds that need a field and those that may have it.
std::string kinds_text(const Field& field) {
  std::string optional;
  for (const char c : field.allowed) {
    if (field.needed.find(c) == std::string_view::npos) optional += c;
  }
  return std::string(field.needed) + (optional.empty() ? "" : "(" + optional + ")");
}

}  // namespace

TEST_CASE("fields: every field stands in bolt-receipt(5) with its type, column and kinds") {
  const std::string page = manual();
  REQUIRE(!page.empty());
  std::size_t n_items = 0;
  for (std::size_t at = 0; (at = page.find("\n.It Cm ", at)) != std::string::npos; ++at) ++n_items;
  CHECK(n_items >= fields().size());
  std::size_t last = page.find(".Sh FIELDS");
  REQUIRE(last != std::string::npos);
  for (const Field& field : fields()) {
    const std::string entry = "\n.It Cm " + std::string(field.path) + "\n" + type_name(field.type) +
                              "; " + field.column + "; " + kinds_text(field) + "; ";
    const std::size_t at = page.find(entry, last);
    CHECK_MESSAGE(at != std::string::npos, entry);
    if (at != std::string::npos) last = at;  // in the table's order
  }
}

TEST_CASE("fields: the table is well formed: no path twice, parents before children") {
  std::set<std::string_view> seen;
  for (const Field& field : fields()) {
    CHECK_MESSAGE(seen.insert(field.path).second, field.path);
    const std::size_t dot = field.path.rfind('.');
    if (dot != std::string_view::npos) {
      CHECK_MESSAGE(seen.contains(field.path.substr(0, dot)), field.path);
    }
    CHECK(std::string_view("TAOCPXI").find(field.column) != std::string_view::npos);
    CHECK((field.type == FieldType::choice) == !field.choices.empty());
    CHECK_MESSAGE(!(field.needed.empty() && field.allowed.empty()), field.path);
  }
}
