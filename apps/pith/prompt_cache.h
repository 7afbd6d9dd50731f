#pragma once
// run --prompt-cache, by llama.cpp's name: a file keeps what a prompt left in the cache, so that
// the next run with the same prompt, or a longer one, does not read it again.

#include <atomic>
#include <filesystem>
#include <memory>
#include <span>

#include "pith/generate.h"
#include "pith/saved.h"
#include "pith/session.h"

namespace pith::cli {

struct CachedPrompt {
  Session session;      ///< has read the prompt
  GenerateResult read;  ///< what was read for it; kCancelled if not all was
};

/// A session that has read `ids`, from `file` as far as that goes; what is read besides is saved
/// there. A file of another prompt is replaced, and standard error says so. Throws kInvalidArgument
/// for a file that no prompt cache wrote, and as Session::restore.
CachedPrompt read_with_cache(const std::shared_ptr<const Model>& model, StandaloneOptions options,
                             const std::filesystem::path& file, std::span<const int32_t> ids,
                             const std::atomic<bool>* cancel, const Progress& progress);

/// Per cent in a policy are of the tokens that the session's first prompt set.
void take_percent_of(StandaloneOptions& options, const SavedSession& saved);

}  // namespace pith::cli
