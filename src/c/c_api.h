#pragma once
// Shared by the parts of the C face: its handles, how errors come out, and how structs of
// any size are read and written. Nothing is decided here.

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "pith/error.h"
#include "pith/generate.h"
#include "pith/pith.h"

// NOLINTBEGIN(readability-identifier-naming): the names of pith.h.
struct pith_model {
  std::shared_ptr<const pith::Model> model;
  std::string path;

  /// Of the model's tokens, for forms; made when it is first asked for.
  std::shared_ptr<const pith::FormVocabulary> vocabulary() const {
    std::call_once(
        once, [&] { texts = std::make_shared<const pith::FormVocabulary>(model->tokenizer()); });
    return texts;
  }
  mutable std::once_flag once = {};
  mutable std::shared_ptr<const pith::FormVocabulary> texts = {};
};

struct pith_form {
  std::shared_ptr<const pith::AnswerForm> form;
};

struct pith_compute {
  std::shared_ptr<pith::Runtime> runtime;
};

struct pith_engine {
  std::shared_ptr<pith::Engine> engine;
};

struct pith_session {
  pith::Session session;
};

struct pith_sampler {
  pith::Sampler sampler;
};
// NOLINTEND(readability-identifier-naming)

namespace pith::c_api {

/// Notes a failure where the program wants it; its status.
pith_status failed(pith_error* error, ErrorCode code, const char* message) noexcept;
void succeeded(pith_error* error) noexcept;
/// As much of a text as there is room for, no part of a character, terminated.
void copy_text(char* to, size_t room, const char* text) noexcept;

/// Every function that can fail runs in here.
template <class F>
pith_status guarded(pith_error* error, const F& work) noexcept {
  try {
    work();
  } catch (const Error& e) {
    return failed(error, e.code(), e.what());
  } catch (const std::bad_alloc&) {
    return failed(error, ErrorCode::kOutOfMemory, "the machine has no memory left");
  } catch (const std::exception& e) {
    return failed(error, ErrorCode::kInternal, e.what());
  } catch (...) {
    return failed(error, ErrorCode::kInternal, "an exception that is none of Pith's");
  }
  succeeded(error);
  return PITH_OK;
}

template <class T>
T& given(T* pointer, const char* what) {
  if (!pointer)
    throw Error(ErrorCode::kInvalidArgument, std::string(what) + " is NULL; pass a pointer to one");
  return *pointer;
}

inline std::string text_or_none(const char* text) { return text ? text : ""; }

template <class T>
std::span<const T> span_of(const T* first, size_t count, const char* what) {
  if (count > 0) given(first, what);
  return {first, count};
}

/// Throws for a struct whose size was not filled in.
void check_size(size_t size, const char* what);
/// Throws unless what lies behind the fields that are known is 0.
void check_unknown_fields(const void* given, size_t size, size_t known, const char* what);

/// A program's struct, of whatever size, over the defaults.
template <class T>
T read(const T* from, const T& defaults, const char* what) {
  static_assert(std::is_trivially_copyable_v<T>);
  T all = defaults;
  if (!from) return all;
  check_size(from->size, what);
  check_unknown_fields(from, from->size, sizeof(T), what);
  std::memcpy(&all, from, std::min(from->size, sizeof(T)));
  all.size = sizeof(T);
  return all;
}

/// As much of `from` as the program's struct has; fields that are not known here become 0.
template <class T>
void write(T* to, const T& from, const char* what) {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t size = given(to, what).size;
  check_size(size, what);
  std::memcpy(to, &from, std::min(size, sizeof(T)));
  if (size > sizeof(T)) std::memset(reinterpret_cast<char*>(to) + sizeof(T), 0, size - sizeof(T));
  to->size = size;
}

/// The same for defaults: the size comes from outside.
template <class T>
void fill(T* to, size_t size, const T& from) noexcept {
  if (!to || size < sizeof(size_t)) return;
  std::memset(to, 0, size);
  std::memcpy(to, &from, std::min(size, sizeof(T)));
  std::memcpy(to, &size, sizeof(size));
}

/// Copies what fits entirely; throws where it does not, with `count` written first.
template <class From, class To>
void hand_out(const From& from, To* to, size_t capacity, size_t* count, const char* what) {
  given(count, "the place for the number") = from.size();
  if (from.size() > capacity)
    throw Error(ErrorCode::kBufferTooSmall, std::to_string(from.size()) + " " + what +
                                                " do not fit into room for " +
                                                std::to_string(capacity));
  if (!from.empty()) given(to, "the room for the result");
  std::copy(from.begin(), from.end(), to);
}

/// A program's list of structs, which may be smaller or larger than this library's.
template <class T>
class Structs {
 public:
  /// `what`: one of them. Throws unless all have the same size.
  Structs(T* first, size_t count, const std::string& what) : first_(first), count_(count) {
    if (count == 0) return;
    size_ = given(first, ("the list of " + what + "s").c_str()).size;
    check_size(size_, ("a " + what).c_str());
    for (size_t i = 0; i < count; ++i)
      if (at(i)->size != size_)
        throw Error(ErrorCode::kInvalidArgument,
                    what + "s of different sizes; fill in the size of all of them");
  }
  size_t size() const { return count_; }
  T* at(size_t i) const {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return reinterpret_cast<T*>(reinterpret_cast<Byte*>(first_) + i * size_);
  }

 private:
  T* first_;
  size_t count_, size_ = 0;
};

/// A number that names one of a C enumeration's `count` values. Throws for others.
int one_of(int32_t value, int count, const char* what);

SessionOptions options_of(const pith_session_options* given);
/// Without its callbacks.
GenerateOptions options_of(const pith_generate_options* given);
Device device_of(int32_t device);
pith_ledger ledger_of(const Ledger& ledger);
/// Tokens [count][2]: first, one past the last.
std::vector<TokenRange> ranges_of(const int64_t* pairs, size_t count);
/// As many as there is room for, or none; see pith_session_rows.
void write_rows(pith_rows* rows, const HeadRows& held);
void write_error(pith_attention_error* estimate, const AttentionError& error);

}  // namespace pith::c_api
