// tokenizer.model: the SentencePiece library between added tokens, as Hugging Face's LlamaTokenizer
// uses it. Unless the folder's config says legacy=false, every stretch of text between special
// tokens gets the model's space in front; otherwise only the first does.

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include "core/utf8.h"
#include "model/tokenizers/tokenizer_kinds.h"

namespace pith {
namespace {

using sentencepiece::SentencePieceProcessor;

// Appended to a serialized ModelProto, this merges into it: { normalizer_spec (3) { length 2:
// add_dummy_prefix (3) = false } }.
constexpr std::string_view kWithoutPrefix("\x1A\x02\x18\x00", 4);

/// Walks over the fields of a protobuf message. Only what is needed to see that a file is whole
/// and to read flags that the library does not show.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view bytes) : rest_(bytes) {}

  /// Moves to the next field. Throws kCorrupt if the message is cut.
  bool next() {
    if (rest_.empty()) return false;
    const uint64_t tag = varint();
    field_ = tag >> 3;
    number_ = 0;
    message_ = {};
    switch (tag & 7) {
      case 0: number_ = varint(); break;
      case 1: take(8); break;
      case 2: message_ = take(varint()); break;
      case 5: take(4); break;
      default: cut();
    }
    return true;
  }
  uint64_t field() const { return field_; }
  uint64_t number() const { return number_; }
  std::string_view message() const { return message_; }

 private:
  [[noreturn]] static void cut() {
    throw Error(ErrorCode::kCorrupt, "is cut or is no SentencePiece model");
  }
  std::string_view take(uint64_t n) {
    if (n > rest_.size()) cut();
    const std::string_view out = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return out;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    cut();
  }

  std::string_view rest_, message_;
  uint64_t field_ = 0, number_ = 0;
};

/// Facts about a model that the library does not tell.
struct ModelFlags {
  bool add_dummy_prefix = true;
  bool byte_fallback = false;
  bool bpe = false;
};

constexpr uint64_t kBpe = 2;  // of TrainerSpec.ModelType

ModelFlags read_flags(std::string_view model) {
  ModelFlags flags;
  bool trainer = false, normalizer = false;
  for (ProtoReader root(model); root.next();) {
    if (root.field() != 2 && root.field() != 3) continue;
    (root.field() == 2 ? trainer : normalizer) = true;
    for (ProtoReader spec(root.message()); spec.next();) {
      if (root.field() == 3 && spec.field() == 3) flags.add_dummy_prefix = spec.number() != 0;
      if (root.field() == 2 && spec.field() == 35) flags.byte_fallback = spec.number() != 0;
      if (root.field() == 2 && spec.field() == 3) flags.bpe = spec.number() == kBpe;
      if (root.field() == 2 && spec.field() == 24 && spec.number() != 0) {
        throw Error(ErrorCode::kUnsupported,
                    "SentencePiece models with treat_whitespace_as_suffix are not supported; "
                    "supported: BPE and unigram with white space as prefix");
      }
    }
  }
  // The pieces come first in a file: one that was cut between fields lacks these.
  if (!trainer || !normalizer) {
    throw Error(ErrorCode::kCorrupt, "is cut: it has no trainer_spec or no normalizer_spec");
  }
  return flags;
}

void load(const std::string& model, SentencePieceProcessor& out) {
  std::string problem;
  try {
    const auto status = out.LoadFromSerializedProto(model);
    if (!status.ok()) problem = status.ToString();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    problem =
        fmt::format("has pieces that no table can hold, such as an empty one ({})", error.what());
  }
  if (!problem.empty()) throw Error(ErrorCode::kCorrupt, problem);
}

class SentencePieceTokenizer final : public VocabTokenizer {
 public:
  SentencePieceTokenizer(const std::string& model, const TokenizerConfig& config) {
    const ModelFlags flags = read_flags(model);
    load(model, whole_);
    if (!config.legacy && flags.add_dummy_prefix) {
      inner_ = std::make_unique<SentencePieceProcessor>();
      load(model + std::string(kWithoutPrefix), *inner_);
    }
    strips_first_space_ = flags.add_dummy_prefix;
    add_pieces(config, flags.byte_fallback);
    settle(config, whole_.bos_id(), whole_.eos_id(), whole_.bos_id() >= 0);
  }

  std::vector<int32_t> encode_within(std::string_view text,
                                     std::span<const TextSpan> trusted) const override {
    check_text(text, trusted);
    const std::string repaired = is_utf8(text) ? std::string() : to_utf8(text);
    const std::string_view clean = repaired.empty() ? text : std::string_view(repaired);
    std::vector<int32_t> out;
    std::vector<int> ids;
    for (const Section& section : added_.split(clean, trusted)) {
      if (section.token >= 0) {
        out.push_back(section.token);
        continue;
      }
      const bool inner = inner_ != nullptr && section.begin > 0;
      const auto part = clean.substr(section.begin, section.end - section.begin);
      const auto status = (inner ? *inner_ : whole_).Encode(part, &ids);
      if (!status.ok())
        throw Error(ErrorCode::kCorrupt, fmt::format("the tokenizer's model cannot encode a text "
                                                     "of {} bytes, so it is damaged: {}",
                                                     part.size(), status.ToString()));
      out.insert(out.end(), ids.begin(), ids.end());
    }
    return out;
  }

  std::optional<int32_t> find(std::string_view token) const override {
    for (const AddedToken& added : more_) {
      if (added.content == token) return added.id;
    }
    const int id = whole_.PieceToId(token);
    return whole_.IdToPiece(id) == token ? std::optional(id) : std::nullopt;
  }

 private:
  void add_pieces(const TokenizerConfig& config, bool byte_fallback) {
    std::vector<AddedToken> all;
    const int32_t pieces = whole_.GetPieceSize();
    for (int32_t id = 0; id < pieces; ++id) {
      if (whole_.IsControl(id) || whole_.IsUnknown(id)) {
        all.push_back({.id = id, .content = whole_.IdToPiece(id), .special = true});
      }
    }
    for (const AddedToken& token : config.added) {
      const int id = whole_.PieceToId(token.content);
      const bool known = whole_.IdToPiece(id) == token.content;
      if (known && id != token.id) {
        throw Error(ErrorCode::kCorrupt,
                    fmt::format("the added token \"{}\" has the id {}, but {} in the model",
                                token.content, token.id, id));
      }
      if (!known) more_.push_back(token);
      std::erase_if(all, [&](const AddedToken& t) { return t.content == token.content; });
      all.push_back(token);
    }
    make_room(pieces - 1);
    for (const AddedToken& token : more_) make_room(token.id);
    for (int32_t id = 0; id < pieces; ++id) {
      const std::string& piece = whole_.IdToPiece(id);
      put(id, piece, sentencepiece_bytes(piece, byte_fallback && whole_.IsByte(id)), false);
    }
    for (const AddedToken& token : more_) put(token.id, token.content, "", false);
    for (const AddedToken& token : all) {
      replace(token.id, token.content, token.special);
    }
    added_ = AddedTokenFinder(std::move(all));
  }

  SentencePieceProcessor whole_;                   // as in the file
  std::unique_ptr<SentencePieceProcessor> inner_;  // adds no space in front; null: use whole_
  std::vector<AddedToken> more_;                   // added tokens that the model does not have
  AddedTokenFinder added_;
};

}  // namespace

SentencePieces read_sentence_pieces(const std::filesystem::path& file) {
  const std::string model = read_tokenizer_file(file);
  return with_file_name(file, [&] {
    const ModelFlags flags = read_flags(model);
    SentencePieceProcessor all;
    load(model, all);
    SentencePieces out;
    out.bpe = flags.bpe;
    out.add_dummy_prefix = flags.add_dummy_prefix;
    for (int id = 0; id < all.GetPieceSize(); ++id) {
      out.pieces.push_back({.text = all.IdToPiece(id),
                            .score = all.GetScore(id),
                            .control = all.IsControl(id),
                            .unknown = all.IsUnknown(id),
                            .byte = all.IsByte(id),
                            .unused = all.IsUnused(id)});
    }
    return out;
  });
}

std::unique_ptr<Tokenizer> load_sentencepiece_tokenizer(const std::filesystem::path& file,
                                                        const TokenizerConfig& config) {
  const std::string model = read_tokenizer_file(file);
  return with_file_name(file,
                        [&] { return std::make_unique<SentencePieceTokenizer>(model, config); });
}

}  // namespace pith
