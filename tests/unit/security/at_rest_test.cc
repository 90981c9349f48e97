// Keys and ciphers of encryption at rest. What the files hold is also taken apart by their grammar
// alone, with the plain functions of OpenSSL.
#include "security/at_rest.h"

#include <openssl/evp.h>

#include <filesystem>
#include <set>
#include <sstream>
#include <thread>

#include "../test_ciphers.h"

namespace mayfly {
namespace {

namespace fs = std::filesystem;
using testing::MakeCiphers;
using testing::MakeMasterKey;
using testing::ScratchDir;
using testing::WriteKeyFile;

constexpr size_t kPrefix = FileCiphers::kPrefixBytes;

const unsigned char* Bytes(std::string_view s) {
  return reinterpret_cast<const unsigned char*>(s.data());
}

/// What AES-256-GCM opens to; empty: it does not.
std::string Open(std::string_view key, std::string_view nonce, std::string_view vouched,
                 std::string_view in, std::string_view tag) {
  EVP_CIPHER_CTX* c = EVP_CIPHER_CTX_new();
  std::string out(in.size(), '\0');
  int n = 0;
  auto* to = reinterpret_cast<unsigned char*>(out.data());
  EVP_DecryptInit_ex(c, EVP_aes_256_gcm(), nullptr, Bytes(key), Bytes(nonce));
  EVP_DecryptUpdate(c, nullptr, &n, Bytes(vouched), static_cast<int>(vouched.size()));
  EVP_DecryptUpdate(c, to, &n, Bytes(in), static_cast<int>(in.size()));
  EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, 16, const_cast<char*>(tag.data()));
  const bool good = EVP_DecryptFinal_ex(c, to + n, &n) == 1;
  EVP_CIPHER_CTX_free(c);
  return good ? out : "";
}

/// The byte that the one at `offset` of a file is combined with, by the definition of the mode: one
/// encrypted counter for each block.
unsigned char PadAt(std::string_view key, std::string_view counter, uint64_t offset) {
  std::string block(counter);
  unsigned carry = 0;
  const uint64_t add = offset / 16;
  for (int i = 15; i >= 0; --i) {
    const unsigned byte = i >= 8 ? static_cast<unsigned>(add >> (8 * (15 - i)) & 255) : 0;
    const unsigned sum = static_cast<unsigned char>(block[i]) + byte + carry;
    block[i] = static_cast<char>(sum);
    carry = sum >> 8;
  }
  EVP_CIPHER_CTX* c = EVP_CIPHER_CTX_new();
  unsigned char out[32];
  int n = 0;
  EVP_EncryptInit_ex(c, EVP_aes_256_ecb(), nullptr, Bytes(key), nullptr);
  EVP_CIPHER_CTX_set_padding(c, 0);
  EVP_EncryptUpdate(c, out, &n, Bytes(block), 16);
  EVP_CIPHER_CTX_free(c);
  return out[offset % 16];
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Directory {
  Directory() : master(MakeMasterKey(dir.path() + "/key", 'k')) {
    REQUIRE(MakeKeystore(dir.path(), master));
  }
  std::string keystore() const { return dir.path() + "/encryption.keystore"; }
  FileCiphersPtr MustOpen() const {
    auto opened = OpenKeystore(dir.path(), master, nullptr);
    REQUIRE(opened);
    return opened.value().ciphers;
  }
  ScratchDir dir;
  MasterKey master;
};

std::string NewPrefix(const FileCiphers& ciphers) {
  std::string prefix(kPrefix, 'x');
  REQUIRE(ciphers.MakePrefix(prefix.data()));
  return prefix;
}

}  // namespace

TEST_CASE("Key files: 32 bytes in base64, and nobody else's", "[at_rest]") {
  ScratchDir dir;
  const std::string path = dir.path() + "/key";
  auto read = [&] { return MasterKey::Read("encryptionKeyFile", path); };
  auto refused = [&](std::string_view why) {
    auto r = read();
    REQUIRE_FALSE(r);
    CHECK(r.error().code == ErrorCode::kInvalidOptions);
    CHECK_THAT(r.error().message,
               Catch::Contains("encryptionKeyFile: " + path) && Catch::Contains(std::string(why)));
  };
  refused("No such file");
  WriteKeyFile(path, std::string(32, 'k'));
  REQUIRE(read());
  CHECK(read().value().bytes() == std::string(32, 'k'));
  REQUIRE(::chmod(path.c_str(), 0400) == 0);
  CHECK(read());
  for (mode_t open : {0644, 0604, 0620, 0660, 0777}) {
    REQUIRE(::chmod(path.c_str(), open) == 0);
    refused("chmod 600");
  }
  for (size_t size : {0, 1, 16, 24, 31, 33, 64, 700}) {
    WriteKeyFile(path, std::string(size, 'k'));
    refused("32 bytes in base64");
  }
  for (const char* text : {"not base64 at all", "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2", "\n",
                           "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s=a2tra2tr"}) {
    std::ofstream(path) << text;
    refused("32 bytes in base64");
  }
  // What is wrong with a key says nothing of it.
  WriteKeyFile(path, std::string(31, 'k'));
  CHECK_THAT(read().error().message, !Catch::Contains("a2tr"));
  fs::remove(path);
  fs::create_directory(path);
  REQUIRE(::chmod(path.c_str(), 0700) == 0);
  refused("cannot read it");
}

TEST_CASE("What is on disk is what the grammar says", "[at_rest]") {
  Directory d;
  const std::string k = ReadFile(d.keystore());
  REQUIRE(k.size() == 8 + 1 + 16 + 8 + 12 + 32 + 16 + 32);
  CHECK(k.substr(0, 9) == std::string("MayflyKS\1"));
  CHECK((fs::status(d.keystore()).permissions() & fs::perms(0777)) == fs::perms(0600));
  const std::string store = k.substr(9, 16),
                    data_key = Open(std::string(32, 'k'), k.substr(33, 12), k.substr(0, 33),
                                    k.substr(45, 32), k.substr(77, 16));
  REQUIRE(data_key.size() == 32);
  CHECK(k.substr(25, 8) == d.master.id());

  const FileCiphersPtr ciphers = d.MustOpen();
  const std::string p = NewPrefix(*ciphers);
  CHECK(p.substr(0, 9) == std::string("MayflyEF\1"));
  CHECK(p.find_first_not_of('\0', 85) == std::string::npos);
  const std::string file =
      Open(data_key, p.substr(9, 12), p.substr(0, 9) + store, p.substr(21, 48), p.substr(69, 16));
  REQUIRE(file.size() == 48);
  auto cipher = ciphers->Open(p);
  REQUIRE(cipher);
  for (uint64_t offset : {uint64_t{0}, uint64_t{1}, uint64_t{15}, uint64_t{16}, uint64_t{4096},
                          uint64_t{4097}, (uint64_t{1} << 36) - 3, (uint64_t{1} << 62) + 7}) {
    std::string text(100, '\0');
    REQUIRE(cipher.value()->Apply(offset, text.data(), text.size()));
    for (size_t i = 0; i < text.size(); ++i)
      REQUIRE(static_cast<unsigned char>(text[i]) ==
              PadAt(file.substr(0, 32), file.substr(32), offset + i));
  }
}

TEST_CASE("Bytes are encrypted the same wherever one begins", "[at_rest]") {
  const FileCiphersPtr ciphers = MakeCiphers();
  const std::string prefix = NewPrefix(*ciphers);
  auto cipher = std::move(ciphers->Open(prefix).value());
  std::string plain;
  for (int i = 0; i < 5000; ++i) plain += static_cast<char>(i * 7 + i / 256);
  std::string whole = plain;
  REQUIRE(cipher->Apply(kPrefix, whole.data(), whole.size()));
  CHECK(whole != plain);
  for (size_t begin = 0; begin < 70; ++begin)
    for (size_t size : {0, 1, 15, 16, 17, 100, 4000}) {
      std::string piece = whole.substr(begin, size);
      REQUIRE(cipher->Apply(kPrefix + begin, piece.data(), piece.size()));
      REQUIRE(piece == plain.substr(begin, size));
    }
  // From many threads at once, as blocks are read.
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 500; ++i) {
        const size_t begin = (i * 37 + static_cast<size_t>(t) * 11) % 4000;
        std::string piece = whole.substr(begin, 900);
        if (!cipher->Apply(kPrefix + begin, piece.data(), piece.size()) ||
            piece != plain.substr(begin, 900))
          ++wrong;
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
}

TEST_CASE("Every file has another key", "[at_rest]") {
  const FileCiphersPtr ciphers = MakeCiphers();
  std::set<std::string> nonces, wrapped, pads;
  for (int i = 0; i < 200; ++i) {
    const std::string p = NewPrefix(*ciphers);
    nonces.insert(p.substr(9, 12));
    wrapped.insert(p.substr(21, 48));
    std::string zeros(32, '\0');
    REQUIRE(ciphers->Open(p).value()->Apply(kPrefix, zeros.data(), zeros.size()));
    pads.insert(zeros);
    std::string temporary(32, '\0');
    REQUIRE(ciphers->Temporary().value()->Apply(0, temporary.data(), temporary.size()));
    pads.insert(temporary);
  }
  CHECK(nonces.size() == 200);
  CHECK(wrapped.size() == 200);
  CHECK(pads.size() == 400);
}

TEST_CASE("A prefix that was changed, or is another store's, opens nothing", "[at_rest]") {
  const FileCiphersPtr ciphers = MakeCiphers(), others = MakeCiphers();
  const std::string good = NewPrefix(*ciphers);
  REQUIRE(ciphers->Open(good));
  CHECK_FALSE(others->Open(good));
  CHECK_FALSE(ciphers->Open(good.substr(0, kPrefix - 1)));
  CHECK_FALSE(ciphers->Open(""));
  CHECK_FALSE(ciphers->Open(std::string(kPrefix, '\0')));
  for (size_t i = 0; i < kPrefix; i += i < 90 ? 1 : 167)
    for (char change : {'\1', '\x80'}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ change);
      REQUIRE_FALSE(ciphers->Open(bad));
    }
  std::string newer = good;
  newer[8] = 2;
  CHECK_THAT(ciphers->Open(newer).error().message, Catch::Contains("does not know (2)"));
}

TEST_CASE("A keystore opens with its key, and says what is wrong otherwise", "[at_rest]") {
  Directory d;
  const std::string before = ReadFile(d.keystore());
  const std::string prefix = NewPrefix(*d.MustOpen());
  auto fails = [&](const MasterKey& with) {
    auto r = OpenKeystore(d.dir.path(), with, nullptr);
    REQUIRE_FALSE(r);
    return r.error();
  };
  SECTION("another key") {
    const Error e = fails(MakeMasterKey(d.dir.path() + "/other", 'o'));
    CHECK(e.code == ErrorCode::kInvalidOptions);
    CHECK_THAT(e.message, Catch::Contains("wrong master key") && Catch::Contains("/other") &&
                              !Catch::Contains("kkkk") && !Catch::Contains("oooo"));
    CHECK(ReadFile(d.keystore()) == before);
  }
  SECTION("it is not made again") {
    REQUIRE(MakeKeystore(d.dir.path(), MakeMasterKey(d.dir.path() + "/other", 'o')));
    CHECK(ReadFile(d.keystore()) == before);
  }
  SECTION("any byte changed is damage, not a wrong key") {
    for (size_t i = 0; i < before.size(); ++i) {
      std::string bad = before;
      bad[i] = static_cast<char>(bad[i] ^ 1);
      std::ofstream(d.keystore(), std::ios::binary) << bad;
      const Error e = fails(d.master);
      REQUIRE_THAT(e.message, Catch::Contains(d.keystore()) &&
                                  Catch::Contains(i == 8 ? "newer version" : "damaged"));
      REQUIRE_THAT(e.message, !Catch::Contains("wrong master key"));
    }
  }
  SECTION("cut, or with something behind it") {
    for (size_t n : {size_t{0}, size_t{7}, size_t{8}, size_t{9}, before.size() - 1}) {
      std::ofstream(d.keystore(), std::ios::binary) << before.substr(0, n);
      REQUIRE_THAT(fails(d.master).message, Catch::Contains("damaged"));
    }
    std::ofstream(d.keystore(), std::ios::binary) << before << "x";
    REQUIRE_THAT(fails(d.master).message, Catch::Contains("damaged"));
  }
  SECTION("gone") {
    fs::remove(d.keystore());
    CHECK_THAT(fails(d.master).message, Catch::Contains("No such file"));
  }
  std::ofstream(d.keystore(), std::ios::binary) << before;
  CHECK(d.MustOpen()->Open(prefix));
}

TEST_CASE("The master key is replaced, and files stay as they are", "[at_rest]") {
  Directory d;
  const std::string prefix = NewPrefix(*d.MustOpen()), before = ReadFile(d.keystore());
  const MasterKey next = MakeMasterKey(d.dir.path() + "/next", 'n'),
                  third = MakeMasterKey(d.dir.path() + "/third", 't');
  CHECK_FALSE(OpenKeystore(d.dir.path(), next, &third));
  CHECK(ReadFile(d.keystore()) == before);

  auto rotated = OpenKeystore(d.dir.path(), next, &d.master);
  REQUIRE(rotated);
  CHECK(rotated.value().rotated);
  CHECK(rotated.value().ciphers->Open(prefix));
  const std::string after = ReadFile(d.keystore());
  CHECK(after.substr(9, 16) == before.substr(9, 16));
  CHECK(after.substr(25) != before.substr(25));
  CHECK_FALSE(OpenKeystore(d.dir.path(), d.master, nullptr));
  CHECK(OpenKeystore(d.dir.path(), next, nullptr).value().ciphers->Open(prefix));

  // Once more with the same options: nothing to do.
  rotated = OpenKeystore(d.dir.path(), next, &d.master);
  REQUIRE(rotated);
  CHECK_FALSE(rotated.value().rotated);
  CHECK(ReadFile(d.keystore()) == after);
  size_t files = 0;
  for (const auto& f : fs::directory_iterator(d.dir.path()))
    files += f.path().filename().string().starts_with("encryption");
  CHECK(files == 1);
}

}  // namespace mayfly
