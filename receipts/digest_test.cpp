#include "receipts/digest.h"

#include <doctest/doctest.h>

#include <numeric>

using namespace bolt::receipts;

TEST_CASE("digest: the format's published vectors") {
  const std::vector<int> ids = {1, 2, 3};
  const Binder plain;
  CHECK(bind_hex(plain, "ids", {ids_bytes(ids)}) ==
        "af982ebf0135eb086d15ea790c0049ece899a7ca5a598214c46dafd2d1e67df6");
  const Digest zeros{};
  Chain chain(plain, zeros);
  CHECK(hex(chain.value()) == "687eeef841e977dcbc4378f9b92c8aefe85292d3c7f9f9d563a5cb666ad4087b");
  for (const int id : ids) chain.add(id);
  CHECK(hex(chain.value()) == "e40d5488aa8ef9086a364f86a75878c0f42283d748a54dafea26bc82625c4df7");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("digest: framing keeps parts and tags apart") {
  const Binder plain;
  CHECK(plain.bind("a", {"bc", "d"}) != plain.bind("a", {"b", "cd"}));
  CHECK(plain.bind("a", {"bc"}) != plain.bind("ab", {"c"}));
  CHECK(plain.bind("a", {"", "b"}) != plain.bind("a", {"b"}));
  // The twin without lengths cannot tell them apart: the lengths are what does it.
  CHECK(sha256(std::string("a\0", 2) + "bc" + "d") == sha256(std::string("a\0", 2) + "b" + "cd"));
}

TEST_CASE("digest: marks stand every stride and at the end") {
  const Digest task{};
  std::vector<int> ids(40);
  std::iota(ids.begin(), ids.end(), 7);
  const auto marks = chain_marks(Binder(), task, ids, 16);
  CHECK(marks.size() == 3);
  CHECK(chain_marks(Binder(), task, std::span(ids).first(32), 16).size() == 2);
  CHECK(chain_marks(Binder(), task, std::span(ids).first(0), 16).empty());
  CHECK(chain_stride(512) == 16);
  CHECK(chain_stride(16 * 4096) == 16);
  CHECK(chain_stride(16 * 4096 + 1) == 32);
  // One id changed shows in its mark and in all later ones.
  ids[20] += 1;
  const auto changed = chain_marks(Binder(), task, ids, 16);
  CHECK(changed[0] == marks[0]);
  CHECK(changed[1] != marks[1]);
  CHECK(changed[2] != marks[2]);
}

TEST_CASE("digest: a key changes every bound digest and is named without being given away") {
  std::array<std::uint8_t, 32> key{};
  key[0] = 1;
  const Binder keyed(key), plain;
  CHECK(keyed.bind("ids", {"x"}) != plain.bind("ids", {"x"}));
  CHECK(keyed.key_id().size() == 64);
  CHECK(plain.key_id().empty());
}

TEST_CASE("digest: RFC 6962 roots, leaf and node apart") {
  const Digest a = sha256("a"), b = sha256("b"), c = sha256("c");
  const auto text = [](const Digest& d) {
    return std::string(reinterpret_cast<const char*>(d.data()), d.size());
  };
  const auto leaf = [&](const Digest& d) { return sha256(std::string(1, '\0') + text(d)); };
  const auto node = [&](const Digest& x, const Digest& y) {
    return sha256(std::string(1, '\1') + text(x) + text(y));
  };
  CHECK(merkle_root({}) == sha256(""));
  CHECK(merkle_root(std::vector{a}) == leaf(a));
  CHECK(merkle_root(std::vector{a, b, c}) == node(node(leaf(a), leaf(b)), leaf(c)));
  // A node offered as a leaf does not give the same root.
  CHECK(merkle_root(std::vector{node(leaf(a), leaf(b)), c}) != merkle_root(std::vector{a, b, c}));
}

TEST_CASE("digest: case 18, swapping two package file names changes the digest") {
  PackageFileFact a, b;
  a.path = "weights-00000.bin", a.role = "payload", a.bytes = 4, a.sha256 = sha256_hex("a");
  b.path = "weights-00001.bin", b.role = "payload", b.bytes = 4, b.sha256 = sha256_hex("b");
  const std::string honest = package_digest({a, b});
  CHECK(honest == package_digest({b, a}));  // order of listing does not matter
  std::swap(a.path, b.path);
  CHECK(honest != package_digest({a, b}));
}
