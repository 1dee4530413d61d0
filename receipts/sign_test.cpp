#include "receipts/sign.h"

#include <doctest/doctest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "receipts/export.h"
#include "receipts/sign_file.h"
#include "receipts/test_facts.h"

using namespace bolt::receipts;

namespace {

struct Folder {
  Folder() {
    char name[] = "/tmp/bolt-sign-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const std::string& name, const std::string& bytes, mode_t mode = 0600) const {
    const std::string full = path + "/" + name;
    std::ofstream(full, std::ios::binary) << bytes;
    ::chmod(full.c_str(), mode);
    return full;
  }
  std::string path;
};

std::string pem(EVP_PKEY* key, bool is_private) {
  BIO* bio = BIO_new(BIO_s_mem());
  if (is_private) {
    PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  } else {
    PEM_write_bio_PUBKEY(bio, key);
  }
  char* data = nullptr;
  const long n = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<std::size_t>(n));
  BIO_free(bio);
  return text;
}

// Ed25519 keys from fixed seeds: private and public PEM.
std::pair<std::string, std::string> key_pair(std::uint8_t seed) {
  std::array<std::uint8_t, 32> bytes;
  bytes.fill(seed);
  EVP_PKEY* key = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, bytes.data(), 32);
  auto pair = std::make_pair(pem(key, true), pem(key, false));
  EVP_PKEY_free(key);
  return pair;
}

int status_of(const std::function<void()>& work) {
  try {
    work();
    return 0;
  } catch (const Failure& failure) {
    return static_cast<int>(failure.status);
  }
}

}  // namespace

TEST_CASE("sign: a signed receipt verifies with its key and with no other") {
  const Folder folder;
  const auto [private_pem, public_pem] = key_pair(1);
  const std::string receipt = folder.file("r.bolt.jsonl", sealed_text(sample_run()));
  const PrivateKey key = read_private_key(folder.file("k.pem", private_pem));
  VerifyOptions options;
  options.keys = {read_public_key(folder.file("k.pub", public_pem))};
  options.require_signed = true;
  CHECK(status_of([&] { (void)verify_file(receipt, options); }) == 5);
  CHECK(sign_file(receipt, key).status == Status::holds);
  CHECK(verify_file(receipt, options).lines[0].text.find("signature ok ed25519:") !=
        std::string::npos);
  // A second time nothing is added; the same key does not count twice (case 33).
  (void)sign_file(receipt, key);
  CHECK(read_receipt(receipt).envelopes.size() == 1);
  options.threshold = 2;
  options.keys.push_back(options.keys[0]);
  CHECK(status_of([&] { (void)verify_file(receipt, options); }) == 5);
  const auto [other_private, other_public] = key_pair(2);
  VerifyOptions other;
  other.keys = {read_public_key(folder.file("o.pub", other_public))};
  CHECK(status_of([&] { (void)verify_file(receipt, other); }) == 5);
  (void)sign_file(receipt, read_private_key(folder.file("o.pem", other_private)));
  options.keys[1] = other.keys[0];
  CHECK(status_of([&] { (void)verify_file(receipt, options); }) == 0);
  // Attachments deleted: the signatures stand (case 39).
  std::string text = sealed_text(sample_run());
  const Receipt signed_receipt = read_receipt(receipt);
  std::string redacted = resealed(body_of(text));
  for (const std::string& line : signed_receipt.envelopes) redacted += line + "\n";
  CHECK(verdict(redacted, options) == 0);
  // Signature stripped (case 33), and --require-signed without a key.
  CHECK(verdict(text, options) == 5);
  VerifyOptions no_key;
  no_key.require_signed = true;
  CHECK(verdict(redacted, no_key) == 5);
  no_key = VerifyOptions();
  no_key.threshold = 2;
  CHECK(verdict(redacted, no_key) == 5);
}

TEST_CASE("sign: case 32, an envelope about something else is refused") {
  const Folder folder;
  const auto [private_pem, public_pem] = key_pair(1);
  const PrivateKey key = read_private_key(folder.file("k.pem", private_pem));
  VerifyOptions options;
  options.keys = {key.public_key};
  const Receipt receipt = sealed(sample_run());
  const std::string text = sealed_text(sample_run());
  const std::string envelope = envelope_line(receipt, key);
  CHECK(verdict(text + envelope + "\n", options) == 0);
  // Another payloadType, the signature of another receipt, a changed payload or signature.
  CHECK(verdict(text + replaced(envelope, "vnd.in-toto+json", "vnd.in-toto+jsox") + "\n",
                options) == 5);
  const std::string other = envelope_line(sealed(sample_speculative()), key);
  CHECK(verdict(text + other + "\n", options) == 5);
  std::string changed = envelope;
  const std::size_t sig = changed.find("\"sig\":\"") + 7;
  changed[sig] = changed[sig] == 'A' ? 'B' : 'A';
  CHECK(verdict(text + changed + "\n", options) == 5);
  // keyid lies (case 33): it is a hint, so the right key still verifies and a wrong one does not.
  CHECK(verdict(text + replaced(envelope, key.public_key.id(), "ed25519:0000000000000000") + "\n",
                options) == 0);
  // The pre-authentication encoding binds lengths.
  CHECK(pae("a", "bc") == "DSSEv1 1 a 2 bc");
  CHECK(pae("ab", "c") != pae("a", "bc"));
  // Form: spaces, other fields, base64 that is not canonical.
  for (const auto& [from, to] :
       {std::pair<const char*, const char*>{"{\"payload\":", "{\"payload\": "},
        {"\"signatures\":[", "\"more\":1,\"signatures\":["},
        {"]}", "],\"x\":1}"}}) {
    CHECK(verdict(text + replaced(envelope, from, to) + "\n", options) == 3);
  }
}

TEST_CASE("sign: case 34, keys of small order, not in canonical form, or of another type") {
  const auto refused = [](const char* text) {
    const Digest bytes = *digest_from_hex(text);
    return status_of([&] { (void)check_public_key(bytes, "key"); }) == 5;
  };
  for (const char* small : {"0100000000000000000000000000000000000000000000000000000000000000",
                            "0100000000000000000000000000000000000000000000000000000000000080",
                            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
                            "0000000000000000000000000000000000000000000000000000000000000000",
                            "0000000000000000000000000000000000000000000000000000000000000080",
                            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
                            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
                            "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
                            "f0ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"}) {
    CHECK_MESSAGE(refused(small), small);
  }
  CHECK_FALSE(refused("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"));
  // The control: OpenSSL itself takes the identity as a key, and a made-up signature under it.
  std::array<std::uint8_t, 32> identity{};
  identity[0] = 1;
  std::array<std::uint8_t, 64> forged{};
  forged[0] = 1;  // R is the identity, S is 0: R + hA = S B for every h
  EVP_PKEY* key = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, identity.data(), 32);
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  REQUIRE(EVP_DigestVerifyInit(context, nullptr, nullptr, nullptr, key) == 1);
  const auto* message = reinterpret_cast<const unsigned char*>("anything");
  CHECK(EVP_DigestVerify(context, forged.data(), forged.size(), message, 8) == 1);
  EVP_MD_CTX_free(context);
  EVP_PKEY_free(key);

  const Folder folder;
  EVP_PKEY* x25519 = EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519");
  CHECK(status_of([&] { (void)read_private_key(folder.file("x.pem", pem(x25519, true))); }) == 5);
  CHECK(status_of([&] { (void)read_public_key(folder.file("x.pub", pem(x25519, false))); }) == 5);
  EVP_PKEY_free(x25519);
  CHECK(status_of([&] { (void)read_private_key(folder.path + "/absent.pem"); }) == 5);
  CHECK(status_of([&] { (void)read_private_key(folder.file("junk.pem", "junk")); }) == 5);
  CHECK(status_of([&] { (void)read_private_key(folder.path); }) == 5);
}

TEST_CASE("sign: case 34, S + L and Ed25519ph signatures are refused") {
  const Folder folder;
  const PrivateKey key = read_private_key(folder.file("k.pem", key_pair(1).first));
  const std::string text = sealed_text(sample_run());
  const Receipt receipt = sealed(sample_run());
  const std::string envelope = envelope_line(receipt, key);
  VerifyOptions options;
  options.keys = {key.public_key};
  const auto with_signature = [&](const std::string& raw) {
    std::string base64(89, '\0');
    const int n = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(base64.data()),
                                  reinterpret_cast<const unsigned char*>(raw.data()), 64);
    base64.resize(static_cast<std::size_t>(n));
    const std::size_t at = envelope.find("\"sig\":\"") + 7;
    std::string line = envelope;
    line.replace(at, line.find('"', at) - at, base64);
    return verdict(text + line + "\n", options);
  };
  const std::string honest = read_envelope(envelope, "t").signatures[0].bytes;
  CHECK(with_signature(honest) == 0);
  // L, little-endian: the order of the base point.
  const Digest order =
      *digest_from_hex("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010");
  std::string malleable = honest;
  int carry = 0;
  for (std::size_t i = 0; i < 32; ++i) {
    const int sum = static_cast<unsigned char>(malleable[32 + i]) + order[i] + carry;
    malleable[32 + i] = static_cast<char>(sum & 255);
    carry = sum >> 8;
  }
  REQUIRE(carry == 0);
  CHECK(with_signature(malleable) == 5);
  // What a pre-hashing signer would sign: the SHA-512 of the message, here by the pure scheme.
  const std::string message = pae(kPayloadType, statement(receipt));
  std::array<unsigned char, 64> hash;
  REQUIRE(EVP_Digest(message.data(), message.size(), hash.data(), nullptr, EVP_sha512(), nullptr) ==
          1);
  EVP_PKEY* handle = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, key.seed.data(), 32);
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  std::string prehashed(64, '\0');
  std::size_t size = 64;
  REQUIRE(EVP_DigestSignInit(context, nullptr, nullptr, nullptr, handle) == 1);
  REQUIRE(EVP_DigestSign(context, reinterpret_cast<unsigned char*>(prehashed.data()), &size,
                         hash.data(), hash.size()) == 1);
  EVP_MD_CTX_free(context);
  EVP_PKEY_free(handle);
  CHECK(with_signature(prehashed) == 5);
}

TEST_CASE("sign: private keys that others may read are refused") {
  const Folder folder;
  const std::string private_pem = key_pair(1).first;
  CHECK(status_of([&] { (void)read_private_key(folder.file("a", private_pem, 0600)); }) == 0);
  for (const mode_t mode : {0640, 0604, 0644, 0660}) {
    CHECK(status_of([&] { (void)read_private_key(folder.file("b", private_pem, mode)); }) == 5);
  }
  CHECK(status_of([&] { (void)read_redaction_key(folder.file("c", sha256_hex("k"), 0644)); }) == 5);
  CHECK(status_of([&] { (void)read_redaction_key(folder.file("d", sha256_hex("k") + "\n")); }) ==
        0);
  CHECK(status_of([&] { (void)read_redaction_key(folder.file("e", "short")); }) == 5);
}

TEST_CASE("export: case 41, independent tools accept what is exported, and no changed body") {
  const Folder folder;
  const auto [private_pem, public_pem] = key_pair(1);
  const std::string name = folder.file("r.bolt.jsonl", sealed_text(sample_run()));
  CHECK(status_of([&] {
          (void)export_receipt(read_receipt(name), ExportForm::dsse, folder.path + "/r");
        }) == 5);  // not signed
  (void)sign_file(name, read_private_key(folder.file("k.pem", private_pem)));
  const std::string key = folder.file("k.pub", public_pem), stem = folder.path + "/r";
  const Receipt receipt = read_receipt(name);
  (void)export_receipt(receipt, ExportForm::dsse, stem);
  (void)export_receipt(receipt, ExportForm::bundle, stem);
  (void)export_receipt(receipt, ExportForm::intoto, stem);
  CHECK(sha256_file_hex(stem + ".body.json") == receipt.rid);
  // Nothing is overwritten.
  CHECK(status_of([&] { (void)export_receipt(receipt, ExportForm::intoto, stem); }) == 2);
  const std::string changed =
      folder.file("changed", replaced(receipt.text, "\"n\":40", "\"n\":41"));
  const auto run = [](const std::string& command) {
    const int status = std::system((command + " >/dev/null 2>&1").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  const std::string check =
      "python3 " + std::string(BOLT_SOURCE_DIR) + "/testdata/receipts/check_dsse.py ";
  const int good = run(check + stem + ".dsse.json " + key + " " + stem + ".body.json");
  if (good == 77 || good == 127) {
    MESSAGE("skipped: no python3 with cryptography here");
  } else {
    CHECK(good == 0);
    CHECK(run(check + stem + ".sigstore.json " + key + " " + stem + ".body.json") == 0);
    CHECK(run(check + stem + ".dsse.json " + key + " " + changed) == 1);
    const std::string other = folder.file("o.pub", key_pair(2).second);
    CHECK(run(check + stem + ".dsse.json " + other + " " + stem + ".body.json") == 1);
  }
  const std::string cosign = "cosign verify-blob-attestation --key " + key + " --type " +
                             std::string(kPredicateType) + " --insecure-ignore-tlog --bundle " +
                             stem + ".sigstore.json ";
  if (run("cosign version") != 0) {
    MESSAGE("skipped: no cosign here");
  } else {
    CHECK(run(cosign + stem + ".body.json") == 0);
    CHECK(run(cosign + changed) != 0);
  }
}
