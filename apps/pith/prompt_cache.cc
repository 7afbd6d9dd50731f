#include "prompt_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "console.h"
#include "pith/error.h"

namespace pith::cli {
namespace {

constexpr const char* kNote = "prompt cache";

}  // namespace

void take_percent_of(StandaloneOptions& options, const SavedSession& saved) {
  const std::string per_cent_of = saved.field("per cent of");
  std::from_chars(per_cent_of.data(), per_cent_of.data() + per_cent_of.size(), options.percent_of);
}

CachedPrompt read_with_cache(const std::shared_ptr<const Model>& model, StandaloneOptions options,
                             const std::filesystem::path& file, std::span<const int32_t> ids,
                             const std::atomic<bool>* cancel, const Progress& progress) {
  std::optional<Session> session;
  if (std::filesystem::exists(file)) {
    const SavedSession saved = read_saved(file);
    if (saved.note != kNote)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--prompt-cache {}: the file is a session that was saved otherwise; "
                              "--session-load continues from it, or name another file",
                              file.string()));
    const size_t held = saved.tokens.size();
    if (held <= ids.size() && std::ranges::equal(saved.tokens, ids.first(held))) {
      take_percent_of(options, saved);
      session = Session::restore(model, file, options);
      say(fmt::format("pith: {} of {} tokens of the prompt come from {}", held, ids.size(),
                      file.string()));
    } else {
      say(fmt::format("pith: {} is of another prompt; this one is read and takes its place",
                      file.string()));
    }
  }
  if (!session) session.emplace(model, options);
  CachedPrompt out{*std::move(session), {}};
  if (out.session.tokens() == ids.size()) return out;
  GenerateOptions nothing_yet;
  nothing_yet.max_tokens = 0;
  nothing_yet.cancel = cancel;
  out.read = generate(out.session, ids.subspan(out.session.tokens()), nothing_yet, {}, progress);
  if (out.read.reason != StopReason::kCancelled)
    out.session.save(file, {.replace = true, .note = kNote});
  return out;
}

}  // namespace pith::cli
