#include "security/checksum.h"

#include <openssl/evp.h>

#include <new>

namespace mayfly {

struct Checksum::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  State() {
    if (context == nullptr) throw std::bad_alloc();
    Begin();
  }
  ~State() { EVP_MD_CTX_free(context); }
  void Begin() {
    if (EVP_DigestInit_ex(context, EVP_sha256(), nullptr) != 1) throw std::bad_alloc();
  }
};

Checksum::Checksum() : state_(std::make_unique<State>()) {}
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::Add(std::string_view bytes) {
  if (EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) != 1) throw std::bad_alloc();
}

std::string Checksum::Take() {
  std::string sum(kBytes, '\0');
  unsigned size = 0;
  if (EVP_DigestFinal_ex(state_->context, reinterpret_cast<unsigned char*>(sum.data()), &size) != 1)
    throw std::bad_alloc();
  state_->Begin();
  return sum;
}

}  // namespace mayfly
