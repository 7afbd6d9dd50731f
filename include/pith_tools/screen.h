#pragma once
// Measures policies on a model without figures: it reads a short built-in text exactly and under
// each policy, and keeps the divergence of the last predictions in the user's cache folder, by
// fingerprint, text and version (docs/presets.md).

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pith/presets.h"
#include "pith/session.h"

namespace pith {

struct ScreenOptions {
  std::string model;          ///< its name, for people
  std::string fingerprint;    ///< model_fingerprint()
  StandaloneOptions session;  ///< its context and policy are replaced
  double most_seconds = 150;  ///< gives up early if it would take longer
};

/// The text that screens read: prose and source code, about 2,200 tokens.
std::string_view screen_text();
/// Where a model's figures are kept. Throws kNotFound if no environment variable names a folder.
std::filesystem::path screen_file(const std::string& fingerprint);
/// The figures of earlier screens of this version;
/// empty if there are none or the file is damaged.
std::vector<Preset> screened(const std::string& fingerprint);
/// Measures the policies and adds them to the kept figures. Empty if `progress` returned false or
/// it would take too long. Nothing is kept if the folder cannot be written.
std::optional<std::vector<Preset>> screen(const std::shared_ptr<const Model>& model,
                                          std::span<const std::string> policies,
                                          const ScreenOptions& options,
                                          const Progress& progress = {});

}  // namespace pith
