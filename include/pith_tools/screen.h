#pragma once
// Figures of policies on one model for which none are known: a short text that the program carries
// is read exactly and under each, and the divergence of its last predictions is kept in the user's
// cache folder, under the model's fingerprint, the text and the version (docs/presets.md).

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pith/presets.h"
#include "pith/session.h"

namespace pith {

struct ScreenOptions {
  std::string model;          ///< its name, for people
  std::string fingerprint;    ///< model_fingerprint()
  StandaloneOptions session;  ///< context and policy are the screen's
  double most_seconds = 150;  ///< it gives up early where it would take longer
};

/// Where a model's figures are kept. Throws kNotFound if no environment variable names a folder.
std::filesystem::path screen_file(const std::string& fingerprint);
/// What earlier screens of this version found; nothing where there were none or the file is
/// damaged.
std::vector<Preset> screened(const std::string& fingerprint);
/// Measures the policies and adds them to what is kept. Nothing if `progress` returned false, or if
/// it would take longer than allowed. A folder that cannot be written keeps nothing.
std::optional<std::vector<Preset>> screen(const std::shared_ptr<const Model>& model,
                                          std::span<const std::string> policies,
                                          const ScreenOptions& options,
                                          const Progress& progress = {});

}  // namespace pith
