#include "protocol/json_reader.h"

#include <cstdint>

namespace mayfly {
namespace {

// Twice what BSON may nest, for the wrappers of extended JSON.
constexpr int kMaxDepth = 220;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool Whole(JsonNode* out) {
    if (!Value(out, 0)) return false;
    Space();
    return at_ == text_.size() || Fail("text after the value");
  }
  std::string why() const { return std::string(why_) + " at offset " + std::to_string(at_); }

 private:
  bool Fail(const char* why) {
    why_ = why;
    return false;
  }
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Eat(char c) { return Peek() == c && at_ < text_.size() ? (++at_, true) : false; }
  void Space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }
  bool Word(std::string_view word, JsonNode::Kind kind, JsonNode* out) {
    if (text_.substr(at_, word.size()) != word) return Fail("unexpected character");
    at_ += word.size();
    out->kind = kind;
    return true;
  }

  bool Value(JsonNode* out, int depth) {
    if (depth > kMaxDepth) return Fail("nesting is too deep");
    Space();
    switch (Peek()) {
      case '{':
        return Members(out, depth, JsonNode::Kind::kObject, '}');
      case '[':
        return Members(out, depth, JsonNode::Kind::kArray, ']');
      case '"':
        out->kind = JsonNode::Kind::kString;
        return String(&out->text);
      case 'n':
        return Word("null", JsonNode::Kind::kNull, out);
      case 't':
        return Word("true", JsonNode::Kind::kTrue, out);
      case 'f':
        return Word("false", JsonNode::Kind::kFalse, out);
      default:
        return Number(out);
    }
  }

  bool Members(JsonNode* out, int depth, JsonNode::Kind kind, char close) {
    ++at_;
    out->kind = kind;
    Space();
    if (Eat(close)) return true;
    for (;;) {
      JsonNode& child = out->children.emplace_back();
      if (kind == JsonNode::Kind::kObject) {
        Space();
        if (Peek() != '"') return Fail("a field name was expected");
        if (!String(&child.name)) return false;
        Space();
        if (!Eat(':')) return Fail("':' was expected");
      }
      if (!Value(&child, depth + 1)) return false;
      Space();
      if (Eat(close)) return true;
      if (!Eat(',')) return Fail("',' or the end was expected");
    }
  }

  bool Number(JsonNode* out) {
    size_t start = at_;
    auto digits = [this] {
      size_t first = at_;
      while (Peek() >= '0' && Peek() <= '9') ++at_;
      return at_ > first;
    };
    Eat('-');
    if (Eat('0')) {
      if (Peek() >= '0' && Peek() <= '9') return Fail("a number has a leading zero");
    } else if (!digits()) {
      return Fail(at_ == text_.size() ? "the text ends early" : "unexpected character");
    }
    if (Eat('.') && !digits()) return Fail("a digit was expected");
    if (Peek() == 'e' || Peek() == 'E') {
      ++at_;
      if (!Eat('+')) Eat('-');
      if (!digits()) return Fail("a digit was expected");
    }
    out->kind = JsonNode::Kind::kNumber;
    out->text = text_.substr(start, at_ - start);
    return true;
  }

  bool Hex4(uint32_t* out) {
    *out = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      char c = Peek();
      uint32_t d;
      if (c >= '0' && c <= '9')
        d = static_cast<uint32_t>(c - '0');
      else if (c >= 'a' && c <= 'f')
        d = static_cast<uint32_t>(c - 'a' + 10);
      else if (c >= 'A' && c <= 'F')
        d = static_cast<uint32_t>(c - 'A' + 10);
      else
        return Fail("a \\u escape needs four hexadecimal digits");
      *out = *out << 4 | d;
    }
    return true;
  }

  bool String(std::string* out) {
    ++at_;
    while (at_ < text_.size()) {
      char c = text_[at_];
      if (c == '"') {
        ++at_;
        return true;
      }
      if (static_cast<uint8_t>(c) < 0x20)
        return Fail("a control character in a string is not escaped");
      ++at_;
      if (c != '\\') {
        out->push_back(c);
        continue;
      }
      char e = Peek();
      ++at_;
      switch (e) {
        case '"':
        case '\\':
        case '/':
          out->push_back(e);
          break;
        case 'b':
          out->push_back('\b');
          break;
        case 'f':
          out->push_back('\f');
          break;
        case 'n':
          out->push_back('\n');
          break;
        case 'r':
          out->push_back('\r');
          break;
        case 't':
          out->push_back('\t');
          break;
        case 'u': {
          uint32_t code;
          if (!Hex4(&code)) return false;
          if (code >= 0xD800 && code <= 0xDFFF) {
            uint32_t low;
            if (code >= 0xDC00 || !Eat('\\') || !Eat('u')) return Fail("half a surrogate pair");
            if (!Hex4(&low)) return false;
            if (low < 0xDC00 || low > 0xDFFF) return Fail("half a surrogate pair");
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
          }
          AppendUtf8(code, out);
          break;
        }
        default:
          return Fail("unknown escape");
      }
    }
    return Fail("a string is not terminated");
  }

  static void AppendUtf8(uint32_t c, std::string* out) {
    auto put = [out](uint32_t b) { out->push_back(static_cast<char>(b)); };
    if (c < 0x80) {
      put(c);
    } else if (c < 0x800) {
      put(0xC0 | c >> 6);
      put(0x80 | (c & 63));
    } else if (c < 0x10000) {
      put(0xE0 | c >> 12);
      put(0x80 | (c >> 6 & 63));
      put(0x80 | (c & 63));
    } else {
      put(0xF0 | c >> 18);
      put(0x80 | (c >> 12 & 63));
      put(0x80 | (c >> 6 & 63));
      put(0x80 | (c & 63));
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  const char* why_ = "";
};

}  // namespace

bool ReadJson(std::string_view text, JsonNode* out, std::string* why) {
  Reader r(text);
  if (r.Whole(out)) return true;
  *why = r.why();
  return false;
}

}  // namespace mayfly
