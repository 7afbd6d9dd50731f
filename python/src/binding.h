#pragma once
// Shared by the files of the binding. A call that computes gives the interpreter's lock back and
// marks its conversation as busy; a second thread that enters it is refused, as a queue would hide
// the mistake.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pith/chat.h"
#include "pith/error.h"
#include "pith/generate.h"
#include "pith/session.h"

namespace pith::python {

namespace nb = nanobind;
using nb::literals::operator""_a;

using Ids = std::vector<int32_t>;
template <class T, class... Shape>
using Array = nb::ndarray<nb::numpy, T, Shape...>;
using Vector = Array<float, nb::ndim<1>>;
using Matrix = Array<float, nb::ndim<2>>;

void bind_errors(nb::module_& m);
void bind_values(nb::module_& m);    // policies, ledgers, rows: what is handed back
void bind_model(nb::module_& m);     // models, tokenizers, chat templates, catalogue
void bind_session(nb::module_& m);   // engines, sessions
void bind_generate(nb::module_& m);  // sampling, generation, chats
void bind_own_codec(nb::module_& m);
void bind_own_selector(nb::module_& m);
void bind_layer(nb::module_& m);  // one layer's cache over numpy arrays

/// A model and where it came from: a policy for a number of bytes is chosen by the model's files.
struct LoadedModel {
  std::shared_ptr<const Model> model;
  std::filesystem::path path;
};

/// "": the model's own template; else a built-in one's name, or the source of one.
ChatTemplate template_of(const LoadedModel& loaded, const std::string& chosen);
/// With the token that begins a text in front, if the tokenizer adds one and it is not there.
Ids begun(const Tokenizer& tokenizer, Ids ids);

struct LoadedEngine {
  LoadedModel loaded;
  std::shared_ptr<Engine> engine;
};

/// Options of a session as Python's keywords have them.
struct SessionWords {
  std::string policy;  ///< or a size: "quarter", "30%", "16MiB"
  size_t context, percent_of;
  uint64_t seed;
  size_t cache_limit;
  std::string protect;
  size_t probe_rows, probe_every;
  double max_error;
  std::string goal;
  bool measure;
};
/// The options, and why the policy was chosen if a size was given.
std::pair<SessionOptions, std::string> options_of(const LoadedEngine& engine,
                                                  const SessionWords& words);

class Generation;

/// Something with a session: a session itself, or a chat.
class Conversation {
 public:
  virtual ~Conversation() = default;
  virtual Session& session() = 0;
  virtual void drop() = 0;  ///< frees it
  bool closed = false;

  std::string why;  ///< of a policy that was chosen for a size

  /// The session, for questions asked with the interpreter's lock held.
  Session& asked();
  void close();

 private:
  friend class Entered;
  friend class Generation;
  std::atomic<bool> busy_{false};
  Generation* owner_ = nullptr;  // draws from it; lock of the interpreter
};

/// Made with the interpreter's lock held, by a call that changes the session.
class Entered {
 public:
  explicit Entered(Conversation& conversation, const Generation* as = nullptr);
  ~Entered();
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  Conversation& conversation_;
};

/// Python's signals and a caller's progress, looked at between chunks of work without the lock.
class Watch {
 public:
  explicit Watch(nb::object progress = nb::none()) : progress_(std::move(progress)) {}
  Progress progress();
  /// Raises the callback's or a signal's exception; with the lock held.
  void rethrow() const {
    if (raised_) std::rethrow_exception(raised_);
  }

 private:
  nb::object progress_;
  std::exception_ptr raised_;
};

/// Calls work() without the interpreter's lock.
template <class Work>
decltype(auto) unlocked(Work&& work) {
  nb::gil_scoped_release release;
  return work();
}

[[noreturn]] void raise_busy(const char* why);

/// Arrays that own what they show.
template <class T>
Array<T, nb::ndim<1>> array_of(std::vector<T> values) {
  auto* held = new std::vector<T>(std::move(values));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Array<T, nb::ndim<1>>(held->data(), {held->size()}, owner);
}
template <class T>
Array<T, nb::ndim<2>> matrix_of(std::vector<T> values, size_t rows, size_t columns) {
  auto* held = new std::vector<T>(std::move(values));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Array<T, nb::ndim<2>>(held->data(), {rows, columns}, owner);
}
inline Vector array_of(std::span<const float> values) {
  return array_of(std::vector<float>(values.begin(), values.end()));
}

/// As `json.dumps` has it.
std::string to_json(nb::handle value);
nb::object from_json(const std::string& text);

Device device_of(const std::string& name);

}  // namespace pith::python
